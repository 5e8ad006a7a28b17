// Transfers: messages that all ranks of a group start at the same point of their work.
#pragma once

#include <cstddef>
#include <vector>

#include "trainer/parallel/device_group.h"

namespace sortie::trainer {

/// Each rank adds its own messages, or none, and calls begin() at the same point. Between GPUs the
/// messages are one collective, for which the host does not wait. Otherwise each is a separate
/// message. Movable. finish() must be called before it is destroyed. The context and the
/// communicator must outlive it.
class Transfers {
 public:
  /// All values are of type `dtype`.
  Transfers(ExecutionContext& context, Communicator& group, DType dtype)
      : context_(&context), group_(&group), dtype_(dtype) {}

  /// `values` must be dense and must not be written until they are sent. Messages of one rank to
  /// another match in the order in which both ranks add them.
  void send(Tensor values, int to) { sends_.push_back({std::move(values), to}); }
  /// Returns the number of the message, for take().
  std::size_t receive(Shape shape, int from);
  /// Starts the added messages when the current stream reaches this point.
  void begin();

  /// Returns the values of a message, for which the current stream waits. Once per message.
  Tensor take(std::size_t number);
  /// Makes progress and releases the memory of messages that are sent by now.
  void poll();
  /// Waits until all messages are complete. Drops values that were not taken.
  void finish();

 private:
  void wait_together();

  ExecutionContext* context_;
  Communicator* group_;
  DType dtype_;
  std::vector<DeviceMessage> sends_, receives_;
  Communicator::Handle together_;                      // between GPUs
  std::vector<Communicator::Handle> sent_, received_;  // otherwise; nullptr once waited for
};

}  // namespace sortie::trainer
