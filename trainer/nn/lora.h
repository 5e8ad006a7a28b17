// LoRA: low-rank updates of chosen matrices beside frozen weights (Hu et al. 2021).
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

/// Whether a pattern that matches no parameter is an error. On a rank that has a part of the
/// model's layers it may be meant for another part.
enum class Patterns : bool { must_match, may_match };

/// Declares "<module>.lora_down" [rank, in] (normal, deviation 1 / sqrt(3 in)) and
/// "<module>.lora_up" [out, rank] (zero) for every matrix "<module>.weight" that a pattern of
/// config.modules matches; before store.finalize(). Embedding and head have none, nor
/// have experts of a mixture: they are no products of single rows. ErrorCode::config for a pattern
/// that matches nothing. Rank 0 does nothing.
Result<> add_lora(const config::LoraConfig& config, ParameterStore& store,
                  Patterns patterns = Patterns::must_match);

/// Freezes what is not trained: with LoRA all other parameters, and those that optimizer.freeze
/// names. ErrorCode::config for a pattern that matches nothing, or when nothing is left. Copies of
/// another rank's parameter go by the name of that one.
Result<> freeze_parameters(const config::JobConfig& job, ParameterStore& store,
                           Patterns patterns = Patterns::must_match);

/// Adds each update to its master weights and zeroes it. Call store.refresh_compute_copy() and
/// weights_changed() afterwards.
void merge_lora(ParameterStore& store);

}  // namespace sortie::trainer
