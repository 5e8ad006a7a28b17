#include "trainer/parallel/post_office.h"

#include <fmt/format.h>

#include <cstring>

#include "trainer/random/random.h"

namespace sortie::trainer {

PostOffice::PostOffice(int size, const ThreadRankOptions& options)
    : options_(options), ranks_(static_cast<std::size_t>(size)) {
  if (options_.max_delay.count() > 0)
    courier_ = std::jthread([this](const std::stop_token& stop) { carry(stop); });
}

PostOffice::~PostOffice() = default;  // the courier is stopped and joined before all else

void PostOffice::settle(Message* message, int owner, Message::State state) {
  if (message == nullptr) return;
  Rank& rank = ranks_[static_cast<std::size_t>(owner)];
  message->state.store(state, std::memory_order_release);
  ++rank.completed;
  rank.changed.notify_one();
}

void PostOffice::deliver(const Key& key) {
  const auto found = boxes_.find(key);
  if (found == boxes_.end()) return;
  Box& box = found->second;
  const Time now = std::chrono::steady_clock::now();
  while (!box.sent.empty() && !box.wanted.empty() && box.sent.front().due <= now) {
    Sent& sent = box.sent.front();
    Wanted& wanted = box.wanted.front();
    if (sent.bytes.size() != wanted.bytes.size()) {
      if (!broken_)
        mismatch_ = fmt::format("rank {} sent {} bytes, rank {} expects {}", key.from,
                                sent.bytes.size(), key.to, wanted.bytes.size());
      broken_ = true;
      for (Rank& rank : ranks_) rank.changed.notify_one();
      return;
    }
    if (!sent.bytes.empty()) std::memcpy(wanted.bytes.data(), sent.bytes.data(), sent.bytes.size());
    settle(sent.message, key.from, Message::State::done);
    settle(wanted.message, key.to, Message::State::done);
    box.sent.pop_front();
    box.wanted.pop_front();
  }
  if (box.sent.empty() && box.wanted.empty()) boxes_.erase(found);
}

void PostOffice::send(int from, int to, int tag, std::span<const std::byte> bytes,
                      Message& message) {
  const std::lock_guard lock(mutex_);
  if (ranks_[static_cast<std::size_t>(to)].fate) {
    settle(&message, from, Message::State::lost);
    return;
  }
  if (options_.on_send) options_.on_send(from, to, bytes.size());
  Rank& sender = ranks_[static_cast<std::size_t>(from)];
  const std::uint64_t random = random_bits(
      options_.seed ^ random_bits(static_cast<std::uint64_t>(from) << 32 | sender.sends++));
  Sent sent{bytes, {}, &message, {}};
  if ((random & 1) != 0) {  // as MPI does with short messages: the sender continues at once
    sent.copy.assign(bytes.begin(), bytes.end());
    sent.bytes = sent.copy;
    sent.message = nullptr;
    settle(&message, from, Message::State::done);
  }
  const Key key{to, from, tag};
  if (options_.max_delay.count() > 0) {
    const auto limit = static_cast<std::uint64_t>(options_.max_delay.count()) + 1;
    const std::chrono::microseconds delay((random >> 1) % limit);
    sent.due = std::chrono::steady_clock::now() + delay;
    due_.push({sent.due, key});
    posted_.notify_one();
  }
  boxes_[key].sent.push_back(std::move(sent));
  deliver(key);
}

void PostOffice::receive(int from, int to, int tag, std::span<std::byte> bytes, Message& message) {
  const std::lock_guard lock(mutex_);
  const Key key{to, from, tag};
  Box& box = boxes_[key];
  // Messages that a rank sent before it left still arrive.
  if (ranks_[static_cast<std::size_t>(from)].fate && box.sent.size() <= box.wanted.size()) {
    settle(&message, to, Message::State::lost);
    return;
  }
  box.wanted.push_back({bytes, &message});
  deliver(key);
}

void PostOffice::withdraw(Message& message) {
  const std::lock_guard lock(mutex_);
  for (auto& [key, box] : boxes_) {
    for (Sent& sent : box.sent) {
      if (sent.message != &message) continue;
      sent.copy.assign(sent.bytes.begin(), sent.bytes.end());
      sent.bytes = sent.copy;
      sent.message = nullptr;
      return;
    }
    if (std::erase_if(box.wanted, [&](const Wanted& one) { return one.message == &message; }) > 0)
      return;
  }
}

void PostOffice::leave(int rank, const std::string& why) {
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)].fate = why;
  for (auto& [key, box] : boxes_) {
    if (key.to == rank) {  // no receiver is left
      for (Sent& sent : box.sent) settle(sent.message, key.from, Message::State::lost);
      box.sent.clear();
      box.wanted.clear();
    }
    if (key.from == rank) {
      while (box.wanted.size() > box.sent.size()) {
        settle(box.wanted.back().message, key.to, Message::State::lost);
        box.wanted.pop_back();
      }
    }
  }
}

std::string PostOffice::fate_of(int rank) {
  const std::lock_guard lock(mutex_);
  return ranks_[static_cast<std::size_t>(rank)].fate.value_or("");
}

void PostOffice::check() {
  if (!broken_) return;
  const std::lock_guard lock(mutex_);
  throw CommunicatorError(mismatch_);
}

void PostOffice::wait_for_change(int rank, std::uint64_t seen) {
  constexpr std::chrono::milliseconds kNap{1};
  std::unique_lock lock(mutex_);
  Rank& own = ranks_[static_cast<std::size_t>(rank)];
  own.changed.wait_for(lock, kNap, [&] { return own.completed != seen || broken_; });
}

void PostOffice::carry(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (due_.empty()) {
      posted_.wait(lock, stop, [&] { return !due_.empty(); });
      continue;
    }
    const Time next = due_.top().at;
    if (std::chrono::steady_clock::now() < next) {
      posted_.wait_until(lock, stop, next, [&] { return due_.top().at < next; });
      continue;
    }
    const Key key = due_.top().key;
    due_.pop();
    deliver(key);
  }
}

}  // namespace sortie::trainer
