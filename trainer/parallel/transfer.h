// Transfer: a tensor of a device on its way to or from one other rank.
#pragma once

#include <cstddef>
#include <vector>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Movable; done (wait()) before it goes. Where the transport has no access to the device's memory,
/// a copy in host memory travels.
class Transfer {
 public:
  Transfer() = default;
  /// Starts; returns at once. `values` are dense, and there: the streams that write them have been
  /// waited for. Nobody writes to them until the transfer is done. The context and the communicator
  /// outlive it.
  static Transfer send(ExecutionContext& context, Communicator& group, Tensor values, int to);
  static Transfer receive(ExecutionContext& context, Communicator& group, DType dtype, Shape shape,
                          int from);

  bool poll() { return handle_->poll(); }
  /// The values, which were received or sent.
  Tensor wait();

 private:
  ExecutionContext* context_ = nullptr;
  Tensor values_;
  std::vector<std::byte> copy_;
  bool receives_ = false;
  Communicator::Handle handle_;
};

}  // namespace sortie::trainer
