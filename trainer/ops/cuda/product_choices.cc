#include "trainer/ops/cuda/product_choices.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <iterator>
#include <optional>

namespace sortie::trainer::ops::cuda {
namespace {

constexpr std::string_view kTitle =
    "# m n k input output transposed rows add bias alignment tf32: "
    "algorithm of ";
constexpr std::string_view kApart = " apart";
constexpr std::size_t kFields = 16;
constexpr std::size_t kWords = std::size(cublasLtMatmulAlgo_t{}.data);

using Fields = std::array<std::int64_t, kFields>;

/// What the library adds to the product or computes with it.
enum Epilogue : std::int64_t { with_nothing, with_bias, with_row_sums };

/// f32, bf16, then FP8 with A and B in E4M3, A in E5M2, B in E5M2.
enum Input : std::int64_t { in_f32, in_bf16, in_e4m3, a_in_e5m2, b_in_e5m2 };

std::int64_t input_of(const Product& p) {
  if (p.input != DType::u8) return p.input == DType::bf16 ? in_bf16 : in_f32;
  if (p.a_format == Fp8Format::e5m2) return a_in_e5m2;
  return p.b_format == Fp8Format::e5m2 ? b_in_e5m2 : in_e4m3;
}

Fields fields_of(const ProductKey& key) {
  const Product& p = key.product;
  return {p.m,
          p.n,
          p.k,
          input_of(p),
          p.output == DType::bf16,
          p.a_transposed,
          p.b_transposed,
          p.a_row,
          p.b_row,
          p.c_row,
          p.accumulate,
          p.row_sums ? with_row_sums
          : p.bias   ? with_bias
                     : with_nothing,
          key.a_alignment,
          key.b_alignment,
          key.c_alignment,
          key.tf32};
}

ProductKey key_of(const Fields& f) {
  const auto type = [](std::int64_t narrow) { return narrow != 0 ? DType::bf16 : DType::f32; };
  const auto format = [&](Input wide) { return f[3] == wide ? Fp8Format::e5m2 : Fp8Format::e4m3; };
  return {.product = {.m = f[0],
                      .n = f[1],
                      .k = f[2],
                      .input = f[3] > in_bf16 ? DType::u8 : type(f[3]),
                      .output = type(f[4]),
                      .a_format = format(a_in_e5m2),
                      .b_format = format(b_in_e5m2),
                      .a_transposed = f[5] != 0,
                      .b_transposed = f[6] != 0,
                      .a_row = f[7],
                      .b_row = f[8],
                      .c_row = f[9],
                      .accumulate = f[10] != 0,
                      .bias = f[11] == with_bias,
                      .row_sums = f[11] == with_row_sums},
          .a_alignment = static_cast<int>(f[12]),
          .b_alignment = static_cast<int>(f[13]),
          .c_alignment = static_cast<int>(f[14]),
          .tf32 = f[15] != 0};
}

/// Reads the next number of a line, whose numbers are separated by one space.
template <class T>
bool take(std::string_view& line, T& number, int base) {
  if (line.starts_with(' ')) line.remove_prefix(1);
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number, base);
  if (error != std::errc()) return false;
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  return true;
}

std::optional<std::pair<ProductKey, ProductChoice>> parse(std::string_view line) {
  Fields fields{};
  cublasLtMatmulAlgo_t algorithm{};
  for (std::int64_t& field : fields)
    if (!take(line, field, 10) || field < 0) return std::nullopt;
  if (!line.starts_with(':')) return std::nullopt;
  line.remove_prefix(1);
  if (line == kApart) return std::pair(key_of(fields), std::nullopt);
  for (std::uint64_t& word : algorithm.data)
    if (!take(line, word, 16)) return std::nullopt;
  if (!line.empty()) return std::nullopt;
  return std::pair(key_of(fields), algorithm);
}

}  // namespace

std::string write_choices(std::string_view origin, const ProductChoices& choices) {
  std::string text = fmt::format("{}{}\n", kTitle, origin);
  for (const auto& [key, algorithm] : choices) {
    std::string_view between;
    for (const std::int64_t field : fields_of(key)) {
      fmt::format_to(std::back_inserter(text), "{}{}", between, field);
      between = " ";
    }
    text += ':';
    if (!algorithm) text += kApart;
    if (algorithm)
      for (const std::uint64_t word : algorithm->data)
        fmt::format_to(std::back_inserter(text), " {:x}", word);
    text += '\n';
  }
  return text;
}

Result<ProductChoices> read_choices(std::string_view origin, std::string_view text) {
  ProductChoices choices;
  for (bool first = true; !text.empty(); first = false) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!first) {
      const auto choice = parse(line);
      if (!choice)
        return fail(ErrorCode::checkpoint,
                    fmt::format("choices of products: a line is broken: {}", line));
      choices.insert(*choice);
      continue;
    }
    if (!line.starts_with(kTitle))
      return fail(ErrorCode::checkpoint, "choices of products: this is another kind of text");
    if (line.substr(kTitle.size()) != origin)
      return fail(ErrorCode::unsupported,
                  fmt::format("choices of products are those of {}; here it is {}",
                              line.substr(kTitle.size()), origin));
  }
  return choices;
}

}  // namespace sortie::trainer::ops::cuda
