#include "trainer/parallel/transfer.h"

#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

/// The transport reads and writes memory of the CPU's; the meta device has none, and its groups
/// only count.
bool travels_as_copy(const Device& device) {
  return device.kind != DeviceKind::cpu && device.kind != DeviceKind::meta;
}

std::size_t bytes_of_values(const Tensor& values) {
  return static_cast<std::size_t>(values.elements()) * dtype_bytes(values.dtype());
}

}  // namespace

Transfer Transfer::send(ExecutionContext& context, Communicator& group, Tensor values, int to) {
  Transfer transfer;
  transfer.context_ = &context;
  transfer.values_ = std::move(values);
  Tensor from = transfer.values_;
  if (travels_as_copy(context.device())) {
    transfer.copy_.resize(bytes_of_values(from));
    ops::copy_bytes_to_host(context, from, transfer.copy_);
    from = Tensor::wrap(transfer.copy_.data(), from.dtype(), from.shape());
  }
  transfer.handle_ = group.send_async(from, to);
  return transfer;
}

Transfer Transfer::receive(ExecutionContext& context, Communicator& group, DType dtype, Shape shape,
                           int from) {
  Transfer transfer;
  transfer.context_ = &context;
  transfer.receives_ = true;
  transfer.values_ = context.empty(dtype, shape);
  Tensor into = transfer.values_;
  if (travels_as_copy(context.device())) {
    transfer.copy_.resize(bytes_of_values(into));
    into = Tensor::wrap(transfer.copy_.data(), dtype, shape);
  }
  transfer.handle_ = group.receive_async(into, from);
  return transfer;
}

Tensor Transfer::wait() {
  handle_->wait();
  if (receives_ && !copy_.empty()) ops::copy_bytes_from_host(*context_, copy_, values_);
  return std::move(values_);
}

}  // namespace sortie::trainer
