#include "trainer/tensor/stream.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {

std::uint64_t WorkQueues::random() {  // SplitMix64 (Steele, Lea & Flood 2014)
  state_ += 0x9e3779b97f4a7c15ull;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void WorkQueues::add(StreamKind stream, std::function<void()> work) {
  queues_[static_cast<std::size_t>(stream)].push_back({std::move(work), nullptr, nullptr});
  // Mostly nothing, so that queues grow; now and then a few items, so that they do not grow alike.
  if (random() % 8 == 0)
    for (std::uint64_t count = random() % 16; count > 0 && run_one(); --count) {
    }
}

Event WorkQueues::record(StreamKind stream) {
  Event event;
  event.passed_ = std::make_shared<bool>(false);
  queues_[static_cast<std::size_t>(stream)].push_back({{}, nullptr, event.passed_});
  return event;
}

void WorkQueues::wait(StreamKind stream, const Event& event) {
  if (event.passed_) queues_[static_cast<std::size_t>(stream)].push_back({{}, event.passed_, {}});
}

bool WorkQueues::run_one() {
  const std::uint64_t first = random();
  for (std::size_t i = 0; i < kStreams; ++i) {
    std::deque<Item>& queue = queues_[(first + i) % kStreams];
    if (queue.empty() || (queue.front().after && !*queue.front().after)) continue;
    const Item item = std::move(queue.front());
    queue.pop_front();
    if (item.work) item.work();
    if (item.passes) *item.passes = true;
    return true;
  }
  return false;
}

void WorkQueues::synchronize() {
  while (run_one()) {
  }
  SORTIE_CHECK(idle(), "streams wait for events that no stream will reach");
}

bool WorkQueues::idle() const {
  return std::ranges::all_of(queues_, [](const auto& queue) { return queue.empty(); });
}

}  // namespace sortie::trainer
