// A oneDNN matrix product of fixed shape, layouts and types, created once and cached by its
// context. Included by files of this folder only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

/// C [m, n] (+)= A [m, k] . B [k, n] (+ bias [n]). Strides in elements, between rows and columns.
struct MatmulSpec {
  std::int64_t m = 0, n = 0, k = 0;
  DType input = DType::f32;  // of A and B
  DType output = DType::f32;
  std::int64_t a_row = 0, a_col = 1;
  std::int64_t b_row = 0, b_col = 1;  // both 0: B has the layout that oneDNN prefers
  std::int64_t c_row = 0;
  bool bias = false;           // f32
  bool accumulate = false;     // C += instead of C =
  bool single_thread = false;  // for runs inside a parallel region

  bool operator==(const MatmulSpec&) const = default;
};
struct MatmulSpecHash {
  std::size_t operator()(const MatmulSpec& spec) const;
};

class Matmul {
 public:
  /// `sizes_only`: only sizes and layouts are needed. A product that this CPU does not support,
  /// such as bf16, then has no scratch memory and a row-major B.
  Matmul(const dnnl::engine& engine, const MatmulSpec& spec, int threads, bool sizes_only = false);

  /// `scratch` has scratch_bytes() bytes; it may be nullptr if that is 0. Inside a parallel region
  /// every thread passes its own number as `thread`.
  void run(const dnnl::stream& stream, const void* a, const void* b, void* c, const float* bias,
           void* scratch, int thread = 0) const;

  std::size_t scratch_bytes() const { return scratch_.get_size(); }
  /// Layout of B if the spec leaves it open.
  const dnnl::memory::desc& packed_desc() const { return b_; }

 private:
  /// oneDNN's wrappers of the operands, kept because creating them costs as much as a small
  /// product.
  struct Operands {
    dnnl::memory a, b, c, bias, scratch;
  };

  dnnl::matmul product_;
  dnnl::memory::desc b_, scratch_;
  mutable std::vector<Operands> operands_;  // one per thread
};

/// Returns the product of this spec, created on first use. It stays valid for its holders after the
/// cache has dropped it. Not thread-safe: call before a parallel region.
std::shared_ptr<const Matmul> find_matmul(ExecutionContext& context, const MatmulSpec& spec);

/// Looks up and runs a product with all threads of the context.
void run_matmul(ExecutionContext& context, const MatmulSpec& spec, const void* a, const void* b,
                void* c, const float* bias = nullptr);

/// Rearranges B [k, n] with the given strides into the layout of `packed`.
void pack(ExecutionContext& context, DType dtype, const void* from, std::int64_t row,
          std::int64_t col, const dnnl::memory::desc& packed, void* to);

}  // namespace sortie::trainer::ops
