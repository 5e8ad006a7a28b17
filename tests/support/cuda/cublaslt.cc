// cuBLASLt of the emulated GPUs. A product is converted to f32, summed along k in one or more
// parts, and rounded once. Algorithms differ in the number of parts, hence in the bits of the
// result, and in the alignment that they require. Partial sums are kept in the caller's workspace,
// which contains garbage before. The duration of a product by its GPU's clock is random: a choice
// by time differs in every process, as on a real GPU.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/base/check.h"
#include "tests/support/cuda/streams.h"

struct cublasLtContext {
  int device;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  std::uint64_t rows, cols;
  std::int64_t ld;
};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType scale;
  std::int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N, bias_type = -1;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  const float *scale_a = nullptr, *scale_b = nullptr;  // on the device; nullptr: 1
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::array<std::uint32_t, 4> alignment{256, 256, 256, 256};  // of A, B, C, D
};

namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;
using Desc = cublasLtMatmulDescOpaque_t;
constexpr std::uint64_t kMagic = 0x736f7274696c74;

/// The content of an opaque algorithm.
struct Algorithm {
  std::uint64_t magic = kMagic, parts = 1, alignment = 0, reduction = 0;
};

bool is_fp8(cudaDataType type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}
std::size_t bytes_of(cudaDataType type) {
  return is_fp8(type) ? 1 : type == CUDA_R_16BF ? 2 : 4;
}
/// Value of an FP8 code, by the formats' definition.
float value_of_code(std::uint8_t code, cudaDataType type) {
  const bool e4m3 = type == CUDA_R_8F_E4M3;
  const int width = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> width, mantissa = code & ((1 << width) - 1);
  const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
  if (e4m3 ? (code & 0x7f) == 0x7f : exponent == 31 && mantissa != 0) return NAN;
  if (!e4m3 && exponent == 31) return sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - bias - width);
  return sign * std::ldexp(static_cast<float>(mantissa + (1 << width)), exponent - bias - width);
}
float load(const void* data, cudaDataType type, std::size_t index) {
  if (is_fp8(type)) {
    static const auto tables = [] {
      std::array<std::array<float, 256>, 2> made{};
      for (std::size_t code = 0; code < 256; ++code) {
        made[0][code] = value_of_code(static_cast<std::uint8_t>(code), CUDA_R_8F_E4M3);
        made[1][code] = value_of_code(static_cast<std::uint8_t>(code), CUDA_R_8F_E5M2);
      }
      return made;
    }();
    return tables[type == CUDA_R_8F_E5M2][static_cast<const std::uint8_t*>(data)[index]];
  }
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[index];
  return __uint_as_float(std::uint32_t{static_cast<const std::uint16_t*>(data)[index]} << 16);
}
void store(void* data, cudaDataType type, std::size_t index, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[index] = value;
    return;
  }
  const std::uint32_t bits = __float_as_uint(value);
  static_cast<std::uint16_t*>(data)[index] = static_cast<std::uint16_t>(
      value != value ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
/// Rounds to the 10 bits of mantissa of TF32.
float as_tf32(float value) {
  return __uint_as_float((__float_as_uint(value) + 0x1000u) & ~0x1fffu);
}

/// A product without its addresses.
struct Shapes {
  Desc desc;
  Layout a, b, c, d;
  std::uint64_t m() const { return d.rows; }
  std::uint64_t n() const { return d.cols; }
  std::uint64_t k() const { return desc.transposed_a == CUBLAS_OP_N ? a.cols : a.rows; }
};

/// Conditions for products in FP8: compute capability 8.9 or newer; both operands contiguous along
/// k (real GPUs newer than 9.0 accept other forms); not two matrices in E5M2; sizes and leading
/// dimensions in units of 16.
cublasStatus_t check_fp8(const Shapes& s) {
  int device = 0, major = 0, minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  const bool newer = 10 * major + minor >= 89;
  const bool fit =
      s.m() % 16 == 0 && s.n() % 16 == 0 && s.k() % 16 == 0 && s.a.ld % 16 == 0 && s.b.ld % 16 == 0;
  const bool types = is_fp8(s.a.type) && is_fp8(s.b.type) &&
                     (s.a.type == CUDA_R_8F_E4M3 || s.b.type == CUDA_R_8F_E4M3) &&
                     s.c.type == s.d.type && (s.d.type == CUDA_R_16BF || s.d.type == CUDA_R_32F) &&
                     s.desc.scale == CUDA_R_32F && s.desc.compute == CUBLAS_COMPUTE_32F;
  const bool form = s.desc.transposed_a == CUBLAS_OP_T && s.desc.transposed_b == CUBLAS_OP_N;
  const auto bias_type = s.desc.bias_type == -1 ? CUDA_R_16BF : s.desc.bias_type;
  const bool epilogue = s.desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                        (s.desc.epilogue == CUBLASLT_EPILOGUE_BIAS && bias_type == CUDA_R_16BF);
  return newer && fit && types && form && epilogue ? CUBLAS_STATUS_SUCCESS
                                                   : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t check(const Shapes& s) {
  for (const Layout* layout : {&s.a, &s.b, &s.c, &s.d})
    if (layout->rows == 0 || layout->cols == 0 ||
        layout->ld < static_cast<std::int64_t>(layout->rows))
      return CUBLAS_STATUS_INVALID_VALUE;
  const bool plain_a = s.desc.transposed_a == CUBLAS_OP_N,
             plain_b = s.desc.transposed_b == CUBLAS_OP_N;
  if ((plain_a ? s.a.rows : s.a.cols) != s.m() || (plain_b ? s.b.cols : s.b.rows) != s.n() ||
      (plain_b ? s.b.rows : s.b.cols) != s.k() || s.c.rows != s.m() || s.c.cols != s.n())
    return CUBLAS_STATUS_INVALID_VALUE;
  if (is_fp8(s.a.type) || is_fp8(s.b.type)) return check_fp8(s);
  const bool narrow = s.a.type == CUDA_R_16BF;
  if (s.desc.scale != CUDA_R_32F || s.a.type != s.b.type || s.c.type != s.d.type ||
      (!narrow && s.d.type == CUDA_R_16BF) || (narrow && s.desc.compute != CUBLAS_COMPUTE_32F))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (s.desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  // Some versions and types of the library reject vectors.
  const bool sums = s.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  if ((s.desc.epilogue != CUBLASLT_EPILOGUE_BIAS && !sums) || s.m() == 1 || (sums && s.n() == 1) ||
      (s.desc.bias_type != -1 && s.desc.bias_type != s.d.type))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

Algorithm read(const cublasLtMatmulAlgo_t& words) {
  return {words.data[0], words.data[1], words.data[2], words.data[3]};
}
std::size_t workspace_of(const Shapes& s, const Algorithm& algorithm) {
  return algorithm.parts == 1 ? 0 : algorithm.parts * s.m() * s.n() * sizeof(float);
}
bool fits(std::uint64_t address_or_bytes, std::uint64_t alignment) {
  return address_or_bytes % alignment == 0;
}
bool lines_fit(const Shapes& s, std::uint64_t alignment) {
  for (const Layout* layout : {&s.a, &s.b, &s.c, &s.d})
    if (!fits(static_cast<std::uint64_t>(layout->ld) * bytes_of(layout->type),
              std::max<std::uint64_t>(alignment, bytes_of(layout->type))))
      return false;
  return true;
}

/// Advances the device's clock by a random time. Called from a stream of the device.
void take_some_time(int device) {
  emulated_cuda::Device& it = emulated_cuda::device(device);
  it.clock += std::chrono::microseconds(10 + it.random() % 1000);
}

/// The part that runs on the device.
struct Product {
  Shapes s;
  Algorithm algorithm;
  const void *a, *b, *c;
  void* d;
  float alpha, beta;
  float* partial;  // [parts, n, m] in the workspace

  /// Sums one part of k, column by column.
  void sum(std::uint64_t part, float* sums) const {
    const std::uint64_t m = s.m(), n = s.n(), k = s.k(), begin = k * part / algorithm.parts,
                        end = k * (part + 1) / algorithm.parts;
    const auto packed = [&](const void* data, const Layout& layout, bool across) {
      // Layout [k, rows] for A, [n, k] for B; `across`: memory has it already.
      return [=, this](std::uint64_t row, std::uint64_t line) {
        const float value = load(data, layout.type,
                                 across ? line * static_cast<std::uint64_t>(layout.ld) + row
                                        : row * static_cast<std::uint64_t>(layout.ld) + line);
        return s.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? as_tf32(value) : value;
      };
    };
    const auto from_a = packed(a, s.a, s.desc.transposed_a == CUBLAS_OP_N);
    const auto from_b = packed(b, s.b, s.desc.transposed_b == CUBLAS_OP_N);
    std::vector<float> lines((end - begin) * m);
    for (std::uint64_t i = begin; i < end; ++i)
      for (std::uint64_t row = 0; row < m; ++row) lines[(i - begin) * m + row] = from_a(row, i);
    std::fill_n(sums, m * n, 0.0f);
    for (std::uint64_t col = 0; col < n; ++col)
      for (std::uint64_t i = begin; i < end; ++i) {
        const float factor = from_b(i, col);
        const float* line = lines.data() + (i - begin) * m;
        float* out = sums + col * m;
        for (std::uint64_t row = 0; row < m; ++row) out[row] += line[row] * factor;
      }
    if (s.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB) sum_columns(part, end - begin, from_b);
  }
  /// Sums the columns of op(B), not of the result, into the bias pointer, in parts as well.
  template <class FromB>
  void sum_columns(std::uint64_t part, std::uint64_t lines, const FromB& from_b) const {
    auto* const to = const_cast<void*>(s.desc.bias);
    const std::uint64_t begin = s.k() * part / algorithm.parts;
    for (std::uint64_t col = 0; col < s.n(); ++col) {
      float sum = part == 0 ? 0.0f : load(to, bias_type(), col);
      for (std::uint64_t i = 0; i < lines; ++i) sum += from_b(begin + i, col);
      store(to, bias_type(), col, sum);
    }
  }
  static float scale(const float* on_device) { return on_device == nullptr ? 1.0f : *on_device; }
  cudaDataType bias_type() const { return is_fp8(s.a.type) ? CUDA_R_16BF : s.d.type; }
  void finish(const float* sums) const {
    const std::uint64_t m = s.m(), n = s.n();
    for (std::uint64_t col = 0; col < n; ++col)
      for (std::uint64_t row = 0; row < m; ++row) {
        float value = 0.0f;
        for (std::uint64_t part = 0; part < algorithm.parts; ++part)
          value += sums[(part * n + col) * m + row];
        value *= alpha * scale(s.desc.scale_a) * scale(s.desc.scale_b);
        if (beta != 0.0f)
          value += beta * load(c, s.c.type, col * static_cast<std::uint64_t>(s.c.ld) + row);
        if (s.desc.epilogue == CUBLASLT_EPILOGUE_BIAS) value += load(s.desc.bias, bias_type(), row);
        store(d, s.d.type, col * static_cast<std::uint64_t>(s.d.ld) + row, value);
      }
  }
};

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext{device};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "?";
}
std::size_t cublasLtGetVersion() {
  return 130000;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  *layout = new Layout{type, rows, cols, ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = new Desc{.compute = compute, .scale = scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}

namespace {

template <class T>
cublasStatus_t set(T& field, const void* value, std::size_t size) {
  if (size != sizeof field || value == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t size) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(desc->transposed_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(desc->transposed_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(desc->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(desc->bias, value, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(desc->scale_a, value, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(desc->scale_b, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(desc->bias_type, value, size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t size) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference->workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference->reductions, value, size);
    default:
      return set(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                 value, size);
  }
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Shapes shapes{*desc, *a, *b, *c, *d};
  if (const cublasStatus_t bad = check(shapes); bad != CUBLAS_STATUS_SUCCESS) return bad;
  const Algorithm algorithm = read(*algo);
  if (algorithm.magic != kMagic || algorithm.parts == 0 || algorithm.alignment == 0 ||
      algorithm.parts > shapes.k())
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!lines_fit(shapes, algorithm.alignment) ||
      (is_fp8(shapes.a.type) && algorithm.alignment < 16))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->algo = *algo;
  result->workspaceSize = workspace_of(shapes, algorithm);
  result->wavesCount = 1.0f;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = 0;
  const Shapes shapes{*desc, *a, *b, *c, *d};
  if (const cublasStatus_t bad = check(shapes); bad != CUBLAS_STATUS_SUCCESS) return bad;
  // Algorithms that need the most alignment are the fastest; long sums with few results are split.
  const bool few = shapes.k() > 16 * std::max(shapes.m(), shapes.n());
  for (const std::uint64_t parts : {few ? 3 : 1, few ? 1 : 3})
    for (const std::uint64_t alignment : {16, 4, 2})
      for (const std::uint64_t reduction :
           {CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_INPLACE,
            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_NONE}) {
        if (*found == asked) return CUBLAS_STATUS_SUCCESS;
        if ((parts == 1) != (reduction == CUBLASLT_REDUCTION_SCHEME_NONE)) continue;
        if ((reduction & ~std::uint64_t{preference->reductions}) != 0) continue;
        if (std::ranges::any_of(preference->alignment, [&](auto has) { return has < alignment; }))
          continue;
        const cublasLtMatmulAlgo_t algo{{kMagic, parts, alignment, reduction}};
        if (cublasLtMatmulAlgoCheck(handle, desc, a, b, c, d, &algo, &results[*found]) !=
                CUBLAS_STATUS_SUCCESS ||
            results[*found].workspaceSize > preference->workspace)
          continue;
        ++*found;
      }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                              cublasLtMatrixLayout_t b, const void* beta, const void* c_data,
                              cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  int device = 0;
  if (handle == nullptr || cudaGetDevice(&device) != cudaSuccess || device != handle->device)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (algo == nullptr || alpha == nullptr || beta == nullptr || a_data == nullptr ||
      b_data == nullptr || d_data == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  cublasLtMatmulHeuristicResult_t checked;
  if (const cublasStatus_t bad = cublasLtMatmulAlgoCheck(handle, desc, a, b, c, d, algo, &checked);
      bad != CUBLAS_STATUS_SUCCESS)
    return bad;
  const auto address = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
  Product product{.s = {*desc, *a, *b, *c, *d},
                  .algorithm = read(*algo),
                  .a = a_data,
                  .b = b_data,
                  .c = c_data,
                  .d = d_data,
                  .alpha = *static_cast<const float*>(alpha),
                  .beta = *static_cast<const float*>(beta),
                  .partial = static_cast<float*>(workspace)};
  if (checked.workspaceSize > workspace_bytes || !fits(address(workspace), 16) ||
      (product.beta != 0.0f && c_data == nullptr) || (c_data == d_data && c->ld != d->ld) ||
      (desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT && desc->bias == nullptr))
    return CUBLAS_STATUS_INVALID_VALUE;
  // The library's kernels would fault, or read other data.
  for (const void* data : {a_data, b_data, c_data, static_cast<const void*>(d_data)})
    SORTIE_CHECK(fits(address(data), product.algorithm.alignment),
                 "a product of operands that are less aligned than its algorithm needs: {} bytes",
                 product.algorithm.alignment);
  if (product.algorithm.parts == 1) {
    emulated_cuda::enqueue(stream, [product, workspace, workspace_bytes, device] {
      take_some_time(device);
      if (workspace != nullptr)
        std::memset(workspace, 0xff, std::min<std::size_t>(workspace_bytes, 256));
      std::vector<float> sums(product.s.m() * product.s.n());
      product.sum(0, sums.data());
      product.finish(sums.data());
    });
    return CUBLAS_STATUS_SUCCESS;
  }
  // Two kernels, so that changes of the workspace by another stream in between are noticed.
  emulated_cuda::enqueue(stream, [product, checked, device] {
    take_some_time(device);
    std::memset(product.partial, 0xff, checked.workspaceSize);
    for (std::uint64_t part = 0; part < product.algorithm.parts; ++part)
      product.sum(part, product.partial + part * product.s.m() * product.s.n());
  });
  emulated_cuda::enqueue(stream, [product] { product.finish(product.partial); });
  return CUBLAS_STATUS_SUCCESS;
}
