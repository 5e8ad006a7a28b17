// Text from a model: token by token, with a window that slides once the context is full.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/models/model.h"

namespace sortie::trainer {

struct SamplingOptions {
  std::int64_t max_tokens = 256;
  double temperature = 0.8;  // 0 = always the likeliest token
  std::int64_t top_k = 40;   // 0 = all tokens
  std::uint64_t seed = 1;
  std::int32_t stop_token = -1;  // ends the text, not handed out; -1 = none
};

/// Index of the chosen token. `position` keys the random number, so a text depends on (seed,
/// prompt) only.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position);

/// Continues `prompt` (at least one token); each new token is handed to `on_token` at once. Where
/// prompt and text are longer than the sequence length, the model sees the last sequence_length
/// tokens.
void generate(ExecutionContext& context, const LanguageModel& model,
              std::vector<std::int32_t> prompt, const SamplingOptions& options,
              const std::function<void(std::int32_t)>& on_token);

}  // namespace sortie::trainer
