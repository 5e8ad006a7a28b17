#include "trainer/inference/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "trainer/ops/copy.h"
#include "trainer/ops/tokens.h"
#include "trainer/random/random.h"

namespace sortie::trainer {

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;  // ties by index: the same choice on every machine
  };
  if (options.temperature <= 0) return *std::min_element(order.begin(), order.end(), likelier);

  std::size_t kept = order.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    likelier);
  const double top = logits[static_cast<std::size_t>(order[0])];
  std::vector<double> weights(kept);
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    weights[i] = std::exp((logits[static_cast<std::size_t>(order[i])] - top) / options.temperature);
    total += weights[i];
  }
  // Keeps the most likely tokens up to the one that reaches the share top_p, inclusive.
  if (options.top_p < 1.0) {
    double sum = 0;
    std::size_t count = 0;
    while (count < kept && sum < options.top_p * total) sum += weights[count++];
    kept = std::max<std::size_t>(count, 1);
    total = count > 0 ? sum : weights[0];
  }
  double left = random_uniform(random_key(options.seed, "generate"), position) * total;
  for (std::size_t i = 0; i < kept; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

NextToken::NextToken(ExecutionContext& context, const LanguageModel& model, bool cache, bool graphs,
                     std::int64_t most_tokens)
    : context_(context), model_(model), window_(model.shape().sequence_length) {
  if (cache) cache_.emplace(KvCache::capacity_for(most_tokens, window_));
  if (!graphs) one_token_.never_capture();
}

/// Does the same work for each token. The token and its position are in device memory.
Tensor NextToken::logits_after_one(std::int32_t token) {
  if (!token_.defined()) {
    token_ = context_.empty(DType::i32, {1, 1});
    place_ = context_.empty(DType::i32, {1, 1});
    logits_ = context_.empty(DType::f32, {1, model_.shape().vocab_size});
  }
  ops::write_scalar<std::int32_t>(context_, token, token_);
  ops::write_scalar<std::int32_t>(context_, static_cast<std::int32_t>(cache_->length()), place_);
  if (std::exchange(keys_, cache_->keys_of(1)) != cache_->keys_of(1)) one_token_.forget();
  const auto pass = [&] {
    cache_->begin(1, place_);  // again if a capture failed
    Graph graph(context_, Graph::Mode::inference);
    graph.set_cache(&*cache_);
    ForwardContext forward;
    forward.positions = place_;
    ops::copy(context_, model_.last_logits(graph, token_, forward), logits_);
  };
  was_graph_ = one_token_.run(context_, pass) == RepeatedWork::Done::as_graph;
  if (was_graph_) cache_->begin(1, place_);
  cache_->end();
  return logits_;
}

Tensor NextToken::logits(const std::vector<std::int32_t>& text) {
  const auto size = static_cast<std::int64_t>(text.size());
  if (size - begin_ > window_) {
    begin_ = size - std::max<std::int64_t>(window_ / 2, 1);
    if (cache_) cache_->clear();
  }
  const std::int64_t known = cache_ ? cache_->length() : 0;
  const std::int64_t count = size - begin_ - known;
  SORTIE_CHECK(count > 0, "a text of {} tokens has not grown", size);
  if (known > 0 && count == 1) return logits_after_one(text.back());
  was_graph_ = false;
  const Tensor tokens = ops::tensor_from_host<std::int32_t>(
      context_, std::span(text).last(static_cast<std::size_t>(count)), {1, count});
  ForwardContext forward;
  forward.positions = context_.empty(DType::i32, {1, count});
  ops::count_positions(context_, known, forward.positions);
  Graph graph(context_, Graph::Mode::inference);
  if (!cache_) return model_.last_logits(graph, tokens, forward);
  cache_->begin(count, forward.positions);
  graph.set_cache(&*cache_);
  Tensor logits = model_.last_logits(graph, tokens, forward);
  cache_->end();
  return logits;
}

void generate(ExecutionContext& context, const LanguageModel& model,
              std::vector<std::int32_t> prompt, const SamplingOptions& options,
              const std::function<bool(std::int32_t)>& on_token,
              const std::function<void(const std::string&)>& on_note) {
  SORTIE_CHECK(!prompt.empty(), "generate needs a token to start from");
  NextToken next(context, model, options.cache, options.graphs,
                 static_cast<std::int64_t>(prompt.size()) + options.max_tokens);
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    const Tensor logits = next.logits(prompt);
    if (const auto failure = next.take_graph_failure(); failure && on_note) on_note(*failure);
    const std::int32_t token =
        sample_token(ops::copy_to_host<float>(context, logits.view({logits.elements()})), options,
                     static_cast<std::uint64_t>(i));
    if (std::ranges::find(options.stop_tokens, token) != options.stop_tokens.end() ||
        !on_token(token))
      return;
    prompt.push_back(token);
  }
}

}  // namespace sortie::trainer
