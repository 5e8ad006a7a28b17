// Transfer: a tensor of a device on its way to or from one other rank.
#pragma once

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Movable; done (wait()) before it goes.
class Transfer {
 public:
  Transfer() = default;
  /// Starts when the current stream gets here; returns at once. `values` are dense, and nobody
  /// writes to them until the transfer is done. The context and the communicator outlive it.
  static Transfer send(ExecutionContext& context, Communicator& group, Tensor values, int to);
  static Transfer receive(ExecutionContext& context, Communicator& group, DType dtype, Shape shape,
                          int from);

  bool poll() { return handle_->poll(); }
  /// The values, which were sent, or which the current stream has received when it gets here.
  Tensor wait();
  /// Done when the current stream gets here, where the group sends from the device (stage_lines.h):
  /// the host goes on. Elsewhere the same as wait().
  void wait_on_stream();

 private:
  ExecutionContext* context_ = nullptr;
  Tensor values_;
  bool receives_ = false;
  Communicator::Handle handle_;
};

}  // namespace sortie::trainer
