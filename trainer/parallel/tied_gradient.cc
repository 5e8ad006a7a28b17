#include "trainer/parallel/tied_gradient.h"

#include <algorithm>
#include <deque>

#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"

namespace sortie::trainer {
namespace {

/// Elements of a piece, and pieces on their way at a time: little memory beside the gradient.
constexpr std::int64_t kPiece = std::int64_t{1} << 20;
constexpr std::size_t kPieces = 3;

/// A piece of the gradient and what comes for it.
struct Swap {
  Tensor own, other;
  std::vector<float> own_copy, other_copy;  // where the device's memory is closed to the transport
  Communicator::Handle send, receive;
};

}  // namespace

TiedGradient::TiedGradient(ParameterStore& store, Parameter* parameter, Communicator& stages)
    : store_(store), stages_(stages) {
  if (parameter != nullptr && parameter->trained() && stages.size() > 1) parameter_ = parameter;
}

void TiedGradient::hold() {
  if (parameter_ != nullptr) parameter_->use_recorded();
}

void TiedGradient::add_other() {
  if (parameter_ == nullptr) return;
  if (store_.gathers()) {
    // This rank's share, which its like on the other stage has, too.
    for (const OwnRun& run : parameter_->own_runs()) add_other_to(store_.gradients_of(run));
  } else {
    add_other_to(parameter_->grad().view({parameter_->elements()}));
  }
  parameter_->use_done();
}

void TiedGradient::add_other_to(const Tensor& gradient) {
  ExecutionContext& context = store_.context();
  const bool copies =
      context.device().kind != DeviceKind::cpu && context.device().kind != DeviceKind::meta;
  const int peer = stages_.rank() == 0 ? stages_.size() - 1 : 0;
  const std::int64_t all = gradient.elements();
  context.synchronize();
  std::deque<Swap> under_way;
  const auto add_first = [&] {
    Swap& swap = under_way.front();
    swap.send->wait();
    swap.receive->wait();
    if (copies) ops::copy_from_host<float>(context, swap.other_copy, swap.other);
    ops::add(context, swap.own, swap.other, swap.own);
    under_way.pop_front();
  };
  for (std::int64_t begin = 0; begin < all; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, all - begin);
    Swap& swap = under_way.emplace_back();
    swap.own = gradient.slice(0, begin, count);
    swap.other = context.empty(DType::f32, {count});
    Tensor out = swap.own, in = swap.other;
    if (copies) {
      swap.own_copy = ops::copy_to_host<float>(context, swap.own);
      swap.other_copy.resize(swap.own_copy.size());
      out = Tensor::wrap(swap.own_copy.data(), DType::f32, {count});
      in = Tensor::wrap(swap.other_copy.data(), DType::f32, {count});
    }
    swap.receive = stages_.receive_async(in, peer);
    swap.send = stages_.send_async(out, peer);
    if (under_way.size() == kPieces) add_first();
  }
  while (!under_way.empty()) add_first();
}

}  // namespace sortie::trainer
