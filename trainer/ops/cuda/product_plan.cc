#include "trainer/ops/cuda/product_plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/tensor/device_module.h"

namespace sortie::trainer::ops::cuda {
namespace {

cudaDataType_t type_of(DType dtype) {
  SORTIE_CHECK(dtype == DType::f32 || dtype == DType::bf16, "a product in {}", dtype_name(dtype));
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

template <class T>
void set(const ProductDesc& desc, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof value),
        "the description of a product");
}
template <class T>
void set(const ProductPreference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "what a product asks for");
}

ProductLayout layout_of(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  SORTIE_CHECK(rows > 0 && cols > 0, "a product with a matrix [{}, {}]", rows, cols);
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<std::uint64_t>(cols),
                                   static_cast<std::uint64_t>(rows),
                                   rows == 1 ? std::max(stride, cols) : stride),
        "the layout of a matrix");
  return ProductLayout(layout);
}

}  // namespace

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(
        fmt::format("GPU: {} failed: cuBLASLt says {}", what, cublasLtGetStatusName(status)));
}

std::string describe(const Product& product) {
  return fmt::format("a product [{}, {}] x [{}, {}] of {} to {}, rows of {}, {} and {} elements",
                     product.m, product.k, product.k, product.n, dtype_name(product.input),
                     dtype_name(product.output), product.a_row, product.b_row, product.c_row);
}

ProductPlan::ProductPlan(const ProductKey& key) {
  const Product& p = key.product;
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(
            &made, key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "the description of a product");
  desc = ProductDesc(made);
  const auto transform = [](bool transposed) -> std::int32_t {
    return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(desc, CUBLASLT_MATMUL_DESC_TRANSA, transform(p.b_transposed));
  set(desc, CUBLASLT_MATMUL_DESC_TRANSB, transform(p.a_transposed));
  if (p.bias)
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS));
  first = p.b_transposed ? layout_of(p.input, p.n, p.k, p.b_row)
                         : layout_of(p.input, p.k, p.n, p.b_row);
  second = p.a_transposed ? layout_of(p.input, p.k, p.m, p.a_row)
                          : layout_of(p.input, p.m, p.k, p.a_row);
  result = layout_of(p.output, p.m, p.n, p.c_row);
  beta = p.accumulate ? 1.0f : 0.0f;
}

void ProductPlan::set_bias(const void* bias) const {
  set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

ProductPreference preference_of(const ProductKey& key, std::size_t workspace_bytes) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "what a product asks for");
  ProductPreference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
  // Sums whose parts are kept in f32 and added by a kernel of its own: the same bits in every run.
  // Parts in the type of the result would round on the way.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto alignment = [](int bytes) { return static_cast<std::uint32_t>(bytes); };
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(key.b_alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(key.a_alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(key.c_alignment));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(key.c_alignment));
  return preference;
}

}  // namespace sortie::trainer::ops::cuda
