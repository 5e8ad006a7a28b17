// How matrix products are computed where there are several ways to: on GPUs. On the CPU nothing
// happens here.
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
  /// Ways that are timed when a shape comes for the first time, which waits for the device: not
  /// while a stream is captured. 1: the one that the library thinks best is taken. Timed choices
  /// differ from run to run, and with them the last bits: share product_choices() among ranks and
  /// keep them with the checkpoint.
  int timed = 1;
  /// Nobody uses the results of products that are timed: one that adds to what was there may do so
  /// many times, and needs no memory of its own for it.
  bool dropped = false;
  /// f32 operands are rounded to TF32, 10 bits of mantissa, and multiplied on tensor cores.
  bool tf32 = false;
  /// The memory for logits of the LM head at a time, if it is enough for 256 rows: so many times
  /// the gradient of W, but within these bounds. Every chunk of rows reads and writes this gradient
  /// as a whole, which takes as long as its product where a chunk has a few hundred rows.
  std::int64_t logits_per_gradient = 2;
  std::int64_t least_logits_bytes = std::int64_t{512} << 20;
  std::int64_t most_logits_bytes = std::int64_t{1536} << 20;
};

/// Rows of the LM head whose f32 logits a GPU has at a time, of `rows` with `columns` each: as even
/// as they come, in units of 128. `gradient`: elements of W's, f32; 0 without one.
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

/// For products from now on.
void set_product_options(ExecutionContext& context, const ProductOptions& options);

/// The ways of all shapes that were multiplied, as lines of text. Empty on the CPU.
std::string product_choices(ExecutionContext& context);

/// From now on products of these shapes are computed in these ways, and have the same bits as where
/// the text comes from. ErrorCode::unsupported when it comes from another version of the library or
/// another kind of GPU, ErrorCode::checkpoint when it is none; nothing has changed then.
Result<> use_product_choices(ExecutionContext& context, std::string_view text);

/// As if no product had been computed yet.
void forget_product_choices(ExecutionContext& context);

/// The choices of several ranks as one text: of each shape that of the first that has it. Texts of
/// another library or GPU than the first one's, and empty ones, are left out.
std::string merge_product_choices(std::span<const std::string> texts);
/// The shapes that a text has choices for.
std::int64_t count_product_choices(std::string_view text);

}  // namespace sortie::trainer::ops
