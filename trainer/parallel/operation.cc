#include "trainer/parallel/operation.h"

#include <fmt/format.h>

namespace sortie::trainer {

Lane::~Lane() {
  for (Message& message : flight_)
    if (message.state.load(std::memory_order_acquire) == Message::State::pending)
      transport_->withdraw(message);
}

std::int64_t Lane::finished() {
  while (finished_ < posted_) {
    Message& message = flight_[static_cast<std::size_t>(finished_) % flight_.size()];
    const auto state = message.state.load(std::memory_order_acquire);
    if (state == Message::State::lost)
      throw CommunicatorError(
          fmt::format("rank {} is lost: {}", peer_, transport_->fate_of(peer_)));
    if (state != Message::State::done) break;
    ++finished_;
  }
  return finished_;
}

Message& Lane::next() {
  SORTIE_CHECK(!full(), "more than {} messages in flight", flight_.size());
  Message& message = flight_[static_cast<std::size_t>(posted_++) % flight_.size()];
  message.state.store(Message::State::pending, std::memory_order_relaxed);
  return message;
}

Lane& LaneOperation::add_lane(Transport& transport, int member, int tag, bool receives,
                              std::int64_t window) {
  const int peer = group_.world_ranks[static_cast<std::size_t>(member)];
  return lanes_.emplace_back(transport, peer, tag, window, receives).lane;
}

bool LaneOperation::lanes_idle() {
  for (Kept& kept : lanes_)
    if (!kept.lane.idle()) return false;
  return true;
}

std::vector<int> LaneOperation::missing() {
  std::vector<int> senders, takers;
  for (Kept& kept : lanes_)
    if (!kept.lane.idle()) (kept.receives ? senders : takers).push_back(kept.lane.peer());
  return senders.empty() ? takers : senders;
}

}  // namespace sortie::trainer
