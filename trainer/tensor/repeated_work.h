// RepeatedWork: what a device is given again and again, the same each time but for values that it
// reads from its own memory. The first times it is given op by op; then, where the device can, it
// is captured once as one graph, which is launched from then on.
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
  /// Does the work in the current stream, in the context's memory of repeated work. `ops` gives it
  /// to the device: tensors that it reads and writes, other than those that it takes and lets go
  /// itself, are the same ones each time. Where it is done as a graph, nothing of `ops` is called:
  /// what it changes on the host is up to the caller, but for the count of operations. `undo` takes
  /// back what `ops` has changed on the host where a capture has failed and `ops` is called again.
  Done run(ExecutionContext& context, const std::function<void()>& ops,
           const std::function<void()>& undo = {});

  /// Within `ops`: what the host does at this place of the work each time, as to begin a collective
  /// of what the work has left so far. Done at once, or, where the work is a graph, which is cut
  /// there, when the graph up to there has been launched. What it refers to outlives this object.
  void between(ExecutionContext& context, std::function<void()> act);

  /// The work is another one from here on.
  void forget();
  /// Never a graph.
  void never_capture() { captures_ = false; }
  bool is_graph() const { return !parts_.empty() && !capturing_; }
  bool is_capturing() const { return capturing_; }
  /// Why it is not a graph although the device captures: what a capture has run into. Once.
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
    std::function<void()> act;  // behind it; may be empty
  };
  std::vector<Part> parts_;
  bool capturing_ = false;
  std::uint64_t version_ = 0;  // of the memory that the graphs use
  std::int64_t flop_ = 0;
  int times_ = 0;    // op by op, since anything has changed
  int settled_ = 0;  // of them, the last ones that have found all memory that they took
  std::optional<std::string> failure_;
};

}  // namespace sortie::trainer
