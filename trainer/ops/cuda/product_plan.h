// The description of a product for cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <memory>
#include <string>

#include "trainer/ops/cuda/product_choices.h"

namespace sortie::trainer::ops::cuda {

/// Throws DeviceError unless `status` is success. The message names what failed and the library's
/// name of the error.
void check(cublasStatus_t status, const char* what);

template <class T, auto Destroy>
struct Destroyer {
  using pointer = T;
  void operator()(T it) const { (void)Destroy(it); }
};
template <class T, auto Destroy>
using Owned = std::unique_ptr<T, Destroyer<T, Destroy>>;
using ProductHandle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using ProductLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using ProductDesc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using ProductPreference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// Descriptors of a product, and its algorithm. The library's matrices are column-major, so our
/// matrices of rows are transposed ones: it computes C^T = op(B)^T op(A)^T, where B comes first and
/// m and n are exchanged.
struct ProductPlan {
  explicit ProductPlan(const ProductKey& key);
  /// 16-byte aligned; the library considers its alignment when it chooses an algorithm.
  void set_bias(const void* bias) const;
  void set_row_sums(float* sums) const;
  /// For a product in FP8, on the device: the factors of the values of A and B.
  void set_scales(const float* a, const float* b) const;

  ProductDesc desc;
  ProductLayout first, second, result;
  float beta = 0.0f;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
  bool possible = false;  // the library has an algorithm, and it is to be used
};

/// For messages.
std::string describe(const Product& product);

/// What an algorithm must observe: the workspace's size, the operands' alignments, the kind of
/// reduction.
ProductPreference preference_of(const ProductKey& key, std::size_t workspace_bytes);

}  // namespace sortie::trainer::ops::cuda
