// A tape without numbers: what the trainer's tape allocates and keeps, in bytes. Its operations
// (functions.h) take and save what those of trainer/autograd do, so that the highest sum of what
// lives at once is found by letting a step happen.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/model/parameters.h"

namespace sortie::model {

inline constexpr std::int64_t kF32 = 4, kI32 = 4, kBf16 = 2;  // bytes

inline std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Stands for the trainer's caching allocator.
class Meter {
 public:
  Meter() : state_(std::make_shared<State>()) {}
  /// Counts until the last reference is gone.
  std::shared_ptr<void> allocate(std::int64_t bytes);

  std::int64_t in_use() const { return state_->in_use; }
  std::int64_t peak() const { return state_->peak; }
  /// What the system has given at the end: a freed block serves only its own size again.
  std::int64_t reserved() const;

 private:
  struct Blocks {
    std::int64_t now = 0, most = 0;
  };
  struct State {
    std::int64_t in_use = 0, peak = 0;
    std::map<std::int64_t, Blocks> by_size;
  };
  std::shared_ptr<State> state_;
};

/// A matrix, or a view of some columns of one.
struct Sized {
  std::shared_ptr<void> block;
  std::int64_t rows = 0, columns = 0;
  std::int64_t element = 0;  // bytes
  bool defined() const { return block != nullptr; }
  long owners() const { return block.use_count(); }
};

struct SizedGrad {
  Sized tensor;
};
struct Value {
  Sized data;
  std::shared_ptr<SizedGrad> grad;
  explicit operator bool() const { return data.defined(); }
};

/// What the kernels work with.
struct Machine {
  std::int64_t element = 4;      // bytes of the compute dtype
  std::int64_t threads = 1;      // of a rank
  bool packs_for_avx512 = true;  // else the layouts of AVX2
  bool keeps_packed = true;      // packed copies of weights; else each lives as long as its product
};

/// What gradients flow through in a step; found on the way.
struct Flow {
  std::set<const ParameterInfo*> products;  // with such parameters
  std::vector<bool> attention;              // of each layer
};

class Tape {
 public:
  enum class Mode { record, reserve };
  Tape(Meter& meter, const Machine& machine, Mode mode)
      : meter_(meter), machine_(machine), mode_(mode) {}

  Meter& meter() { return meter_; }
  const Machine& machine() const { return machine_; }
  bool recording() const { return mode_ == Mode::record; }

  Sized empty(std::int64_t rows, std::int64_t columns) {
    return empty(rows, columns, machine_.element);
  }
  Sized empty(std::int64_t rows, std::int64_t columns, std::int64_t element) {
    return {meter_.allocate(rows * columns * element), rows, columns, element};
  }
  Sized like(const Sized& x) { return empty(x.rows, x.columns, x.element); }
  Value value(Sized data) { return {std::move(data), std::make_shared<SizedGrad>()}; }
  /// Before record(): the operation being recorded uses these.
  void use(std::span<const ParameterInfo> parameters);
  void record(std::function<void()> backward) {
    if (recording() && flows_) steps_.push_back(std::move(backward));
  }
  /// Whether something trained was used so far. What comes before that is neither kept nor
  /// recorded.
  bool flows() const { return flows_; }
  void set_flows(bool flows) { flows_ = flows; }

  /// Who wants to know; null = nobody.
  Flow* flow() const { return flow_; }
  void set_flow(Flow* flow) { flow_ = flow; }

  void add_grad(SizedGrad& into, Sized grad);
  void backward(std::vector<std::pair<Value, Sized>> seeds);

 private:
  Meter& meter_;
  const Machine& machine_;
  Mode mode_;
  bool flows_ = false;
  Flow* flow_ = nullptr;
  std::vector<std::function<void()>> steps_;
};

std::vector<Value> recompute(
    Tape& tape, const std::vector<Value>& inputs,
    std::function<std::vector<Value>(Tape&, const std::vector<Value>&)> segment);

}  // namespace sortie::model
