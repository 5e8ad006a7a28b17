// All-reduce and reduce-scatter with sums in the order of the ranks.
#pragma once

#include <vector>

#include "trainer/parallel/engine.h"

namespace sortie::trainer {

/// What is reduced; the same on all ranks.
struct Reduced {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t elements = 0;  // of the whole
};

/// All-reduce of few bytes: every rank receives the values of all others and reduces them itself.
/// This takes log2(d) rounds (Bruck et al. 1997): in round k, a rank sends the blocks that it has,
/// its own and those of the next ranks, to the rank 2^k below.
class GatherReduction final : public LaneOperation {
 public:
  /// Used for up to this many bytes that a rank sends, including those that it forwards.
  static constexpr std::int64_t kUpTo = 32 << 10;

  GatherReduction(const GroupRanks& group, Engine& engine, std::string what, int tag,
                  const Reduced& reduced, std::byte* values);
  ~GatherReduction() override;
  bool advance() override;

 private:
  struct Round {
    Lane *out, *in;
    std::size_t blocks;  // number sent, from the first on; as many are received and appended
  };
  std::span<std::byte> blocks(std::size_t first, std::size_t count) const {
    return {scratch_.memory.get() + bytes_ * first, bytes_ * count};
  }

  Engine& engine_;
  const Reduced reduced_;
  std::byte* values_;
  std::size_t bytes_;
  Engine::ScratchBlock scratch_;  // block i has the values of the rank i above this one
  std::vector<Round> rounds_;
  std::size_t at_ = 0;
};

/// Each rank owns a chunk: it receives the other ranks' values of the chunk, reduces them and, for
/// an all-reduce, sends the result to all. A rank of an all-reduce sends 2 (d - 1) / d of the
/// bytes. Both directions of a link are used at the same time, and segments are pipelined through
/// both halves.
///
/// If a rank is late, its transport buffers the segments that it has not posted a receive for. In
/// an all-reduce, the results from a peer show its progress; a rank sends at most kAhead segments
/// more than that.
class ChunkReduction final : public LaneOperation {
 public:
  struct Buffers {
    std::byte* values;       // the whole: the chunks of all ranks
    std::byte* result;       // this rank's chunk, reduced; may be in `values`
    std::int64_t per_chunk;  // elements; the last chunks may have fewer
    bool gather;             // all-reduce: results are written to `values` on all ranks
  };
  /// Elements of a chunk when `elements` are divided into `ranks` chunks of whole cache lines.
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
  std::vector<Peer> peers_;               // by distance upwards
  std::vector<const std::byte*> inputs_;  // by member, for the kernel
  Engine::ScratchBlock scratch_;          // slots of one segment each, Lane::kWindow per peer
  std::int64_t added_ = 0;                // segments of this rank's chunk that are reduced
};

}  // namespace sortie::trainer
