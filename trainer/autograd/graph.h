// The tape. A Graph records the ops of one forward pass (one micro-batch, or one recomputed
// segment); backward() runs them in reverse and frees what each one had saved. Any number of graphs
// may be alive.
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

/// The sum of the gradients that came in so far for one value. Gradient tensors are shared between
/// values, so they are never written in place unless solely owned.
struct Grad {
  Tensor tensor;
};

/// A value on the tape. Backward steps hold on to `grad`, and to `data` only where they need it:
/// what no step needs is freed during the forward pass.
struct Var {
  Tensor data;
  std::shared_ptr<Grad> grad;
  explicit operator bool() const { return data.defined(); }
};

class Graph {
 public:
  enum class Mode {
    record,     // forward pass of training: ops are recorded, uses of parameters counted
    reserve,    // forward pass of a segment that will be recomputed: uses counted, nothing recorded
    replay,     // its recomputation: recorded, uses were counted before
    inference,  // neither
  };
  Graph(ExecutionContext& context, Mode mode) : context_(context), mode_(mode) {}

  ExecutionContext& context() { return context_; }
  Mode mode() const { return mode_; }
  /// Of keys and values, for the attention of an inference pass; null = none.
  KvCache* cache() const { return cache_; }
  void set_cache(KvCache* cache) { cache_ = cache; }
  bool recording() const { return mode_ == Mode::record || mode_ == Mode::replay; }

  Var value(Tensor data) { return {std::move(data), std::make_shared<Grad>()}; }

  /// A parameter is used by the op being recorded; its backward step calls use_done() once.
  void use(Parameter& parameter) {
    if (!parameter.trained()) return;
    flows_ = true;
    if (mode_ == Mode::record || mode_ == Mode::reserve) parameter.use_recorded();
  }
  /// Adds the op's backward step. It is run even where no gradient reached the op's outputs, so
  /// that uses of parameters are always settled.
  void record(std::function<void()> backward) {
    if (recording() && flows_) steps_.push_back(std::move(backward));
  }
  /// Work of a backward step that nothing else of the pass waits for, as the gradient of a weight.
  /// It is done beside the next exchanges between ranks, at the latest at the end of backward(), in
  /// the order in which it came. What it holds is kept until then.
  void postpone(std::function<void()> work) {
    (leaves_weights_ ? left_ : postponed_).push_back(std::move(work));
  }
  std::size_t postponed() const { return postponed_.size(); }
  /// The first `count` of them.
  void do_postponed(std::size_t count);

  /// From here on backward() does nothing of what is put off, and neither do exchanges: the caller
  /// takes it, in the order in which it came. Not for what a recomputation puts off.
  void leave_weight_gradients() { leaves_weights_ = true; }
  /// The gradients of weights, which `work` adds where they are `trained`: at once, or put off
  /// where they may be done beside exchanges, or the caller takes them.
  template <class Work>
  void settle_weights(bool trained, bool beside_exchanges, Work work) {
    if (trained && (beside_exchanges || leaves_weights_))
      postpone(std::move(work));
    else
      work();
  }
  std::deque<std::function<void()>> take_weight_gradients() { return std::exchange(left_, {}); }

  /// Whether something trained was used so far. What comes before that needs no gradient: it is
  /// neither kept nor recorded, so frozen first layers cost a forward pass alone.
  bool flows() const { return flows_; }
  void set_flows(bool flows) { flows_ = flows; }

  /// Whoever wants to see what passes: called with a module's name ("layers.0.mlp.down") and its
  /// output, in the order of the forward pass.
  void set_observer(std::function<void(std::string_view name, const Tensor& value)> observer) {
    observer_ = std::move(observer);
  }
  bool observed() const { return observer_ != nullptr; }
  void observe(const Parameter& weight, const Tensor& value) {
    if (!observer_) return;
    const std::string_view name = weight.name();
    observer_(name.substr(0, name.rfind('.')), value);
  }

  /// A value in E4M3, with the copies that are wanted at least. That of the value which came last
  /// is held until the next comes: products that follow each other with one input cast it once.
  ops::Fp8Matrix in_fp8(const Var& value, ops::Fp8Forms forms, const ops::Fp8Amax& amax = {});

  /// into += grad. Takes `grad` over when it is the first.
  void add_grad(Grad& into, Tensor grad);

  /// Runs all steps in reverse with these gradients at the outputs. Gradients of inputs (values
  /// made with value()) are then found in Var::grad, by `inputs_done` too, which is called, where
  /// there is one, before what is left of what was put off.
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
    std::shared_ptr<Grad> of;  // which value
    ops::Fp8Matrix matrix;
  } newest_cast_;
};

/// Runs `segment` without keeping anything but its inputs; the backward pass runs it again. The
/// gradients are the same bits as without, because every op is deterministic (Chen et al. 2016).
std::vector<Var> recompute(
    Graph& graph, const std::vector<Var>& inputs,
    std::function<std::vector<Var>(Graph&, const std::vector<Var>&)> segment);

}  // namespace sortie::trainer
