// Text from a model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trainer/autograd/kv_cache.h"
#include "trainer/models/model.h"
#include "trainer/tensor/repeated_work.h"

namespace sortie::trainer {

struct SamplingOptions {
  std::int64_t max_tokens = 256;
  double temperature = 0.8;  // 0 = always the likeliest token
  std::int64_t top_k = 40;   // 0 = all tokens
  double top_p = 1.0;        // of those the likeliest that together have this share
  std::uint64_t seed = 1;
  std::vector<std::int32_t> stop_tokens{};  // each ends the text, and is not handed out
  bool cache = true;   // keep keys and values; without, every token costs the whole text again
  bool graphs = true;  // a GPU is given each token as one CUDA graph
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
  /// A text has up to `most_tokens` tokens: the cache has memory for these, or for the window if it
  /// is shorter. The logits do not depend on it.
  NextToken(ExecutionContext& context, const LanguageModel& model, bool cache, bool graphs = true,
            std::int64_t most_tokens = std::numeric_limits<std::int64_t>::max());
  /// [1, vocab_size] f32 after `text`, which begins with that of the call before; valid until the
  /// next call.
  Tensor logits(const std::vector<std::int32_t>& text);
  /// Whether the last token was one graph, where a GPU computes.
  bool was_graph() const { return was_graph_; }
  std::optional<std::string> take_graph_failure() { return one_token_.take_failure(); }

 private:
  Tensor logits_after_one(std::int32_t token);

  ExecutionContext& context_;
  const LanguageModel& model_;
  std::int64_t window_;
  std::optional<KvCache> cache_;
  std::int64_t begin_ = 0;  // of the window, in the text
  // Of one new token after others that are in the cache.
  RepeatedWork one_token_{"the pass of a token"};
  std::int64_t keys_ = 0;
  Tensor token_, place_, logits_;
  bool was_graph_ = false;
};

/// Continues `prompt` (at least one token); each new token is handed to `on_token` at once, which
/// may end the text with false. `on_note` is told what keeps tokens from being CUDA graphs.
void generate(ExecutionContext& context, const LanguageModel& model,
              std::vector<std::int32_t> prompt, const SamplingOptions& options,
              const std::function<bool(std::int32_t)>& on_token,
              const std::function<void(const std::string&)>& on_note = {});

}  // namespace sortie::trainer
