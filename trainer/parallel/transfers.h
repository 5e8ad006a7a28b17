// Transfers: messages that all ranks of a group begin at the same point of their work.
#pragma once

#include <cstddef>
#include <vector>

#include "trainer/parallel/device_group.h"

namespace sortie::trainer {

/// Each rank has messages of its own, or none, and calls begin() at the same point. Between GPUs
/// they are then one collective, on which the host does not wait; elsewhere each is by itself, and
/// makes progress by itself. Movable; done (finish()) before it goes. The context and the
/// communicator outlive it.
class Transfers {
 public:
  /// Of values of one type.
  Transfers(ExecutionContext& context, Communicator& group, DType dtype)
      : context_(&context), group_(&group), dtype_(dtype) {}

  /// `values` are dense, and nobody writes to them until they are sent. Messages of one rank to
  /// another are received in the order in which they were added on both.
  void send(Tensor values, int to) { sends_.push_back({std::move(values), to}); }
  /// The message's number, for take().
  std::size_t receive(Shape shape, int from);
  /// What was added starts when the current stream gets here.
  void begin();

  /// The values of a message, which the current stream has received when it gets here. Once each.
  Tensor take(std::size_t number);
  /// Gives up the memory of what is sent by now.
  void poll();
  /// All is sent. What was not taken goes.
  void finish();

 private:
  void wait_together();

  ExecutionContext* context_;
  Communicator* group_;
  DType dtype_;
  std::vector<DeviceMessage> sends_, receives_;
  Communicator::Handle together_;                      // between GPUs
  std::vector<Communicator::Handle> sent_, received_;  // elsewhere; null where it was waited for
};

}  // namespace sortie::trainer
