// The tape. A Graph records the ops of one forward pass (one micro-batch, or one recomputed
// segment); backward() runs their backward steps in reverse order and frees what each one has
// saved. Any number of graphs may exist at a time.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/nn/parameter.h"
#include "trainer/ops/fp8.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

class KvCache;

/// The sum of the gradients received so far for one value. Gradient tensors are shared between
/// values: a tensor may be written in place only if it is solely owned.
struct Grad {
  Tensor tensor;
};

/// A value on the tape. A backward step keeps `grad`, and `data` only if it needs it: data that no
/// step needs is freed during the forward pass.
struct Var {
  Tensor data;
  std::shared_ptr<Grad> grad;
  explicit operator bool() const { return data.defined(); }
};

class Graph {
 public:
  enum class Mode {
    record,     // forward pass of training: records ops, counts uses of parameters
    reserve,    // forward pass of a segment that will be recomputed: counts uses, records nothing
    replay,     // its recomputation: records ops; uses are already counted
    inference,  // records and counts nothing
  };
  Graph(ExecutionContext& context, Mode mode) : context_(context), mode_(mode) {}

  ExecutionContext& context() { return context_; }
  Mode mode() const { return mode_; }
  /// The cache that the attentions of an inference pass use; null = none. Non-owning.
  KvCache* cache() const { return cache_; }
  void set_cache(KvCache* cache) { cache_ = cache; }
  bool recording() const { return mode_ == Mode::record || mode_ == Mode::replay; }

  Var value(Tensor data) { return {std::move(data), std::make_shared<Grad>()}; }

  /// Marks a parameter as used by the op being recorded, whose backward step must call use_done()
  /// once.
  void use(Parameter& parameter) {
    if (!parameter.trained()) return;
    flows_ = true;
    if (mode_ == Mode::record || mode_ == Mode::reserve) parameter.use_recorded();
  }
  /// Adds the op's backward step. The step also runs if no gradient reached the op's outputs, so
  /// that every use of a parameter gets its use_done().
  void record(std::function<void()> backward) {
    if (recording() && flows_) steps_.push_back(std::move(backward));
  }
  /// Postpones work of a backward step that no other step depends on, such as the gradient of a
  /// weight. It runs during the next exchanges between ranks, at the latest at the end of
  /// backward(), in the order of these calls. What it captures stays alive until then.
  void postpone(std::function<void()> work) {
    (leaves_weights_ ? left_ : postponed_).push_back(std::move(work));
  }
  std::size_t postponed() const { return postponed_.size(); }
  /// Runs the first `count` pieces of postponed work.
  void do_postponed(std::size_t count);

  /// Makes work that is postponed from now on run neither in backward() nor during exchanges: the
  /// caller takes it with take_weight_gradients(), in the order of the calls, and runs it. Does not
  /// apply to work that a recomputation postpones.
  void leave_weight_gradients() { leaves_weights_ = true; }
  /// Handles `work`, which adds the gradients of weights if they are `trained`: postpones it if
  /// they are and if it may overlap with exchanges or the caller takes it
  /// (leave_weight_gradients()); runs it at once otherwise.
  template <class Work>
  void settle_weights(bool trained, bool beside_exchanges, Work work) {
    if (trained && (beside_exchanges || leaves_weights_))
      postpone(std::move(work));
    else
      work();
  }
  std::deque<std::function<void()>> take_weight_gradients() { return std::exchange(left_, {}); }

  /// Whether a trained parameter has been used so far. Ops before the first such use need no
  /// gradient: they are not recorded and their inputs not kept, so frozen first layers cost only a
  /// forward pass.
  bool flows() const { return flows_; }
  void set_flows(bool flows) { flows_ = flows; }

  /// Sets a function that observes the forward pass. It is called with the name of each module
  /// ("layers.0.mlp.down") and its output, in order.
  void set_observer(std::function<void(std::string_view name, const Tensor& value)> observer) {
    observer_ = std::move(observer);
  }
  bool observed() const { return observer_ != nullptr; }
  void observe(const Parameter& weight, const Tensor& value) {
    if (!observer_) return;
    const std::string_view name = weight.name();
    observer_(name.substr(0, name.rfind('.')), value);
  }

  /// Returns `value` in E4M3, with at least the copies in `forms`. The last result is cached until
  /// another value is cast, so consecutive products with the same input cast it once.
  ops::Fp8Matrix in_fp8(const Var& value, ops::Fp8Forms forms, const ops::Fp8Amax& amax = {});

  /// into += grad. Takes over `grad` if it is the first.
  void add_grad(Grad& into, Tensor grad);

  /// Runs all steps in reverse order, starting from these gradients at the outputs. Afterwards
  /// Var::grad of the inputs (values made with value()) holds their gradients. They are complete
  /// when `inputs_done` is called, if it is not empty, which is before the remaining postponed work
  /// runs.
  void backward(std::vector<std::pair<Var, Tensor>> seeds,
                const std::function<void()>& inputs_done = {});

 private:
  ExecutionContext& context_;
  Mode mode_;
  KvCache* cache_ = nullptr;
  bool flows_ = false;
  bool leaves_weights_ = false;
  std::vector<std::function<void()>> steps_;
  std::deque<std::function<void()>> postponed_, left_;
  std::function<void(std::string_view, const Tensor&)> observer_;
  struct {
    std::shared_ptr<Grad> of;  // identifies the value
    ops::Fp8Matrix matrix;
  } newest_cast_;
};

/// Runs `segment` and keeps only its inputs; the backward pass runs it again. The gradients are
/// bit-identical to those without recomputation, because every op is deterministic (Chen et al.
/// 2016).
std::vector<Var> recompute(
    Graph& graph, const std::vector<Var>& inputs,
    std::function<std::vector<Var>(Graph&, const std::vector<Var>&)> segment);

}  // namespace sortie::trainer
