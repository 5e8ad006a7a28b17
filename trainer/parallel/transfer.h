// Transfer: a tensor that is sent to or received from one other rank, in stream order.
#pragma once

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Movable. Must be waited for before it is destroyed.
class Transfer {
 public:
  Transfer() = default;
  /// Starts when the current stream reaches this point; does not block. `values` must be dense and
  /// must not be written until the transfer is done. The context and the communicator must outlive
  /// it.
  static Transfer send(ExecutionContext& context, Communicator& group, Tensor values, int to);
  static Transfer receive(ExecutionContext& context, Communicator& group, DType dtype, Shape shape,
                          int from);

  bool poll() { return handle_->poll(); }
  /// Returns the values. Of a send: blocks until it is complete. Of a receive: the current stream
  /// waits for the values.
  Tensor wait();
  /// Makes the current stream wait for the transfer. The host does not block if the group sends
  /// directly between devices (stage_lines.h).
  void wait_on_stream();

 private:
  ExecutionContext* context_ = nullptr;
  Tensor values_;
  bool receives_ = false;
  Communicator::Handle handle_;
};

}  // namespace sortie::trainer
