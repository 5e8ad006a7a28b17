// Row-major matrix products by cuBLASLt.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "trainer/ops/fp8.h"
#include "trainer/ops/products.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer::ops::cuda {

/// C [m, n] = alpha op(A) op(B) (+ C) (+ bias [n] in every row), summed in f32. A is stored as
/// [m, k], or [k, m] if transposed; B as [k, n], or [n, k]. Rows have strides, in elements. In FP8
/// only B is transposed, sizes and strides are multiples of 16, and A or B is in E4M3.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  DType input = DType::f32;   // f32 or bf16, of A and B; u8: FP8 in the formats below
  DType output = DType::f32;  // of C and the bias: `input` or f32; for FP8 bf16 or f32
  Fp8Format a_format = Fp8Format::e4m3, b_format = Fp8Format::e4m3;
  bool a_transposed = false, b_transposed = false;
  std::int64_t a_row = 0, b_row = 0, c_row = 0;
  bool accumulate = false;
  bool bias = false;
  bool row_sums = false;  // also writes the sums of op(A)'s rows; not with a bias, not in FP8

  auto operator<=>(const Product&) const = default;
};

/// Addresses on the device. C overlaps neither A nor B.
struct Operands {
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;                          // 16-byte aligned; nullptr without
  float* row_sums = nullptr;                           // [m], 16-byte aligned; nullptr without
  const float *a_scale = nullptr, *b_scale = nullptr;  // of FP8: factors of the codes' values
  float alpha = 1.0f;
};

/// The products of one context. The algorithm of a product is chosen when its shape first occurs,
/// and kept. The same shapes, choices and library give the same bits on GPUs of one kind.
class Products {
 public:
  explicit Products(Device device);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Adds the product to the current stream. Returns false, without effect, if the library cannot
  /// compute it.
  bool try_run(ExecutionContext& context, const Product& product, const Operands& operands);
  /// The same, but throws DeviceError if the library cannot compute it.
  void run(ExecutionContext& context, const Product& product, const Operands& operands);

  /// Adds a product with row sums and then `rest`, or `apart`, which gives the same results in
  /// another way. When the shape first occurs, an existing choice (use_choices()) is followed. If
  /// there is none, both are timed and the faster one is chosen, provided that ProductOptions asks
  /// for timing and results are dropped; otherwise `apart` is. The choice is one of choices().
  void run_or(ExecutionContext& context, const Product& product, const Operands& operands,
              const std::function<void()>& rest, const std::function<void()>& apart);

  // As in trainer/ops/products.h.
  void set_options(const ProductOptions& options);
  std::string choices() const;
  Result<> use_choices(std::string_view text);
  void forget_choices();

 private:
  class State;
  const std::unique_ptr<State> state_;
};

}  // namespace sortie::trainer::ops::cuda
