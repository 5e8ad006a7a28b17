#include "trainer/ops/cuda/products.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/product_plan.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr std::size_t kMaxPlans = 4096;
constexpr int kMaxTimed = 64;

/// Up to 16 bytes: no algorithm needs more, and the choice does not depend on more.
int alignment_of(const void* address) {
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(address) | 16u;
  return static_cast<int>(bits & -bits);
}

/// An event that records its time.
class TimedEvent {
 public:
  TimedEvent() { check(cudaEventCreate(&event_), "an event"); }
  ~TimedEvent() { (void)cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "an event"); }
  /// Blocks until this event has passed.
  double seconds_since(const TimedEvent& start) const {
    check(cudaEventSynchronize(event_), "a product that is timed");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "the time of a product");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

class Products::State {
 public:
  explicit State(Device device) : device_(device) {}

  bool run(ExecutionContext& context, const Product& product, const Operands& operands) {
    const cudaStream_t stream = current_stream(context);
    const ProductKey key = key_of(product, operands);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      found = new_plan(key);
      choose(context, key, operands, stream, found->second);
    }
    return run_planned(context, product, operands, stream, found->second);
  }

  void run_or(ExecutionContext& context, const Product& product, const Operands& operands,
              const std::function<void()>& rest, const std::function<void()>& apart) {
    const cudaStream_t stream = current_stream(context);
    const ProductKey key = key_of(product, operands);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      const bool timed = options_.timed > 1 && options_.dropped && !choices_.contains(key);
      // Before the plan is created: products of `apart` create plans as well and may drop the
      // others.
      const double seconds_apart = timed ? seconds_of(stream, apart) : 0.0;
      found = new_plan(key);
      ProductPlan& plan = found->second;
      if (timed) {
        choose(context, key, operands, stream, plan);
        plan.possible = plan.possible && seconds_of(stream, [&] {
                                           run_planned(context, product, operands, stream, plan);
                                           rest();
                                         }) < seconds_apart;
      } else {
        plan.possible = use_given(key, plan);
      }
      if (!plan.possible) choices_.insert_or_assign(key, std::nullopt);
    }
    if (run_planned(context, product, operands, stream, found->second))
      rest();
    else
      apart();
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

  void forget_choices() {
    choices_.clear();
    plans_.clear();
  }

 private:
  /// Identifies the library and GPU for which the words of an algorithm are valid.
  std::string origin() const {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device_.index), "a look at a GPU");
    return fmt::format("cuBLASLt {} on {}, sm_{}{}, {} multiprocessors", cublasLtGetVersion(),
                       properties.name, properties.major, properties.minor,
                       properties.multiProcessorCount);
  }

  ProductKey key_of(const Product& product, const Operands& operands) const {
    SORTIE_CHECK(product.bias == (operands.bias != nullptr) && alignment_of(operands.bias) == 16,
                 "the bias of {}", describe(product));
    SORTIE_CHECK(product.row_sums == (operands.row_sums != nullptr) &&
                     alignment_of(operands.row_sums) == 16 && !(product.row_sums && product.bias),
                 "the row sums of {}", describe(product));
    const bool scaled = operands.a_scale != nullptr && operands.b_scale != nullptr;
    SORTIE_CHECK((product.input == DType::u8) == scaled, "the scales of {}", describe(product));
    return {.product = product,
            .a_alignment = alignment_of(operands.a),
            .b_alignment = alignment_of(operands.b),
            .c_alignment = alignment_of(operands.c),
            .tf32 = options_.tf32 && product.input == DType::f32};
  }

  std::map<ProductKey, ProductPlan>::iterator new_plan(const ProductKey& key) {
    if (plans_.size() >= kMaxPlans) plans_.clear();
    return plans_.try_emplace(key, key).first;
  }

  /// Returns false, without effect, if the plan is not possible.
  bool run_planned(ExecutionContext& context, const Product& product, const Operands& operands,
                   cudaStream_t stream, const ProductPlan& plan) {
    if (!plan.possible) return false;
    const cublasStatus_t status =
        add(context, plan, plan.algorithm, plan.workspace_bytes, operands, operands.c, stream);
    if (status != CUBLAS_STATUS_SUCCESS) check(status, describe(product).c_str());
    return true;
  }

  /// The device must be the current one.
  cublasLtHandle_t handle() {
    if (!handle_) {
      cublasLtHandle_t made = nullptr;
      check(cublasLtCreate(&made), "the start of cuBLASLt");
      handle_ = ProductHandle(made);
    }
    return handle_.get();
  }

  /// Each stream has its own, because products of two streams may run concurrently. Allocated with
  /// the stream's first product, even if that does not need it, so that memory does not depend on
  /// choices.
  void* workspace(ExecutionContext& context, std::size_t bytes) {
    Tensor& tensor = workspaces_[static_cast<std::size_t>(context.stream())];
    if (!tensor.defined())
      tensor = context.empty(DType::u8, {static_cast<std::int64_t>(kProductWorkspaceBytes)});
    return bytes > 0 ? tensor.raw() : nullptr;
  }

  cublasStatus_t add(ExecutionContext& context, const ProductPlan& plan,
                     const cublasLtMatmulAlgo_t& algorithm, std::size_t workspace_bytes,
                     const Operands& operands, void* target, cudaStream_t stream) {
    set_addresses(plan, operands);
    return cublasLtMatmul(handle(), plan.desc.get(), &operands.alpha, operands.b, plan.first.get(),
                          operands.a, plan.second.get(), &plan.beta, operands.c, plan.result.get(),
                          target, plan.result.get(), &algorithm,
                          workspace(context, workspace_bytes), workspace_bytes, stream);
  }

  static void set_addresses(const ProductPlan& plan, const Operands& operands) {
    if (operands.bias != nullptr) plan.set_bias(operands.bias);
    if (operands.row_sums != nullptr) plan.set_row_sums(operands.row_sums);
    if (operands.a_scale != nullptr) plan.set_scales(operands.a_scale, operands.b_scale);
  }

  /// Returns false if no algorithm was chosen before, or the library does not support it.
  bool use_given(const ProductKey& key, ProductPlan& plan) {
    const auto given = choices_.find(key);
    if (given == choices_.end() || !given->second) return false;
    cublasLtMatmulHeuristicResult_t result{};
    if (cublasLtMatmulAlgoCheck(handle(), plan.desc.get(), plan.first.get(), plan.second.get(),
                                plan.result.get(), plan.result.get(), &*given->second,
                                &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > kProductWorkspaceBytes)
      return false;
    plan.algorithm = *given->second;
    plan.workspace_bytes = result.workspaceSize;
    return true;
  }

  void choose(ExecutionContext& context, const ProductKey& key, const Operands& operands,
              cudaStream_t stream, ProductPlan& plan) {
    plan.possible = use_given(key, plan);
    if (plan.possible) return;
    const auto candidates = best(key, operands, plan);
    plan.possible = !candidates.empty();
    if (!plan.possible) return;
    const std::size_t chosen =
        candidates.size() > 1 ? fastest(context, key, operands, stream, plan, candidates) : 0;
    plan.algorithm = candidates[chosen].algo;
    plan.workspace_bytes = candidates[chosen].workspaceSize;
    choices_.insert_or_assign(key, plan.algorithm);
  }

  /// The library's suggestions, best first; empty if it cannot compute the product.
  std::vector<cublasLtMatmulHeuristicResult_t> best(const ProductKey& key, const Operands& operands,
                                                    const ProductPlan& plan) {
    // The library considers the bias' alignment and whether there are scales.
    set_addresses(plan, operands);
    const ProductPreference preference = preference_of(key, kProductWorkspaceBytes);
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(options_.timed));
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle(), plan.desc.get(), plan.first.get(), plan.second.get(), plan.result.get(),
        plan.result.get(), preference.get(), options_.timed, results.data(), &count);
    // How it rejects row sums depends on the version; they can also be computed in another way.
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED &&
        !key.product.row_sums)
      check(status, describe(key.product).c_str());
    results.resize(static_cast<std::size_t>(count));
    std::erase_if(results, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
    return results;
  }

  /// Seconds that the work of `add` takes on the stream: the best of several runs, but only of two
  /// if these take twice `least` or more. Blocks until the work is done.
  template <class Add>
  static double seconds_of(cudaStream_t stream, const Add& add,
                           double least = std::numeric_limits<double>::infinity()) {
    TimedEvent begin, end;
    const auto seconds = [&](int repeats) {
      begin.record(stream);
      for (int repeat = 0; repeat < repeats; ++repeat) add();
      end.record(stream);
      return end.seconds_since(begin) / repeats;
    };
    constexpr double kEnough = 1e-3;                       // far above the resolution of events
    const double once = std::min(seconds(1), seconds(1));  // the first loads the kernel
    const int repeats = std::clamp(static_cast<int>(kEnough / std::max(once, 1e-6)), 1, 100);
    double best = once;
    for (int round = 0; round < 3 && once < 2 * least; ++round)
      best = std::min(best, seconds(repeats));
    return best;
  }

  /// Blocks until the work is done. A destination that is added to already holds earlier results,
  /// so it is not written, unless results are dropped.
  std::size_t fastest(ExecutionContext& context, const ProductKey& key, const Operands& operands,
                      cudaStream_t stream, const ProductPlan& plan,
                      const std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
    Tensor apart;
    void* target = operands.c;
    if (key.product.accumulate && !options_.dropped) {
      apart = context.empty(key.product.output, {key.product.m, key.product.c_row});
      target = apart.raw();
    }
    std::size_t fastest = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      bool possible = true;
      const double seconds = seconds_of(
          stream,
          [&] {
            possible =
                possible && add(context, plan, candidates[i].algo, candidates[i].workspaceSize,
                                operands, target, stream) == CUBLAS_STATUS_SUCCESS;
          },
          least);
      if (!possible || seconds >= least) continue;
      least = seconds;
      fastest = i;
    }
    return fastest;
  }

  const Device device_;
  ProductOptions options_;
  ProductHandle handle_;
  std::array<Tensor, kStreams> workspaces_;
  std::map<ProductKey, ProductPlan> plans_;
  ProductChoices choices_;
};

Products::Products(Device device) : state_(std::make_unique<State>(device)) {}
Products::~Products() = default;

bool Products::try_run(ExecutionContext& context, const Product& product,
                       const Operands& operands) {
  return state_->run(context, product, operands);
}
void Products::run(ExecutionContext& context, const Product& product, const Operands& operands) {
  if (!state_->run(context, product, operands))
    check(CUBLAS_STATUS_NOT_SUPPORTED, describe(product).c_str());
}
void Products::run_or(ExecutionContext& context, const Product& product, const Operands& operands,
                      const std::function<void()>& rest, const std::function<void()>& apart) {
  state_->run_or(context, product, operands, rest, apart);
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
void Products::forget_choices() {
  state_->forget_choices();
}

}  // namespace sortie::trainer::ops::cuda
