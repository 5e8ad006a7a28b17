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
                         std::shared_ptr<std::atomic<std::uint64_t>> reached, WatchedRank rank)
    : library_(library),
      limit_(limit),
      reached_(std::move(reached)),
      rank_(std::move(rank)),
      last_(WatchClock::now()),
      thread_([this] { watch(); }) {
  if (rank_.place.inquiry)
    rank_.place.inquiry->start([this](const std::string& text) {
      const auto question = WaitQuestion::parse(text);
      return question ? answer(*question).to_text() : std::string();
    });
}

DeviceWatch::~DeviceWatch() {
  if (rank_.place.inquiry) rank_.place.inquiry->stop();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceWatch::add(DeviceGroup& group, const GroupRanks& ranks) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({&group, ranks});
}

void DeviceWatch::remove(DeviceGroup& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [&](const Member& one) { return one.group == &group; });
  std::erase_if(flights_, [&](Flight& one) {
    if (one.group != &group) return false;
    count(one);  // the end of a group waits for its collectives
    return true;
  });
}

DeviceWatch::Member* DeviceWatch::member(const DeviceGroup& group) {
  const auto found =
      std::ranges::find(groups_, &group, [](const Member& one) { return one.group; });
  return found == groups_.end() ? nullptr : &*found;
}

void DeviceWatch::call_began(std::string what, std::optional<CollectiveName> collective) {
  const std::lock_guard lock(mutex_);
  call_ = Call{std::move(what), std::move(collective)};
}

void DeviceWatch::call_ended() {
  const std::lock_guard lock(mutex_);
  call_.reset();
}

void DeviceWatch::started(const DeviceGroup& group, CollectiveName name, Event ready, Event done) {
  const std::lock_guard lock(mutex_);
  call_.reset();
  if (Member* of = member(group)) of->next = name.number + 1;
  if (flights_.empty()) last_ = WatchClock::now();
  const bool counts = !name.message;
  flights_.push_back({&group, counts, std::move(ready), std::move(done), std::move(name)});
}

void DeviceWatch::passed(const DeviceGroup& group, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (Member* of = member(group)) of->next = number + 1;
  reached_one();
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
  std::vector<DeviceGroup*> all;
  for (const Member& one : groups_) all.push_back(one.group);
  library_.abort(all);
}

std::optional<DeviceWatch::Trouble> DeviceWatch::look() {
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
  for (const Member& of : groups_) {
    std::string problem = of.group->problem();
    if (problem.empty()) continue;
    const auto one =
        std::ranges::find(flights_, of.group, [](const Flight& flight) { return flight.group; });
    return Trouble{of.ranks.world_ranks,
                   one == flights_.end() ? std::nullopt : std::optional(one->name),
                   std::move(problem)};
  }
  if (flights_.empty() || limit_.count() <= 0 || now - last_ <= limit_) return {};
  // The others may still come to a collective that this rank's GPU has not reached itself.
  auto stuck = std::ranges::find_if(flights_, &Flight::at_gpu);
  if (stuck == flights_.end()) stuck = flights_.begin();
  const Member* of = member(*stuck->group);
  return Trouble{of != nullptr ? of->ranks.world_ranks : std::vector<int>(), stuck->name, ""};
}

std::string DeviceWatch::described(const Trouble& trouble) {
  const std::string what = trouble.collective ? trouble.collective->text() + ": " : "";
  CollectiveName asked;
  if (trouble.collective) asked = *trouble.collective;
  const std::string found = ask_others(trouble.members, asked, !trouble.problem.empty());
  if (!trouble.problem.empty())
    return fmt::format("{}{}{}", what, trouble.problem, found.empty() ? "" : "; " + found);
  return fmt::format(
      "{}no collective between GPUs made progress for {:g} s: {}", what, limit_.count(),
      found.empty() ? "see what happened on the other ranks, or set SORTIE_COMM_TIMEOUT to more "
                      "seconds"
                    : found);
}

void DeviceWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, kBetweenLooks);
    if (stopping_) return;
    const std::optional<Trouble> trouble = look();
    if (!trouble) continue;
    // Without the lock, for the rank's thread and for questions of other ranks.
    lock.unlock();
    std::string failure = described(*trouble);
    lock.lock();
    failure_ = std::move(failure);
    const auto deadline = WatchClock::now() + kToBeNoticed;
    if (changed_.wait_until(lock, deadline, [this] { return stopping_ || noticed_; })) {
      changed_.wait(lock, [this] { return stopping_; });
      return;
    }
    throw CommunicatorError(failure_);
  }
}

}  // namespace sortie::trainer
