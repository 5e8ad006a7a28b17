// Text from a model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "trainer/autograd/kv_cache.h"
#include "trainer/models/model.h"

namespace sortie::trainer {

struct SamplingOptions {
  std::int64_t max_tokens = 256;
  double temperature = 0.8;  // 0 = always the likeliest token
  std::int64_t top_k = 40;   // 0 = all tokens
  double top_p = 1.0;        // of those the likeliest that together have this share
  std::uint64_t seed = 1;
  std::vector<std::int32_t> stop_tokens{};  // each ends the text, and is not handed out
  bool cache = true;  // keep keys and values; without, every token costs the whole text again
};

/// Index of the chosen token. `position` keys the random number, so a text depends on (seed,
/// prompt) only.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position);

/// The logits of what follows a text that grows, in a window: once the text is longer than the
/// model's sequence length, the model sees its last tokens only, half a window at first, then more
/// again. With and without a cache it is the same window.
class NextToken {
 public:
  NextToken(ExecutionContext& context, const LanguageModel& model, bool cache);
  /// [vocab_size] f32 after `text`, which begins with that of the call before.
  Tensor logits(const std::vector<std::int32_t>& text);

 private:
  ExecutionContext& context_;
  const LanguageModel& model_;
  std::int64_t window_;
  std::optional<KvCache> cache_;
  std::int64_t begin_ = 0;  // of the window, in the text
};

/// Continues `prompt` (at least one token); each new token is handed to `on_token` at once, which
/// may end the text with false.
void generate(ExecutionContext& context, const LanguageModel& model,
              std::vector<std::int32_t> prompt, const SamplingOptions& options,
              const std::function<bool(std::int32_t)>& on_token);

}  // namespace sortie::trainer
