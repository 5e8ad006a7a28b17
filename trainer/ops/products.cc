#include "trainer/ops/products.h"

#include <map>
#include <vector>

#include "trainer/ops/backend.h"

namespace sortie::trainer::ops {
namespace {

/// The first line identifies the library and GPU; the others are a shape, a colon, an algorithm.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

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
    const std::vector<std::string_view> lines = lines_of(text);
    if (lines.empty()) continue;
    if (origin.empty()) origin = lines[0];
    if (lines[0] != origin) continue;
    for (const std::string_view line : std::span(lines).subspan(1))
      choices.try_emplace(line.substr(0, line.find(':')), line);
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
  return std::max<std::int64_t>(static_cast<std::int64_t>(lines_of(text).size()) - 1, 0);
}

}  // namespace sortie::trainer::ops
