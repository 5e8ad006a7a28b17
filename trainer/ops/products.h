// Selects how GPUs compute matrix products, where the library has several algorithms. No-op on the
// CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

struct ProductOptions {
  /// Algorithms that are timed when a shape is multiplied for the first time. Timing waits for the
  /// device, so it must not happen during a capture. 1: no timing, the library's first suggestion
  /// is used. Timed choices differ from run to run, and with them the last bits: share
  /// product_choices() among ranks and keep them with the checkpoint.
  int timed = 1;
  /// The results of timed products are not used: a product that adds to its destination may then do
  /// so many times, and needs no scratch memory for timing.
  bool dropped = false;
  /// f32 operands are rounded to TF32, 10 bits of mantissa, and multiplied on tensor cores.
  bool tf32 = false;
  /// Memory for the f32 logits of a chunk of the LM head, as a multiple of the gradient of W,
  /// within these bounds but at least enough for 256 rows. Every chunk of rows reads and writes the
  /// whole gradient, which takes as long as its product if the chunk has a few hundred rows.
  std::int64_t logits_per_gradient = 2;
  std::int64_t least_logits_bytes = std::int64_t{512} << 20;
  std::int64_t most_logits_bytes = std::int64_t{1536} << 20;
};

/// Rows of the LM head whose f32 logits a GPU keeps at a time, of `rows` with `columns` each:
/// chunks of nearly equal size, in units of 128. `gradient`: elements of W's gradient, f32; 0
/// without one.
constexpr std::int64_t head_chunk_rows(const ProductOptions& options, std::int64_t rows,
                                       std::int64_t columns, std::int64_t gradient) {
  constexpr std::int64_t kUnit = 128;
  constexpr std::int64_t kElement = sizeof(float);
  const std::int64_t line = kElement * std::max<std::int64_t>(columns, 1);
  const std::int64_t bytes = std::clamp(options.logits_per_gradient * kElement * gradient,
                                        options.least_logits_bytes, options.most_logits_bytes);
  const std::int64_t most = std::max(2 * kUnit, bytes / line / kUnit * kUnit);
  const std::int64_t chunks = (rows + most - 1) / most;
  const std::int64_t even = (rows + chunks - 1) / chunks;
  return std::min(rows, (even + kUnit - 1) / kUnit * kUnit);
}

/// Applies to products from now on.
void set_product_options(ExecutionContext& context, const ProductOptions& options);

/// The algorithms of all shapes multiplied so far, as lines of text. Empty on the CPU.
std::string product_choices(ExecutionContext& context);

/// Makes products of these shapes use these algorithms from now on, which gives the same bits as in
/// the run that wrote the text. ErrorCode::unsupported if the text is from another version of the
/// library or another kind of GPU, ErrorCode::checkpoint if it is malformed. Changes nothing on
/// failure.
Result<> use_product_choices(ExecutionContext& context, std::string_view text);

/// Drops all choices, as if no product had been computed yet.
void forget_product_choices(ExecutionContext& context);

/// Merges the choices of several ranks into one text: for each shape, that of the first rank that
/// has one. Skips empty texts, and texts of another library or GPU than the first.
std::string merge_product_choices(std::span<const std::string> texts);
/// Number of shapes that a text has choices for.
std::int64_t count_product_choices(std::string_view text);

}  // namespace sortie::trainer::ops
