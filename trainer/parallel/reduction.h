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

/// For few bytes: every rank gets all values of all others and adds them up itself, in one step.
class DirectReduction final : public LaneOperation {
 public:
  /// Up to this many bytes to send, for all peers together.
  static constexpr std::int64_t kUpTo = 32 << 10;

  DirectReduction(const GroupRanks& group, Engine& engine, std::string what, int tag,
                  const Reduced& reduced, std::byte* values);
  ~DirectReduction() override;
  bool advance() override;

 private:
  Engine& engine_;
  const Reduced reduced_;
  std::byte* values_;
  std::size_t bytes_;
  Engine::ScratchBlock scratch_;  // of the peers, by member
};

/// Each rank owns a chunk: it gets the others' values of it, adds them up, and, for an all-reduce,
/// sends the result to all. 2 (d - 1) / d of the bytes per rank, both directions of a link at the
/// same time, in segments that flow through both halves.
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
  static constexpr std::size_t kSegment = std::size_t{256} << 10;

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
