#include "trainer/parallel/device_watch.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace sortie::trainer {
namespace {

using WatchClock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBetweenLooks{50};
/// Time in which the rank's own thread should notice a failure, unless it is blocked.
constexpr std::chrono::seconds kToBeNoticed{5};

}  // namespace

DeviceWatch::DeviceWatch(DeviceGroups& library, std::chrono::duration<double> limit,
                         std::shared_ptr<std::atomic<std::uint64_t>> reached)
    : library_(library),
      limit_(limit),
      reached_(std::move(reached)),
      last_(WatchClock::now()),
      thread_([this] { watch(); }) {}

DeviceWatch::~DeviceWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceWatch::add(DeviceGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(&group);
}

void DeviceWatch::remove(DeviceGroup& group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, &group);
  std::erase_if(flights_, [&](Flight& one) {
    if (one.group != &group) return false;
    count(one);  // the end of a group waits for its collectives
    return true;
  });
}

void DeviceWatch::started(const DeviceGroup& group, Kind kind, Event ready, Event done,
                          std::string what) {
  const std::lock_guard lock(mutex_);
  if (flights_.empty()) last_ = WatchClock::now();
  flights_.push_back(
      {&group, kind == Kind::collective, std::move(ready), std::move(done), std::move(what)});
}

void DeviceWatch::count(Flight& one) {
  if (!std::exchange(one.counts, false)) return;
  one.reached = WatchClock::now();
  reached_one();
}

void DeviceWatch::count() {
  // In their order: the first that the GPU has not reached saves the queries for the others.
  for (Flight& one : flights_) {
    if (!one.counts) continue;
    if (!one.ready.poll()) return;
    count(one);
  }
}

std::string DeviceWatch::failure() {
  const std::lock_guard lock(mutex_);
  noticed_ = noticed_ || !failure_.empty();
  return failure_;
}

void DeviceWatch::abort_all() {
  const std::lock_guard lock(mutex_);
  library_.abort(groups_);
}

std::string DeviceWatch::look() {
  const std::size_t before = flights_.size();
  count();
  std::erase_if(flights_, [this](Flight& one) {
    if (!one.done.poll()) return false;
    count(one);
    return true;
  });
  const auto now = WatchClock::now();
  waits_ = std::ranges::any_of(
      flights_, [since = now - kLongWait](const Flight& one) { return one.reached <= since; });
  if (flights_.size() != before) last_ = now;
  for (DeviceGroup* group : groups_) {
    const std::string problem = group->problem();
    if (problem.empty()) continue;
    const auto of_it =
        std::ranges::find(flights_, group, [](const Flight& one) { return one.group; });
    return of_it == flights_.end() ? problem : fmt::format("{}: {}", of_it->what, problem);
  }
  if (flights_.empty() || limit_.count() <= 0 || now - last_ <= limit_) return {};
  return fmt::format(
      "{}: no collective between GPUs made progress for {:g} s: see what happened on the other "
      "ranks, or set SORTIE_COMM_TIMEOUT to more seconds",
      flights_.front().what, limit_.count());
}

void DeviceWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, kBetweenLooks);
    if (stopping_) return;
    if (failure_.empty()) failure_ = look();
    if (failure_.empty()) continue;
    const auto deadline = WatchClock::now() + kToBeNoticed;
    if (changed_.wait_until(lock, deadline, [this] { return stopping_ || noticed_; })) {
      changed_.wait(lock, [this] { return stopping_; });
      return;
    }
    throw CommunicatorError(failure_);
  }
}

}  // namespace sortie::trainer
