// LoRA: low-rank updates of chosen matrices, whose weights are frozen (Hu et al. 2021).
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "trainer/nn/parameter_store.h"

namespace sortie::trainer {

inline constexpr const char* kLoraDown = ".lora_down";
inline constexpr const char* kLoraUp = ".lora_up";
bool is_lora_name(const std::string& name);

/// Whether a pattern that matches no parameter is an error. may_match is for a rank that has only
/// some of the model's layers: the pattern may match on another rank.
enum class Patterns : bool { must_match, may_match };

/// Declares "<module>.lora_down" [rank, in] (normal, deviation 1 / sqrt(3 in)) and
/// "<module>.lora_up" [out, rank] (zero) for every matrix "<module>.weight" that a pattern of
/// config.modules matches. Call before store.finalize(). Excludes the embedding, the head and the
/// experts of a mixture, which linear() does not multiply. ErrorCode::config for a pattern that
/// must match and does not. No-op if config.rank is 0.
Result<> add_lora(const config::LoraConfig& config, ParameterStore& store,
                  Patterns patterns = Patterns::must_match);

/// Freezes the parameters that optimizer.freeze names and, with LoRA, all parameters that are not
/// LoRA's. ErrorCode::config, if patterns must match, for a pattern that matches nothing, or if no
/// parameter is left to train. A copy of another rank's parameter (ParameterSpec::tied_to) is
/// matched by that parameter's name.
Result<> freeze_parameters(const config::JobConfig& job, ParameterStore& store,
                           Patterns patterns = Patterns::must_match);

/// Adds each update to its master weights and sets the update to zero. The store must be neither
/// cut nor sharded. Call store.refresh_compute_copy() and weights_changed() afterwards.
void merge_lora(ParameterStore& store);

}  // namespace sortie::trainer
