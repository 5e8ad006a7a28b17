#include "trainer/parallel/transfer.h"

namespace sortie::trainer {

Transfer Transfer::send(ExecutionContext& context, Communicator& group, Tensor values, int to) {
  Transfer transfer;
  transfer.context_ = &context;
  transfer.values_ = std::move(values);
  transfer.handle_ = group.send_async(transfer.values_, to, context.record());
  return transfer;
}

Transfer Transfer::receive(ExecutionContext& context, Communicator& group, DType dtype, Shape shape,
                           int from) {
  Transfer transfer;
  transfer.context_ = &context;
  transfer.receives_ = true;
  transfer.values_ = context.empty(dtype, shape);
  transfer.handle_ = group.receive_async(transfer.values_, from, context.record());
  return transfer;
}

Tensor Transfer::wait() {
  if (receives_)
    handle_->wait_on(*context_);
  else
    handle_->wait();
  return std::move(values_);
}

void Transfer::wait_on_stream() {
  handle_->wait_on(*context_);
  values_ = {};
}

}  // namespace sortie::trainer
