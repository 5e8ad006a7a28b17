// What a rank's memory is for: planned and measured in the same words, by the same function.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "trainer/nn/parameter_store.h"

namespace sortie::trainer {

/// Bytes by what they are for.
struct MemoryUse {
  std::int64_t weights = 0;    // f32 master copies and, with bf16, the copies that are multiplied;
                               // of a sharded optimizer's masters this rank's share; where
                               // everything is sharded its share, and the layers gathered at a time
  std::int64_t gradients = 0;  // f32, of what is trained; the same
  std::int64_t optimizer = 0;  // AdamW's two moments, f32 or bf16, of what is trained, or its share
                               // of it; of DeMo one momentum
  std::int64_t snapshot = 0;   // a copy of the state, or a rank's share of it, that is written to
                               // a checkpoint while training goes on
  std::int64_t memory_checkpoints = 0;  // files in the host's memory: two snapshots of its shares
  std::int64_t packed = 0;  // copies of matrices in the layouts that products like best, where they
                            // are kept: for several micro-batches a step
  std::int64_t activations = 0;  // and what kernels work in, at the peak of a step
  std::int64_t cached = 0;       // freed blocks that wait for their size to be asked for again; of
                                 // a GPU with what blocks are larger than was asked for
  std::int64_t device = 0;       // of a GPU: what its driver and libraries take of its memory
  std::int64_t process = 0;      // the program itself, its libraries and what they allocate

  std::int64_t total() const {
    return weights + gradients + optimizer + snapshot + memory_checkpoints + packed + activations +
           cached + device + process;
  }
  /// What tensors have at the peak of a step.
  std::int64_t tensors() const { return weights + gradients + optimizer + packed + activations; }
  /// Of a rank that computes on a GPU, the part that lies there; the rest is the host's.
  std::int64_t on_gpu() const { return tensors() + cached + device; }
  /// With the names that they have in JSON.
  std::array<std::pair<std::string_view, std::int64_t>, 10> parts() const {
    return {{{"weights", weights},
             {"gradients", gradients},
             {"optimizer", optimizer},
             {"snapshot", snapshot},
             {"memory_checkpoints", memory_checkpoints},
             {"packed_weights", packed},
             {"activations", activations},
             {"cached", cached},
             {"device", device},
             {"process", process}}};
  }
};

/// Between steps, without `snapshot` and `process`: what lives then is parameters and what belongs
/// to them, and the highest that was in use beyond it are activations. On the meta device as on
/// others.
MemoryUse tensor_memory(const ParameterStore& store, const Allocator& allocator);

/// The same of this process, whose highest resident size is the total. `snapshot`: bytes that
/// background saves hold; `memory_checkpoints`: of this rank's files in memory.
MemoryUse measure_memory(const ParameterStore& store, const Allocator& allocator,
                         std::uint64_t snapshot = 0, std::uint64_t memory_checkpoints = 0);

}  // namespace sortie::trainer
