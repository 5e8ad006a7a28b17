// RepeatedWork: what a device is given again and again, the same each time but for values that it
// reads from its own memory. The first times it is given op by op; then, where the device can, it
// is captured once as one graph, which is launched from then on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

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

  /// The work is another one from here on.
  void forget();
  /// Never a graph.
  void never_capture() { captures_ = false; }
  bool is_graph() const { return graph_ != nullptr; }
  /// Why it is not a graph although the device captures: what a capture has run into. Once.
  std::optional<std::string> take_failure() { return std::exchange(failure_, std::nullopt); }

 private:
  void run_ops(ExecutionContext& context, const std::function<void()>& ops);
  bool capture(ExecutionContext& context, const std::function<void()>& ops,
               const std::function<void()>& undo);

  const std::string name_;
  bool captures_ = true;
  std::unique_ptr<CapturedWork> graph_;
  std::uint64_t version_ = 0;  // of the memory that the graph uses
  std::int64_t flop_ = 0;
  int times_ = 0;    // op by op, since anything has changed
  int settled_ = 0;  // of them, the last ones that have found all memory that they took
  std::optional<std::string> failure_;
};

}  // namespace sortie::trainer
