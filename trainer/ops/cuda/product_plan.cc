#include "trainer/ops/cuda/product_plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/tensor/device_module.h"

namespace sortie::trainer::ops::cuda {
namespace {

cudaDataType_t type_of(DType dtype, Fp8Format format = Fp8Format::e4m3) {
  if (dtype == DType::u8) return format == Fp8Format::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
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

ProductLayout layout_of(cudaDataType_t type, std::int64_t rows, std::int64_t cols,
                        std::int64_t stride) {
  SORTIE_CHECK(rows > 0 && cols > 0, "a product with a matrix [{}, {}]", rows, cols);
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(cols),
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
                     product.m, product.k, product.k, product.n,
                     product.input == DType::u8 ? "FP8" : dtype_name(product.input),
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
  if (p.bias || p.row_sums)
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
        static_cast<std::uint32_t>(p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB));
  const cudaDataType_t a = type_of(p.input, p.a_format), b = type_of(p.input, p.b_format);
  first = p.b_transposed ? layout_of(b, p.n, p.k, p.b_row) : layout_of(b, p.k, p.n, p.b_row);
  second = p.a_transposed ? layout_of(a, p.k, p.m, p.a_row) : layout_of(a, p.m, p.k, p.a_row);
  result = layout_of(type_of(p.output), p.m, p.n, p.c_row);
  beta = p.accumulate ? 1.0f : 0.0f;
}

void ProductPlan::set_bias(const void* bias) const {
  set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

void ProductPlan::set_row_sums(float* sums) const {
  set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(sums));
}

void ProductPlan::set_scales(const float* a, const float* b) const {
  set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(b));
  set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(a));
}

ProductPreference preference_of(const ProductKey& key, std::size_t workspace_bytes) {
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "what a product asks for");
  ProductPreference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{workspace_bytes});
  // Split sums are kept in f32 and added by a separate kernel, with the same bits in every run.
  // Parts in the type of the result would be rounded in between.
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
