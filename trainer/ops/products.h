// How matrix products are computed where a library has several ways to: on GPUs. On the CPU
// nothing happens here.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

struct ProductOptions {
  /// Ways that are timed when a shape comes for the first time, which waits for the device; 1: the
  /// one that the library thinks best is taken. Timed choices differ from run to run, and with them
  /// the last bits: share product_choices() among ranks and keep them with the checkpoint.
  int timed = 1;
  /// f32 operands are rounded to TF32, 10 bits of mantissa, and multiplied on tensor cores.
  bool tf32 = false;
};

/// For products from now on.
void set_product_options(ExecutionContext& context, const ProductOptions& options);

/// The ways of all shapes that were multiplied, as lines of text. Empty on the CPU.
std::string product_choices(ExecutionContext& context);

/// From now on products of these shapes are computed in these ways, and have the same bits as where
/// the text comes from. ErrorCode::unsupported when it comes from another version of the library or
/// another kind of GPU, ErrorCode::checkpoint when it is none; nothing has changed then.
Result<> use_product_choices(ExecutionContext& context, std::string_view text);

}  // namespace sortie::trainer::ops
