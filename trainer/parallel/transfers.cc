#include "trainer/parallel/transfers.h"

#include <utility>

#include "trainer/parallel/device_communicator.h"

namespace sortie::trainer {

std::size_t Transfers::receive(Shape shape, int from) {
  receives_.push_back({context_->empty(dtype_, shape), from});
  return receives_.size() - 1;
}

void Transfers::begin() {
  const Event ready = context_->record();
  if (sends_between_devices(*group_)) {
    together_ = exchange_between_devices(*group_, dtype_, sends_, receives_, ready);
    return;
  }
  for (const auto& [values, from] : receives_)
    received_.push_back(group_->receive_async(values, from, ready));
  for (const auto& [values, to] : sends_) sent_.push_back(group_->send_async(values, to, ready));
}

void Transfers::wait_together() {
  if (!together_) return;
  std::exchange(together_, nullptr)->wait_on(*context_);
  sends_.clear();
}

Tensor Transfers::take(std::size_t number) {
  wait_together();
  if (!received_.empty()) std::exchange(received_[number], nullptr)->wait_on(*context_);
  return std::move(receives_[number].values);
}

void Transfers::poll() {
  if (together_ && together_->poll()) wait_together();
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    if (!sent_[i] || !sent_[i]->poll()) continue;
    sent_[i] = nullptr;
    sends_[i].values = {};
  }
}

void Transfers::finish() {
  wait_together();
  for (auto& handle : received_)
    if (handle) std::exchange(handle, nullptr)->wait_on(*context_);
  for (auto& handle : sent_)
    if (handle) std::exchange(handle, nullptr)->wait();
  sends_.clear();
  receives_.clear();
}

}  // namespace sortie::trainer
