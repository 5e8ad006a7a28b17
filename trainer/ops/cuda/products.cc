#include "trainer/ops/cuda/products.h"

#include <cublasLt.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/product_choices.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// As NVIDIA advises for Hopper; earlier GPUs use less of it.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::size_t kMaxPlans = 4096;
constexpr int kMaxTimed = 64;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw DeviceError(
        fmt::format("GPU: {} failed: cuBLASLt says {}", what, cublasLtGetStatusName(status)));
}

template <class T, auto Destroy>
struct Destroyer {
  using pointer = T;
  void operator()(T it) const { (void)Destroy(it); }
};
template <class T, auto Destroy>
using Owned = std::unique_ptr<T, Destroyer<T, Destroy>>;
using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Desc = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(DType dtype) {
  SORTIE_CHECK(dtype == DType::f32 || dtype == DType::bf16, "a product in {}", dtype_name(dtype));
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

/// Up to 16 bytes: no algorithm needs more, and the choice does not depend on more.
int alignment_of(const void* address) {
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(address) | 16u;
  return static_cast<int>(bits & -bits);
}

template <class T>
void set(const Desc& desc, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof value),
        "the description of a product");
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
        "what a product asks for");
}

/// A matrix of rows is one of columns, transposed, to the library.
Layout layout_of(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  SORTIE_CHECK(rows > 0 && cols > 0, "a product with a matrix [{}, {}]", rows, cols);
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<std::uint64_t>(cols),
                                   static_cast<std::uint64_t>(rows),
                                   rows == 1 ? std::max(stride, cols) : stride),
        "the layout of a matrix");
  return Layout(layout);
}

std::string describe(const Product& product) {
  return fmt::format("a product [{}, {}] x [{}, {}] of {} to {}, rows of {}, {} and {} elements",
                     product.m, product.k, product.k, product.n, dtype_name(product.input),
                     dtype_name(product.output), product.a_row, product.b_row, product.c_row);
}

/// C^T = op(B)^T op(A)^T: to the library, B comes first and m and n change places.
struct Plan {
  explicit Plan(const ProductKey& key) {
    const Product& p = key.product;
    cublasLtMatmulDesc_t made = nullptr;
    check(cublasLtMatmulDescCreate(
              &made, key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "the description of a product");
    desc = Desc(made);
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

  Desc desc;
  Layout first, second, result;
  float beta = 0.0f;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
};

}  // namespace

class Products::State {
 public:
  explicit State(Device device) : device_(device) {}

  void run(ExecutionContext& context, const Product& product, const Operands& operands) {
    const cudaStream_t stream = current_stream(context);
    const ProductKey key{.product = product,
                         .a_alignment = alignment_of(operands.a),
                         .b_alignment = alignment_of(operands.b),
                         .c_alignment = alignment_of(operands.c),
                         .tf32 = options_.tf32 && product.input == DType::f32};
    SORTIE_CHECK(product.bias == (operands.bias != nullptr) && alignment_of(operands.bias) == 16,
                 "the bias of {}", describe(product));
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      if (plans_.size() >= kMaxPlans) plans_.clear();
      found = plans_.try_emplace(key, key).first;
      choose(context, key, operands, stream, found->second);
    }
    const Plan& plan = found->second;
    check(add(context, plan, plan.algorithm, plan.workspace_bytes, operands, operands.c, stream),
          describe(product).c_str());
  }

  void set_options(const ProductOptions& options) {
    options_ = options;
    options_.timed = std::min(options_.timed, kMaxTimed);
  }

  std::string choices() const { return write_choices(origin(), choices_); }

  Result<> use_choices(std::string_view text) {
    auto choices = read_choices(origin(), text);
    if (!choices) return std::unexpected(std::move(choices.error()));
    for (auto& [key, algorithm] : *choices) choices_.insert_or_assign(key, algorithm);
    plans_.clear();
    return {};
  }

 private:
  /// What decides whether the library takes an algorithm's words for the same algorithm.
  std::string origin() const {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device_.index), "a look at a GPU");
    return fmt::format("cuBLASLt {} on {}, sm_{}{}, {} multiprocessors", cublasLtGetVersion(),
                       properties.name, properties.major, properties.minor,
                       properties.multiProcessorCount);
  }

  /// The device is the current one.
  cublasLtHandle_t handle() {
    if (!handle_) {
      cublasLtHandle_t made = nullptr;
      check(cublasLtCreate(&made), "the start of cuBLASLt");
      handle_ = Handle(made);
    }
    return handle_.get();
  }

  /// Each stream has its own: products of two streams may run at the same time.
  void* workspace(ExecutionContext& context, std::size_t bytes) {
    if (bytes == 0) return nullptr;
    Tensor& tensor = workspaces_[static_cast<std::size_t>(context.stream())];
    if (!tensor.defined())
      tensor = context.empty(DType::u8, {static_cast<std::int64_t>(kWorkspaceBytes)});
    return tensor.raw();
  }

  cublasStatus_t add(ExecutionContext& context, const Plan& plan,
                     const cublasLtMatmulAlgo_t& algorithm, std::size_t workspace_bytes,
                     const Operands& operands, void* target, cudaStream_t stream) {
    if (operands.bias != nullptr)
      set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    return cublasLtMatmul(handle(), plan.desc.get(), &operands.alpha, operands.b, plan.first.get(),
                          operands.a, plan.second.get(), &plan.beta, operands.c, plan.result.get(),
                          target, plan.result.get(), &algorithm,
                          workspace(context, workspace_bytes), workspace_bytes, stream);
  }

  void choose(ExecutionContext& context, const ProductKey& key, const Operands& operands,
              cudaStream_t stream, Plan& plan) {
    if (const auto given = choices_.find(key); given != choices_.end()) {
      cublasLtMatmulHeuristicResult_t result{};
      if (cublasLtMatmulAlgoCheck(handle(), plan.desc.get(), plan.first.get(), plan.second.get(),
                                  plan.result.get(), plan.result.get(), &given->second,
                                  &result) == CUBLAS_STATUS_SUCCESS &&
          result.workspaceSize <= kWorkspaceBytes) {
        plan.algorithm = given->second;
        plan.workspace_bytes = result.workspaceSize;
        return;
      }
    }
    const auto candidates = best(key, operands, plan);
    const std::size_t chosen =
        candidates.size() > 1 ? fastest(context, key, operands, stream, plan, candidates) : 0;
    plan.algorithm = candidates[chosen].algo;
    plan.workspace_bytes = candidates[chosen].workspaceSize;
    choices_.insert_or_assign(key, plan.algorithm);
  }

  /// What the library thinks best, best first.
  std::vector<cublasLtMatmulHeuristicResult_t> best(const ProductKey& key, const Operands& operands,
                                                    const Plan& plan) {
    // The library looks at the bias' alignment.
    if (operands.bias != nullptr)
      set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "what a product asks for");
    const Preference preference(made);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
    // Sums whose parts are kept in f32 and added by a kernel of its own: the same bits in every
    // run. Parts in the type of the result would round on the way.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    const auto alignment = [](int bytes) { return static_cast<std::uint32_t>(bytes); };
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(key.b_alignment));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(key.a_alignment));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(key.c_alignment));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(key.c_alignment));
    std::vector<cublasLtMatmulHeuristicResult_t> results(
        static_cast<std::size_t>(options_.timed));
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle(), plan.desc.get(), plan.first.get(), plan.second.get(), plan.result.get(),
        plan.result.get(), preference.get(), options_.timed, results.data(), &count);
    if (status == CUBLAS_STATUS_SUCCESS && count == 0)
      check(CUBLAS_STATUS_NOT_SUPPORTED, describe(key.product).c_str());
    check(status, describe(key.product).c_str());
    results.resize(static_cast<std::size_t>(count));
    std::erase_if(results, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
    if (results.empty()) check(CUBLAS_STATUS_NOT_SUPPORTED, describe(key.product).c_str());
    return results;
  }

  /// Waits for the device. A result that is added to is not written: it is what the ones before
  /// left.
  std::size_t fastest(ExecutionContext& context, const ProductKey& key, const Operands& operands,
                      cudaStream_t stream, const Plan& plan,
                      const std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
    Tensor apart;
    void* target = operands.c;
    if (key.product.accumulate) {
      apart = context.empty(key.product.output, {key.product.m, key.product.c_row});
      target = apart.raw();
    }
    std::size_t fastest = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const auto seconds = [&](int repeats) {
        check(cudaStreamSynchronize(stream), "work before a product that is timed");
        const auto begin = std::chrono::steady_clock::now();
        for (int repeat = 0; repeat < repeats; ++repeat)
          if (add(context, plan, candidates[i].algo, candidates[i].workspaceSize, operands, target,
                  stream) != CUBLAS_STATUS_SUCCESS)
            return std::numeric_limits<double>::infinity();
        check(cudaStreamSynchronize(stream), "a product that is timed");
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
               repeats;
      };
      constexpr double kEnough = 1e-3;  // much more than a wait takes
      const double once = std::min(seconds(1), seconds(1));  // the first loads the kernel
      const int repeats = std::clamp(static_cast<int>(kEnough / std::max(once, 1e-6)), 1, 100);
      double best = once;
      for (int round = 0; round < 3 && once < 2 * least; ++round)
        best = std::min(best, seconds(repeats));
      if (best >= least) continue;
      least = best;
      fastest = i;
    }
    return fastest;
  }

  const Device device_;
  ProductOptions options_;
  Handle handle_;
  std::array<Tensor, kStreams> workspaces_;
  std::map<ProductKey, Plan> plans_;
  ProductChoices choices_;
};

Products::Products(Device device) : state_(std::make_unique<State>(device)) {}
Products::~Products() = default;

void Products::run(ExecutionContext& context, const Product& product, const Operands& operands) {
  state_->run(context, product, operands);
}
void Products::set_options(const ProductOptions& options) {
  state_->set_options(options);
}
std::string Products::choices() const {
  return state_->choices();
}
Result<> Products::use_choices(std::string_view text) {
  return state_->use_choices(text);
}

}  // namespace sortie::trainer::ops::cuda
