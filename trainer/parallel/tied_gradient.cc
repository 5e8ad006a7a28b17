#include "trainer/parallel/tied_gradient.h"

#include <algorithm>
#include <deque>

#include "trainer/ops/elementwise.h"

namespace sortie::trainer {
namespace {

/// Elements of a piece, and pieces in flight at a time: limits the memory needed in addition to the
/// gradient.
constexpr std::int64_t kPiece = std::int64_t{1} << 20;
constexpr std::size_t kPieces = 3;

/// A piece of the gradient, and the other stage's piece.
struct Swap {
  Tensor own, other;
  Communicator::Handle send, receive;
};

}  // namespace

TiedGradient::TiedGradient(ParameterStore& store, Parameter* parameter, Communicator& stages,
                           StageLines* lines)
    : store_(store), stages_(stages), lines_(lines) {
  if (parameter != nullptr && parameter->trained() && stages.size() > 1) parameter_ = parameter;
}

void TiedGradient::hold() {
  if (parameter_ != nullptr) parameter_->use_recorded();
}

void TiedGradient::add_other() {
  if (parameter_ == nullptr) return;
  if (store_.gathers()) {
    // This rank's share; its counterpart on the other stage has the same share.
    for (const OwnRun& run : parameter_->own_runs()) add_other_to(store_.gradients_of(run));
  } else {
    add_other_to(parameter_->grad().view({parameter_->elements()}));
  }
  parameter_->use_done();
}

void TiedGradient::add_other_to(const Tensor& gradient) {
  ExecutionContext& context = store_.context();
  const int peer = stages_.rank() == 0 ? stages_.size() - 1 : 0;
  const std::int64_t all = gradient.elements();
  std::deque<Swap> under_way;
  const auto add_first = [&] {
    Swap& swap = under_way.front();
    swap.send->wait_on(context);
    swap.receive->wait_on(context);
    ops::add(context, swap.own, swap.other, swap.own);
    under_way.pop_front();
  };
  for (std::int64_t begin = 0; begin < all; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, all - begin);
    Swap& swap = under_way.emplace_back();
    swap.own = gradient.slice(0, begin, count);
    swap.other = context.empty(DType::f32, {count});
    const Event ready = context.record();
    swap.receive = lines_->receive(swap.other, peer, ready);
    swap.send = lines_->send(swap.own, peer, ready);
    if (under_way.size() == kPieces) add_first();
  }
  while (!under_way.empty()) add_first();
}

}  // namespace sortie::trainer
