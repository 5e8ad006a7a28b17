#include "trainer/tensor/stream.h"

#include <algorithm>
#include <thread>

#include "common/base/check.h"
#include "trainer/random/random.h"

namespace sortie::trainer {

void Streams::begin_capture(StreamKind) {
  SORTIE_CHECK(false, "streams that capture nothing");
}
std::unique_ptr<CapturedWork> Streams::end_capture() {
  SORTIE_CHECK(false, "streams that capture nothing");
}

void Event::State::wait() {
  while (!poll()) std::this_thread::yield();
}

std::uint64_t WorkQueues::random() {
  state_ += kMixStep;
  return mix64(state_);
}

bool WorkQueues::Point::poll() {
  if (!passed && *queues != nullptr) (*queues)->do_some();
  return passed;
}

void WorkQueues::add(StreamKind stream, std::function<void()> work) {
  queues_[static_cast<std::size_t>(stream)].push_back({.work = std::move(work)});
  // Mostly runs nothing, so that queues grow; now and then a few items, so that they grow unevenly.
  if (random() % 8 == 0) do_some();
}

void WorkQueues::do_some() {
  for (std::uint64_t count = random() % 16; count > 0 && run_one(); --count) {
  }
}

Event WorkQueues::record(StreamKind stream) {
  auto point = std::make_shared<Point>();
  point->queues = self_;
  queues_[static_cast<std::size_t>(stream)].push_back({.passes = point});
  return Event(std::move(point));
}

void WorkQueues::wait(StreamKind stream, const Event& event) {
  if (event.state())
    queues_[static_cast<std::size_t>(stream)].push_back(
        {.after = std::static_pointer_cast<Point>(event.state())});
}

void WorkQueues::wait(StreamKind stream, std::shared_ptr<Awaited> awaited) {
  queues_[static_cast<std::size_t>(stream)].push_back({.awaited = std::move(awaited)});
}

bool WorkQueues::can_go(const Item& item) {
  if (item.after && !item.after->passed) return false;
  return !item.awaited || item.awaited->poll();
}

bool WorkQueues::run_one() {
  if (running_) return false;
  struct Running {
    bool& flag;
    explicit Running(bool& running) : flag(running) { flag = true; }
    ~Running() { flag = false; }
  } const running(running_);
  const std::uint64_t first = random();
  for (std::size_t i = 0; i < kStreams; ++i) {
    std::deque<Item>& queue = queues_[(first + i) % kStreams];
    if (queue.empty() || !can_go(queue.front())) continue;
    const Item item = std::move(queue.front());
    queue.pop_front();
    if (item.work) item.work();
    if (item.passes) item.passes->passed = true;
    return true;
  }
  return false;
}

void WorkQueues::synchronize() {
  while (!idle()) {
    if (run_one()) continue;
    // All streams wait, for an event or for work outside of the streams.
    std::shared_ptr<Awaited> awaited;
    for (const auto& queue : queues_)
      if (!queue.empty() && queue.front().awaited) awaited = queue.front().awaited;
    SORTIE_CHECK(awaited, "streams wait for events that no stream will reach");
    awaited->wait();
  }
}

bool WorkQueues::idle() const {
  return std::ranges::all_of(queues_, [](const auto& queue) { return queue.empty(); });
}

}  // namespace sortie::trainer
