// The memory of a rank of a training job, from its config alone.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "common/model/tape.h"

namespace sortie::model {

/// Bytes by what they are for, planned here and measured by the trainer.
struct MemoryUse {
  std::int64_t weights = 0;      // f32 master copies and, with bf16, the copies that are multiplied
  std::int64_t gradients = 0;    // f32, of what is trained
  std::int64_t optimizer = 0;    // AdamW's two moments, f32, of what is trained
  std::int64_t snapshot = 0;     // a copy of the state, or a rank's share of it, that is written to
                                 // a checkpoint while training goes on
  std::int64_t packed = 0;       // copies of matrices in the layouts that products like best, where
                                 // they are kept: for several micro-batches a step
  std::int64_t activations = 0;  // and what kernels work in, at the peak of a step
  std::int64_t cached = 0;       // freed blocks that wait for their size to be asked for again
  std::int64_t process = 0;      // the program itself, its libraries and what they allocate

  std::int64_t total() const {
    return weights + gradients + optimizer + snapshot + packed + activations + cached + process;
  }
  /// With the names that they have in JSON.
  std::array<std::pair<std::string_view, std::int64_t>, 8> parts() const {
    return {{{"weights", weights},
             {"gradients", gradients},
             {"optimizer", optimizer},
             {"snapshot", snapshot},
             {"packed_weights", packed},
             {"activations", activations},
             {"cached", cached},
             {"process", process}}};
  }
};

/// What every rank of a data-parallel job of `world_size` holds while it trains micro-batches of
/// `micro_batch_size` sequences; of the machine, what is packed is known here. Errors as
/// model_facts'.
Result<MemoryUse> plan_memory(const config::JobConfig& job, std::int64_t micro_batch_size,
                              std::int64_t world_size, Machine machine);

}  // namespace sortie::model
