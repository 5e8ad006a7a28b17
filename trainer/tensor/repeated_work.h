// RepeatedWork: work that is given to a device again and again, identical each time except for
// values that it reads from device memory. The first runs are submitted op by op. Then, if the
// device supports it, the work is captured once as a graph, and later runs launch the graph.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/tensor/context.h"

namespace sortie::trainer {

class RepeatedWork {
 public:
  /// `name` is for messages: "the update".
  explicit RepeatedWork(std::string name) : name_(std::move(name)) {}

  enum class Done : std::uint8_t { op_by_op, as_graph };
  /// Runs the work on the current stream, with allocations from a RepeatedMemory of the context's
  /// allocator. `ops` submits the work to the device. Tensors that it reads and writes, except
  /// those that it allocates and frees itself, must be the same in every run. If the work runs as a
  /// graph, `ops` is not called: the caller must make its changes on the host, except for the count
  /// of operations. `undo` reverts the host changes of `ops` after a failed capture, before `ops`
  /// is called again. Returns as_graph only if `ops` was not called.
  Done run(ExecutionContext& context, const std::function<void()>& ops,
           const std::function<void()>& undo = {});

  /// Called within `ops`: runs `act` on the host at this point of the work in every run, for
  /// example to begin a collective on the results so far. In a run op by op, `act` is called at
  /// once. A graph is split at this point, and `act` is called after the part before it has been
  /// launched. Objects that `act` refers to must outlive this object.
  void between(ExecutionContext& context, std::function<void()> act);

  /// Drops the graph, because the work differs from now on.
  void forget();
  /// Disables captures.
  void never_capture() { captures_ = false; }
  bool is_graph() const { return !parts_.empty() && !capturing_; }
  bool is_capturing() const { return capturing_; }
  /// Returns once why the work is not a graph although the device supports captures; nullopt
  /// otherwise.
  std::optional<std::string> take_failure() { return std::exchange(failure_, std::nullopt); }

 private:
  void run_ops(ExecutionContext& context, const std::function<void()>& ops);
  bool capture(ExecutionContext& context, const std::function<void()>& ops,
               const std::function<void()>& undo);

  const std::string name_;
  bool captures_ = true;
  void launch();

  struct Part {
    std::unique_ptr<CapturedWork> graph;
    std::function<void()> act;  // called after the graph's launch; may be empty
  };
  std::vector<Part> parts_;
  bool capturing_ = false;
  std::uint64_t version_ = 0;  // Allocator::repeated_version() at the capture
  std::int64_t flop_ = 0;
  int times_ = 0;    // runs op by op since the last forget()
  int settled_ = 0;  // the latest of them in a row that needed no new memory
  std::optional<std::string> failure_;
};

}  // namespace sortie::trainer
