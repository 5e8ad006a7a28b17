// Generates text with a model, token by token.
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
  double temperature = 0.8;  // 0 = always the most likely token
  std::int64_t top_k = 40;   // 0 = all tokens
  double top_p = 1.0;        // of those, the most likely that together have this share
  std::uint64_t seed = 1;
  std::vector<std::int32_t> stop_tokens{};  // each ends the text and is not passed to on_token
  bool cache = true;   // cache keys and values; otherwise every token recomputes the window
  bool graphs = true;  // on a GPU, each token runs as one CUDA graph
};

/// Returns the index of the chosen token. `position` is the key of the random number, so that a
/// text depends only on (seed, prompt).
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position);

/// Computes the logits after a growing text. Once the text is longer than the model's sequence
/// length, the model sees a window of its last tokens: the window begins again at half the sequence
/// length and grows. The window is the same with and without a cache.
class NextToken {
 public:
  /// The text may have up to `most_tokens` tokens. The cache has memory for this many, or for the
  /// sequence length if it is smaller. The logits do not depend on it.
  NextToken(ExecutionContext& context, const LanguageModel& model, bool cache, bool graphs = true,
            std::int64_t most_tokens = std::numeric_limits<std::int64_t>::max());
  /// Returns the logits [1, vocab_size] f32 after `text`, which must begin with the text of the
  /// previous call and be longer. The result is valid until the next call.
  Tensor logits(const std::vector<std::int32_t>& text);
  /// Whether the last token ran as one graph on a GPU. For tests.
  bool was_graph() const { return was_graph_; }
  std::optional<std::string> take_graph_failure() { return one_token_.take_failure(); }

 private:
  Tensor logits_after_one(std::int32_t token);

  ExecutionContext& context_;
  const LanguageModel& model_;
  std::int64_t window_;
  std::optional<KvCache> cache_;
  std::int64_t begin_ = 0;  // of the window, as an index into the text
  // For one new token after others that are in the cache.
  RepeatedWork one_token_{"the pass of a token"};
  std::int64_t keys_ = 0;
  Tensor token_, place_, logits_;
  bool was_graph_ = false;
};

/// Continues `prompt`, which must have at least one token. Passes each new token to `on_token` at
/// once; the text ends if this returns false. Calls `on_note` with the reason if tokens can not run
/// as CUDA graphs.
void generate(ExecutionContext& context, const LanguageModel& model,
              std::vector<std::int32_t> prompt, const SamplingOptions& options,
              const std::function<bool(std::int32_t)>& on_token,
              const std::function<void(const std::string&)>& on_note = {});

}  // namespace sortie::trainer
