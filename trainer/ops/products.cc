#include "trainer/ops/products.h"

#include <map>

#include "common/base/split.h"
#include "trainer/ops/backend.h"

namespace sortie::trainer::ops {

void set_product_options(ExecutionContext& context, const ProductOptions& options) {
  SORTIE_CHECK(options.timed >= 1, "{} ways to time", options.timed);
  context.backend().set_product_options(options);
}

std::string product_choices(ExecutionContext& context) {
  return context.backend().product_choices();
}

Result<> use_product_choices(ExecutionContext& context, std::string_view text) {
  return context.backend().use_product_choices(context, text);
}

void forget_product_choices(ExecutionContext& context) {
  context.backend().forget_product_choices();
}

std::string merge_product_choices(std::span<const std::string> texts) {
  std::string_view origin;
  std::map<std::string_view, std::string_view> choices;
  for (const std::string& text : texts) {
    // The first line identifies the library and GPU; the others are a shape, a colon, an algorithm.
    std::string_view rest = text;
    if (rest.empty()) continue;
    const std::string_view own_origin = take_line(rest);
    if (origin.empty()) origin = own_origin;
    if (own_origin != origin) continue;
    while (!rest.empty()) {
      const std::string_view line = take_line(rest);
      choices.try_emplace(line.substr(0, line.find(':')), line);
    }
  }
  if (origin.empty()) return {};
  std::string merged(origin);
  merged += '\n';
  for (const auto& [shape, line] : choices) {
    merged += line;
    merged += '\n';
  }
  return merged;
}

std::int64_t count_product_choices(std::string_view text) {
  std::int64_t lines = 0;
  for (; !text.empty(); ++lines) take_line(text);
  return std::max<std::int64_t>(lines - 1, 0);
}

}  // namespace sortie::trainer::ops
