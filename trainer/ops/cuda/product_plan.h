// A product as cuBLASLt is told of it.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <memory>
#include <string>

#include "trainer/ops/cuda/product_choices.h"

namespace sortie::trainer::ops::cuda {

/// Throws DeviceError, which says what failed and the library's name of the error.
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

/// Its descriptions, and how it is computed. A matrix of rows is one of columns, transposed, to the
/// library: C^T = op(B)^T op(A)^T, where B comes first and m and n change places.
struct ProductPlan {
  explicit ProductPlan(const ProductKey& key);
  /// 16-byte aligned; the library looks at its alignment when it chooses an algorithm.
  void set_bias(const void* bias) const;
  void set_row_sums(float* sums) const;
  /// Of a product in FP8, on the device: what the values of A and B are multiplied by.
  void set_scales(const float* a, const float* b) const;

  ProductDesc desc;
  ProductLayout first, second, result;
  float beta = 0.0f;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
  bool possible = false;  // the library has an algorithm, which is to be used
};

/// For messages.
std::string describe(const Product& product);

/// What an algorithm may use of a product's memory.
ProductPreference preference_of(const ProductKey& key, std::size_t workspace_bytes);

}  // namespace sortie::trainer::ops::cuda
