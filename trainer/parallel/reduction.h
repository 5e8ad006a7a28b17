// All-reduce and reduce-scatter with sums in the order of the ranks.
#pragma once

#include <vector>

#include "trainer/parallel/engine.h"

namespace sortie::trainer {

/// What all ranks reduce.
struct Reduced {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t elements = 0;  // of the whole
};

/// For few bytes: every rank gets the values of all others and adds them up itself. In log2(d)
/// rounds (Bruck et al. 1997): in round k a rank passes what it has of itself and the next ranks to
/// the one 2^k below.
class GatherReduction final : public LaneOperation {
 public:
  /// Up to this many bytes to send, with those that are passed on.
  static constexpr std::int64_t kUpTo = 32 << 10;

  GatherReduction(const GroupRanks& group, Engine& engine, std::string what, int tag,
                  const Reduced& reduced, std::byte* values);
  ~GatherReduction() override;
  bool advance() override;

 private:
  struct Round {
    Lane *out, *in;
    std::size_t blocks;  // from the first one on to send; as many come behind those that are there
  };
  std::span<std::byte> blocks(std::size_t first, std::size_t count) const {
    return {scratch_.memory.get() + bytes_ * first, bytes_ * count};
  }

  Engine& engine_;
  const Reduced reduced_;
  std::byte* values_;
  std::size_t bytes_;
  Engine::ScratchBlock scratch_;  // block i is of the rank i above this one
  std::vector<Round> rounds_;
  std::size_t at_ = 0;
};

/// Each rank owns a chunk: it gets the others' values of it, adds them up, and, for an all-reduce,
/// sends the result to all. 2 (d - 1) / d of the bytes per rank, both directions of a link at the
/// same time, in segments that flow through both halves.
///
/// A rank that is behind keeps what it has not asked for yet in its transport. With an all-reduce
/// the results of a peer say how far it is, and nobody gets further ahead of that than kAhead
/// segments.
class ChunkReduction final : public LaneOperation {
 public:
  struct Buffers {
    std::byte* values;       // of the whole: every rank's chunk
    std::byte* result;       // of this rank's chunk; may be where its values are
    std::int64_t per_chunk;  // elements; the last chunks may have fewer
    bool gather;             // results go back into `values` on all ranks: an all-reduce
  };
  /// Elements of a chunk when `elements` are cut into `ranks` of them: cache lines stay whole.
  static std::int64_t chunk_elements(std::int64_t elements, int ranks);
  static constexpr std::int64_t kAhead = 32;

  ChunkReduction(const GroupRanks& group, Engine& engine, std::string what, int sequence_tag,
                 const Reduced& reduced, const Buffers& buffers, std::size_t segment = 0);
  ~ChunkReduction() override;
  bool advance() override;

 private:
  struct Peer {
    int member = 0;
    Lane *values_out = nullptr, *values_in = nullptr;   // the first half
    Lane *result_out = nullptr, *results_in = nullptr;  // the second
  };
  std::int64_t chunk_bytes(int member) const;
  std::int64_t segments(int member) const;
  std::byte* chunk(int member) const;
  std::byte* slot(std::size_t peer, std::int64_t segment) const;
  std::size_t segment_bytes(int member, std::int64_t segment) const;
  void post_values();
  void reduce_arrived();
  void post_results();

  Engine& engine_;
  const Reduced reduced_;
  const Buffers buffers_;
  std::size_t segment_;
  std::vector<Peer> peers_;               // by the distance upwards
  std::vector<const std::byte*> inputs_;  // by member, for the kernel
  Engine::ScratchBlock scratch_;          // slots of a segment, Lane::kWindow per peer
  std::int64_t added_ = 0;                // segments of this rank's chunk that are reduced
};

}  // namespace sortie::trainer
