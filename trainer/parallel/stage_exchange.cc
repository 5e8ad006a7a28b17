#include "trainer/parallel/stage_exchange.h"

#include <algorithm>
#include <set>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

using Kind = PipelineAction::Kind;

/// Receives from one sender that are posted in addition to the one that is taken, so that a result
/// travels while its receiver works on another. Between GPUs there are none: a kernel that waits
/// for a result that its sender has not begun to compute would occupy a part of the GPU, and would
/// deadlock if the driver waits for kernels before it loads one or frees memory. A receive is then
/// posted only when its message is taken.
constexpr std::size_t kAhead = 2;

}  // namespace

void StageExchange::begin(const PipelineShape& shape, Pass pass, Form form) {
  SORTIE_CHECK(sent_.empty(), "messages of the last step are on their way");
  SORTIE_CHECK(shape.stages == stages_.size(), "{} stages in a group of {}", shape.stages,
               stages_.size());
  shape_ = shape;
  form_ = std::move(form);
  inboxes_.clear();
  const int own = stages_.rank();
  std::set<int> senders = {(own + 1) % shape.stages, (own + shape.stages - 1) % shape.stages};
  senders.erase(own);
  for (const int from : senders) {
    const auto actions =
        pass == Pass::training ? training_schedule(shape, from) : forward_schedule(shape, from);
    Inbox& inbox = inboxes_.emplace_back();
    inbox.from = from;
    for (const PipelineMessage& message : messages_between(shape, from, own, actions))
      if (sent(own, message)) inbox.next.push_back(message);
    post_ahead(inbox);
  }
}

bool StageExchange::takes_gradient(int run) const {
  const int at = shape_.global_run(stages_.rank(), run);
  return at + 1 < shape_.runs() && form_.first_trained_run <= at;
}

bool StageExchange::gives_gradient(int run) const {
  const int at = shape_.global_run(stages_.rank(), run);
  return at > 0 && form_.first_trained_run < at;
}

/// Whether a message for a stage is sent at all.
bool StageExchange::sent(int stage, const PipelineMessage& message) const {
  return message.kind == Kind::forward ||
         form_.first_trained_run <= shape_.global_run(stage, message.run);
}

void StageExchange::post(Inbox& inbox) {
  Expected expected;
  expected.message = inbox.next.front();
  inbox.next.pop_front();
  const PipelineMessage& message = expected.message;
  const StageLines::End line = lines_.from(inbox.from);
  expected.hidden = Transfer::receive(context_, line.group, form_.dtype,
                                      {form_.rows(message.micro_batch), form_.width}, line.peer);
  const std::int64_t sums =
      message.kind == Kind::forward ? form_.forward_sums : form_.backward_sums;
  if (sums > 0)
    expected.sums = Transfer::receive(context_, line.group, DType::f64, {sums}, line.peer);
  inbox.posted.push_back(std::move(expected));
}

void StageExchange::post_ahead(Inbox& inbox) {
  while (!lines_.direct() && inbox.posted.size() < kAhead && !inbox.next.empty()) post(inbox);
}

StageExchange::Inbox& StageExchange::inbox_of(const PipelineAction& action) {
  const int at = shape_.global_run(stages_.rank(), action.run);
  const int from = (action.kind == Kind::forward ? at - 1 : at + 1) % shape_.stages;
  const auto found = std::ranges::find(inboxes_, from, &Inbox::from);
  SORTIE_CHECK(found != inboxes_.end(), "stage {} sends nothing", from);
  return *found;
}

StageParcel StageExchange::take(const PipelineAction& action) {
  Inbox& inbox = inbox_of(action);
  const PipelineMessage wanted{action.kind, action.micro_batch, action.run};
  const auto found = [&] { return std::ranges::find(inbox.posted, wanted, &Expected::message); };
  while (found() == inbox.posted.end()) {
    SORTIE_CHECK(!inbox.next.empty(), "no message for micro-batch {} of run {}", action.micro_batch,
                 action.run);
    post(inbox);
  }
  Expected expected = std::move(*found());
  inbox.posted.erase(found());
  post_ahead(inbox);
  StageParcel parcel;
  parcel.hidden = expected.hidden.wait();
  if (expected.sums) parcel.sums = expected.sums->wait();
  return parcel;
}

void StageExchange::send(const PipelineAction& action, StageParcel parcel) {
  int to = 0;
  PipelineMessage message;
  if (!message_of(shape_, stages_.rank(), action, to, message) || !sent(to, message)) return;
  const StageLines::End line = lines_.to(to);
  sent_.push_back(Transfer::send(context_, line.group, std::move(parcel.hidden), line.peer));
  if (parcel.sums.defined())
    sent_.push_back(Transfer::send(context_, line.group, std::move(parcel.sums), line.peer));
  poll();
}

void StageExchange::poll() {
  // Polling a message that waits for its values may run deferred ops, which call poll() again.
  if (polling_) return;
  polling_ = true;
  move_messages();
  polling_ = false;
}

void StageExchange::move_messages() {
  while (!sent_.empty() && sent_.front().poll()) sent_.pop_front();
  if (!sent_.empty()) return;  // polling it has made progress on all messages of this rank
  for (Inbox& inbox : inboxes_)
    for (Expected& expected : inbox.posted)
      if (!expected.hidden.poll()) return;
}

void StageExchange::finish() {
  while (!sent_.empty()) {
    // Removed from the queue first: ops that run meanwhile may call poll().
    Transfer first = std::move(sent_.front());
    sent_.pop_front();
    // Between GPUs the stream waits, and the host continues with the next step.
    if (lines_.direct())
      first.wait_on_stream();
    else
      (void)first.wait();
  }
}

}  // namespace sortie::trainer
