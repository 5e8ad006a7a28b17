#include "trainer/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trainer/nn/random.h"

namespace sortie::trainer {

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t position) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;  // ties by index: the same choice everywhere
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
  double left = random_uniform(random_key(options.seed, "generate"), position) * total;
  for (std::size_t i = 0; i < kept; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

void generate(ExecutionContext& context, const LanguageModel& model,
              std::vector<std::int32_t> prompt, const SamplingOptions& options,
              const std::function<void(std::int32_t)>& on_token) {
  SORTIE_CHECK(!prompt.empty(), "generate needs a token to start from");
  const auto window = static_cast<std::size_t>(model.shape().sequence_length);
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    const std::size_t length = std::min(window, prompt.size());
    Tensor tokens = context.empty(DType::i32, {1, static_cast<std::int64_t>(length)});
    std::copy(prompt.end() - static_cast<std::ptrdiff_t>(length), prompt.end(),
              tokens.data<std::int32_t>());
    Graph graph(context, Graph::Mode::inference);
    const Tensor logits = model.last_logits(graph, tokens);
    const std::int32_t token =
        sample_token({logits.data<float>(), static_cast<std::size_t>(logits.elements())}, options,
                     static_cast<std::uint64_t>(i));
    if (token == options.stop_token) return;
    on_token(token);
    prompt.push_back(token);
  }
}

}  // namespace sortie::trainer
