// cuBLASLt of the emulated GPUs: compares products with plain sums, and checks what it rejects.
#include <cublasLt.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "trainer/tensor/dtype.h"

namespace sortie::trainer {
namespace {

bool is_fp8(cudaDataType type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}
std::size_t size_of(cudaDataType type) {
  return is_fp8(type) ? 1 : type == CUDA_R_16BF ? 2 : 4;
}

/// A product of column-major matrices, D [m, n] = 2 op(A) op(B) + C. Tests change single members.
struct Example {
  std::uint64_t m = 5, n = 3, k = 20;
  cublasOperation_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  cudaDataType input = CUDA_R_32F, c_type = CUDA_R_32F, d_type = CUDA_R_32F;
  cudaDataType input_b = CUDA_R_32F;  // if `input` is FP8
  std::int64_t gap = 0;               // between columns
  std::int64_t ld_a = 0;              // 0: number of rows plus the gap
  std::uint64_t n_of_b = 0;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::int32_t bias_type = -1;
  bool bias_is_there = true;
  std::uint64_t workspace_bytes = 4096;
  std::size_t workspace_offset = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK, alignment = 256;
  int algorithm = 0;  // index into the heuristic's results
  int device = 0;     // current device when the product is requested
  bool broken_words = false;
};

/// Small whole numbers, which bf16 represents and whose sums do not depend on the order.
float number(std::uint64_t row, std::uint64_t col, int seed) {
  return static_cast<float>(static_cast<int>((row * 7 + col * 3 + seed) % 3) - 1);
}

struct Memory {
  Memory(const std::vector<float>& values, cudaDataType type) : bytes(values.size() * 4) {
    std::vector<std::uint16_t> narrow;
    for (const float value : values) narrow.push_back(bf16(value).bits);
    std::vector<std::uint8_t> codes;  // codes of 0, 1 and -1, the only results of number()
    for (const float value : values)
      codes.push_back(
          static_cast<std::uint8_t>((value < 0 ? 0x80 : 0) | (value == 0               ? 0
                                                              : type == CUDA_R_8F_E4M3 ? 7 << 3
                                                                                       : 15 << 2)));
    REQUIRE(cudaMalloc(&data, bytes) == cudaSuccess);
    const void* from = type == CUDA_R_32F ? static_cast<const void*>(values.data())
                       : is_fp8(type)     ? static_cast<const void*>(codes.data())
                                          : narrow.data();
    cudaMemcpy(data, from, values.size() * size_of(type), cudaMemcpyHostToDevice);
    cudaDeviceSynchronize();
  }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::vector<float> values(cudaDataType type) const {
    std::vector<std::byte> copy(bytes);
    cudaMemcpy(copy.data(), data, bytes, cudaMemcpyDeviceToHost);
    std::vector<float> values(bytes / 4);
    for (std::size_t i = 0; i < values.size(); ++i) {
      bf16 narrow;
      std::memcpy(&narrow, copy.data() + 2 * i, 2);
      if (type == CUDA_R_32F)
        std::memcpy(&values[i], copy.data() + 4 * i, 4);
      else
        values[i] = static_cast<float>(narrow);
    }
    return values;
  }
  void* data = nullptr;
  std::size_t bytes;
};

struct Outcome {
  int found = 0;  // number of algorithms
  cublasStatus_t heuristic = CUBLAS_STATUS_SUCCESS, status = CUBLAS_STATUS_SUCCESS;
  bool right = false;
  bool right_sums = false;  // sums of op(B)'s columns are right
};

Outcome run(const Example& e) {
  const bool plain_a = e.transposed_a == CUBLAS_OP_N, plain_b = e.transposed_b == CUBLAS_OP_N;
  const std::uint64_t n_of_b = e.n_of_b != 0 ? e.n_of_b : e.n;
  cudaSetDevice(0);
  cublasLtHandle_t handle = nullptr;
  cublasLtCreate(&handle);
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
  const auto layout = [&](cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows,
                          std::uint64_t cols, std::int64_t ld, int seed) {
    ld = ld != 0 ? ld : static_cast<std::int64_t>(rows) + e.gap;
    cublasLtMatrixLayoutCreate(made, type, rows, cols, ld);
    std::vector<float> values;
    for (std::uint64_t col = 0; col < cols; ++col)
      for (std::int64_t row = 0; row < ld; ++row)
        values.push_back(number(static_cast<std::uint64_t>(row), col, seed));
    return values;
  };
  const Memory a_memory(layout(&a, e.input, plain_a ? e.m : e.k, plain_a ? e.k : e.m, e.ld_a, 1),
                        e.input);
  const cudaDataType input_b = is_fp8(e.input) ? e.input_b : e.input;
  const Memory b_memory(layout(&b, input_b, plain_b ? e.k : n_of_b, plain_b ? n_of_b : e.k, 0, 2),
                        input_b);
  const Memory scales({8.0f, 0.125f}, CUDA_R_32F);
  const Memory c_memory(layout(&c, e.c_type, e.m, e.n, 0, 3), e.c_type);
  const std::vector<float> before = layout(&d, e.d_type, e.m, e.n, 0, 4);
  const Memory d_memory(before, e.d_type);
  const Memory bias(std::vector<float>(std::max(e.m, e.n), 3.0f),
                    is_fp8(e.input) ? CUDA_R_16BF : e.d_type);
  const Memory workspace(std::vector<float>(8192), CUDA_R_32F);

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatmulDescCreate(&desc, e.compute, CUDA_R_32F);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    CHECK(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value) ==
          CUBLAS_STATUS_SUCCESS);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<std::int32_t>(e.transposed_a));
  set(CUBLASLT_MATMUL_DESC_TRANSB, static_cast<std::int32_t>(e.transposed_b));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, e.epilogue);
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, e.bias_type);
  if (e.bias_is_there) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data));
  if (is_fp8(e.input)) {  // the product of the scales is 1
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(scales.data));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        static_cast<const void*>(static_cast<const float*>(scales.data) + 1));
  }
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulPreferenceCreate(&preference);
  const auto ask = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value) ==
          CUBLAS_STATUS_SUCCESS);
  };
  ask(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{4096});
  ask(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, e.reductions);
  ask(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, e.alignment);

  Outcome outcome;
  cublasLtMatmulHeuristicResult_t found[16];
  outcome.heuristic = cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, 16,
                                                     found, &outcome.found);
  cublasLtMatmulAlgo_t algorithm{};
  if (outcome.found > e.algorithm) algorithm = found[e.algorithm].algo;
  if (e.broken_words) algorithm.data[0] ^= 1;
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const float alpha = 2.0f, beta = 1.0f;
  cudaSetDevice(e.device);
  outcome.status = cublasLtMatmul(handle, desc, &alpha, a_memory.data, a, b_memory.data, b, &beta,
                                  c_memory.data, c, d_memory.data, d, &algorithm,
                                  static_cast<std::byte*>(workspace.data) + e.workspace_offset,
                                  e.workspace_bytes, stream);
  cudaSetDevice(0);
  cudaStreamSynchronize(stream);
  const std::vector<float> results = d_memory.values(e.d_type);
  outcome.right = true;
  const std::uint64_t line = e.m + static_cast<std::uint64_t>(e.gap);
  for (std::uint64_t i = 0; i < line * e.n; ++i) {
    const std::uint64_t row = i % line, col = i / line;
    float expected = before[i];
    if (row < e.m) {
      expected = number(row, col, 3) + (e.epilogue == CUBLASLT_EPILOGUE_BIAS ? 3.0f : 0.0f);
      for (std::uint64_t at = 0; at < e.k; ++at)
        expected += 2.0f * (plain_a ? number(row, at, 1) : number(at, row, 1)) *
                    (plain_b ? number(at, col, 2) : number(col, at, 2));
    }
    outcome.right = outcome.right && results[i] == static_cast<float>(bf16(expected)) &&
                    static_cast<float>(bf16(expected)) == expected;
  }
  const std::vector<float> sums = bias.values(e.d_type);
  outcome.right_sums = true;
  for (std::uint64_t col = 0; col < e.n; ++col) {
    float expected = 0.0f;
    for (std::uint64_t at = 0; at < e.k; ++at)
      expected += plain_b ? number(at, col, 2) : number(col, at, 2);
    outcome.right_sums = outcome.right_sums && sums[col] == expected;
  }
  for (const auto it : {a, b, c, d}) cublasLtMatrixLayoutDestroy(it);
  cublasLtMatmulDescDestroy(desc);
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtDestroy(handle);
  cudaStreamDestroy(stream);
  return outcome;
}

}  // namespace

TEST_CASE("emulated cuBLASLt multiplies, with every algorithm that it offers") {
  for (const auto a : {CUBLAS_OP_N, CUBLAS_OP_T})
    for (const auto b : {CUBLAS_OP_N, CUBLAS_OP_T})
      for (const auto input : {CUDA_R_32F, CUDA_R_16BF})
        for (const auto output : {CUDA_R_32F, CUDA_R_16BF})
          for (const std::int64_t gap : {0, 3}) {
            if (input == CUDA_R_32F && output == CUDA_R_16BF) continue;
            Example example{.transposed_a = a,
                            .transposed_b = b,
                            .input = input,
                            .c_type = output,
                            .d_type = output,
                            .gap = gap};
            for (const auto epilogue : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BGRADB}) {
              example.epilogue = epilogue;
              example.algorithm = 0;
              const int found = run(example).found;
              REQUIRE(found > 1);
              for (; example.algorithm < found; ++example.algorithm) {
                CAPTURE(example.algorithm);
                const Outcome outcome = run(example);
                CHECK(outcome.status == CUBLAS_STATUS_SUCCESS);
                CHECK(outcome.right);
                CHECK(outcome.right_sums == (epilogue == CUBLASLT_EPILOGUE_BGRADB));
              }
            }
          }
}

TEST_CASE("emulated cuBLASLt multiplies FP8 along what lies together, and nothing else") {
  Example example{.m = 32, .n = 16, .k = 48, .transposed_a = CUBLAS_OP_T};
  example.input = example.input_b = CUDA_R_8F_E4M3;
  example.c_type = example.d_type = CUDA_R_16BF;
  example.gap = 16;
  example.epilogue = CUBLASLT_EPILOGUE_BIAS;
  const auto with = [&](auto change) {
    Example changed = example;
    change(changed);
    return run(changed);
  };
  for (const auto& [a, b] :
       {std::pair(CUDA_R_8F_E4M3, CUDA_R_8F_E4M3), std::pair(CUDA_R_8F_E5M2, CUDA_R_8F_E4M3),
        std::pair(CUDA_R_8F_E4M3, CUDA_R_8F_E5M2)})
    for (const auto output : {CUDA_R_16BF, CUDA_R_32F}) {
      const Outcome outcome = with([&](Example& e) {
        e.input = a;
        e.input_b = b;
        e.c_type = e.d_type = output;
      });
      CHECK(outcome.status == CUBLAS_STATUS_SUCCESS);
      CHECK(outcome.right);
    }
  using Change = void (*)(Example&);
  for (const Change change :
       {Change([](Example& e) { e.transposed_a = CUBLAS_OP_N; }),
        Change([](Example& e) { e.transposed_b = CUBLAS_OP_T; }),
        Change([](Example& e) { e.m = 24; }), Change([](Example& e) { e.n = 8; }),
        Change([](Example& e) { e.k = 40; }), Change([](Example& e) { e.gap = 8; }),
        Change([](Example& e) { e.alignment = 8; }),
        Change([](Example& e) { e.input_b = CUDA_R_16BF; }),
        Change([](Example& e) { e.bias_type = CUDA_R_32F; }),
        Change([](Example& e) { e.compute = CUBLAS_COMPUTE_32F_FAST_TF32; }),
        Change([](Example& e) { e.input = e.input_b = CUDA_R_8F_E5M2; })})
    CHECK(with(change).heuristic == CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_CASE("emulated cuBLASLt refuses what the library does") {
  CHECK(run({}).status == CUBLAS_STATUS_SUCCESS);
  for (const Example& example :
       {Example{.ld_a = 4}, Example{.n_of_b = 4}, Example{.workspace_bytes = 8, .algorithm = 2},
        Example{.workspace_offset = 4}, Example{.broken_words = true},
        Example{.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias_is_there = false},
        Example{.epilogue = CUBLASLT_EPILOGUE_BGRADB, .bias_is_there = false}})
    CHECK(run(example).status == CUBLAS_STATUS_INVALID_VALUE);
  for (const Example& example :
       {Example{.c_type = CUDA_R_16BF, .d_type = CUDA_R_16BF}, Example{.c_type = CUDA_R_16BF},
        Example{.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias_type = CUDA_R_16BF},
        Example{.epilogue = CUBLASLT_EPILOGUE_BGRADB, .bias_type = CUDA_R_16BF},
        Example{.n = 1, .epilogue = CUBLASLT_EPILOGUE_BGRADB},
        Example{.input = CUDA_R_16BF, .compute = CUBLAS_COMPUTE_32F_FAST_TF32}}) {
    const Outcome outcome = run(example);
    CHECK(outcome.heuristic == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(outcome.status == CUBLAS_STATUS_NOT_SUPPORTED);
  }
  CHECK(run({.device = 1}).status == CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_CASE("emulated cuBLASLt offers what alignment and reductions allow") {
  const int all = run({.m = 8, .n = 4}).found;
  CHECK(run({.m = 8, .n = 4, .alignment = 4}).found < all);  // of an address
  CHECK(run({.m = 8, .n = 4, .gap = 1}).found < all);        // of columns
  CHECK(run({.m = 8, .n = 4, .reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}).found < all);
  CHECK(run({.m = 8, .n = 4, .reductions = CUBLASLT_REDUCTION_SCHEME_NONE}).found == 3);
}

}  // namespace sortie::trainer
