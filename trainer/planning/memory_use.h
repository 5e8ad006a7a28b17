// The memory of a rank by purpose. Plans and measurements use the same parts and the same function.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "trainer/nn/parameter_store.h"

namespace sortie::trainer {

/// Bytes by purpose.
struct MemoryUse {
  /// The f32 masters and, with bf16, the copies that are multiplied. With a sharded optimizer only
  /// this rank's share of the masters; if everything is sharded only its share of both, plus the
  /// layers that are gathered at a time.
  std::int64_t weights = 0;
  /// f32, of trained parameters. If everything is sharded: this rank's share, plus those of the
  /// layers that are gathered at a time.
  std::int64_t gradients = 0;
  /// AdamW's two moments, f32 or bf16, of trained parameters, or this rank's share of them; with
  /// DeMo one momentum.
  std::int64_t optimizer = 0;
  /// A copy of the state, or of this rank's share of it, that is written to a checkpoint while
  /// training continues.
  std::int64_t snapshot = 0;
  std::int64_t memory_checkpoints = 0;  // files in host memory: two snapshots of the rank's shares
  /// Copies of matrices in the layouts that products prefer, if they are kept: with several
  /// micro-batches per step.
  std::int64_t packed = 0;
  std::int64_t activations = 0;  // at the peak of a step, with the workspaces of kernels
  /// Freed blocks that the allocator keeps for later requests of their size. On a GPU also the
  /// bytes by which blocks are larger than requested.
  std::int64_t cached = 0;
  std::int64_t device = 0;   // memory of a GPU that its driver and libraries use
  std::int64_t process = 0;  // the program itself, its libraries and what they allocate
  std::int64_t total() const {
    return weights + gradients + optimizer + snapshot + memory_checkpoints + packed + activations +
           cached + device + process;
  }
  /// Bytes of tensors at the peak of a step.
  std::int64_t tensors() const { return weights + gradients + optimizer + packed + activations; }
  /// The part that is in GPU memory if the rank computes on a GPU; the rest is in host memory.
  std::int64_t on_gpu() const { return tensors() + cached + device; }
  /// The parts with their names in JSON.
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

/// Reads the memory of tensors off a store and its allocator; sets neither `snapshot`,
/// `memory_checkpoints`, `device` nor `process`. Call between steps: only parameters and their
/// buffers are allocated then, and the peak beyond them counts as activations. Works on the meta
/// device too.
MemoryUse tensor_memory(const ParameterStore& store, const Allocator& allocator);

/// The same for this process; `process` is the rest of its peak resident size. `snapshot`: bytes
/// that background saves hold; `memory_checkpoints`: bytes of this rank's files in memory.
MemoryUse measure_memory(const ParameterStore& store, const Allocator& allocator,
                         std::uint64_t snapshot = 0, std::uint64_t memory_checkpoints = 0);

}  // namespace sortie::trainer
