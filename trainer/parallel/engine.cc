#include "trainer/parallel/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <limits>

#include "trainer/parallel/rank_set.h"

namespace sortie::trainer {
namespace {

using EngineClock = std::chrono::steady_clock;
constexpr double kDefaultLimit = 1800.0;
constexpr double kMostSeconds = 365.0 * 24 * 3600;  // far from an overflow of a duration

}  // namespace

Result<std::chrono::duration<double>> read_communication_limit() {
  const char* text = std::getenv("SORTIE_COMM_TIMEOUT");
  if (text == nullptr || *text == '\0') return std::chrono::duration<double>(kDefaultLimit);
  double seconds = 0;
  const char* end = text + std::char_traits<char>::length(text);
  const auto [stop, error] = std::from_chars(text, end, seconds);
  if (error != std::errc() || stop != end || !(seconds >= 0) || !(seconds <= kMostSeconds))
    return fail(ErrorCode::config,
                fmt::format("environment: SORTIE_COMM_TIMEOUT='{}': a number of seconds from 0 (no "
                            "limit) to {:.0f} is expected",
                            text, kMostSeconds));
  return std::chrono::duration<double>(seconds);
}

std::chrono::duration<double> communication_limit() {
  const auto limit = read_communication_limit();
  if (!limit) throw CommunicatorError(limit.error().message);
  return *limit;
}

namespace {

std::atomic<bool> given_up{false};

/// Tells other threads what this one waits for, once it has waited for a second.
class TellsWait {
 public:
  TellsWait(LongWait& to, const Operation& operation) : to_(to), operation_(operation) {}
  ~TellsWait() {
    if (told_) to_.set("");
  }
  TellsWait(const TellsWait&) = delete;
  TellsWait& operator=(const TellsWait&) = delete;
  void idle(EngineClock::duration time) {
    constexpr std::chrono::seconds kLong{1};
    if (told_ || time < kLong) return;
    to_.set(fmt::format("{} of group {} ({} ranks)", operation_.what(), operation_.group().name,
                        operation_.group().size()));
    told_ = true;
  }

 private:
  LongWait& to_;
  const Operation& operation_;
  bool told_ = false;
};

struct Moving {
  bool& flag;
  explicit Moving(bool& moving) : flag(moving) { flag = true; }
  ~Moving() { flag = false; }
};

}  // namespace

void give_up_waits(bool yes) {
  given_up = yes;
}
bool waits_given_up() {
  return given_up.load(std::memory_order_relaxed);
}

Engine::Engine(std::unique_ptr<Transport> transport)
    : transport_(std::move(transport)),
      limit_(transport_->size() > 1 ? communication_limit() : std::chrono::duration<double>(0)) {
  unordered_.active = std::numeric_limits<std::size_t>::max();
  add(unordered_);
}

void Engine::remove(Queue& queue) {
  // Operations of a broken engine are destroyed with their group; otherwise they are done.
  std::erase(queues_, &queue);
}

void Engine::advance(Queue& queue) {
  bool started = true;
  while (started) {
    started = false;
    const std::size_t count = std::min(queue.active, queue.operations.size());
    for (std::size_t i = 0; i < count; ++i) {
      Operation& operation = *queue.operations[i];
      try {
        operation.done = operation.advance();
      } catch (const CommunicatorError& error) {
        fail_with(fmt::format("{} of group {}: {}", operation.what(), operation.group().name,
                              error.what()));
      }
      started = started || operation.done;
    }
    if (started)
      std::erase_if(queue.operations, [](const auto& operation) { return operation->done; });
    started = started && !queue.operations.empty();
  }
}

void Engine::start(Queue& queue, const std::shared_ptr<Operation>& operation) {
  queue.operations.push_back(operation);
  if (queue.operations.size() > queue.active || moving_) return;
  const Moving moving(moving_);
  advance(queue);
}

void Engine::poll() {
  if (moving_) return;
  const Moving moving(moving_);
  try {
    transport_->progress();
  } catch (const CommunicatorError& error) {
    fail_with(error.what());
  }
  for (Queue* queue : queues_)
    if (!queue->operations.empty()) advance(*queue);
}

void Engine::wait(Operation& operation) {
  TellsWait tells(*long_wait, operation);
  auto last = EngineClock::now();
  std::uint64_t completed = transport_->completed();
  while (!operation.done) {
    if (broken_)
      fail_with(fmt::format("{} of group {}: an earlier collective of this rank has failed",
                            operation.what(), operation.group().name));
    poll();
    if (operation.done) return;
    if (const std::uint64_t now = transport_->completed(); now != completed) {
      completed = now;
      last = EngineClock::now();
      continue;
    }
    if (waits_given_up())
      fail_with(fmt::format("{} of group {}: given up, because this rank was asked to end",
                            operation.what(), operation.group().name));
    const auto idle = EngineClock::now() - last;
    tells.idle(idle);
    if (limit_.count() > 0 && idle > limit_) give_up(operation, limit_);
    transport_->pause(idle);
  }
}

void Engine::fail_with(const std::string& message) {
  broken_ = true;
  throw CommunicatorError(message);
}

void Engine::give_up(Operation& operation, std::chrono::duration<double> idle) {
  std::vector<int> missing = operation.missing();
  std::string behind;
  if (missing.empty()) {  // not begun: an earlier one of its group blocks it
    for (Queue* queue : queues_) {
      const auto& all = queue->operations;
      if (std::ranges::none_of(all, [&](const auto& one) { return one.get() == &operation; }))
        continue;
      missing = all.front()->missing();
      behind = fmt::format(" behind {}", all.front()->what());
    }
  }
  std::ranges::sort(missing);
  const auto repeated = std::ranges::unique(missing);
  missing.erase(repeated.begin(), repeated.end());
  RankSet ranks;
  for (const int rank : missing) ranks.add(rank, host_of(rank));
  fail_with(
      fmt::format("{} of group {} ({} ranks){}: nothing has arrived for {:g} s; {} of the run "
                  "did not answer: see what happened there, or set SORTIE_COMM_TIMEOUT to more "
                  "seconds",
                  operation.what(), operation.group().name, operation.group().size(), behind,
                  idle.count(), ranks.text()));
}

void Engine::drop(const std::shared_ptr<Operation>& operation) {
  for (Queue* queue : queues_) std::erase(queue->operations, operation);
}

Engine::ScratchBlock Engine::take_scratch(std::size_t bytes) {
  const auto fits = std::ranges::find_if(
      scratch_, [bytes](const ScratchBlock& block) { return block.bytes >= bytes; });
  if (fits == scratch_.end()) return {Scratch(new std::byte[bytes]), bytes};
  ScratchBlock block = std::move(*fits);
  scratch_.erase(fits);
  return block;
}

void Engine::give_scratch(ScratchBlock block) {
  constexpr std::size_t kKept = 4;
  if (scratch_.size() < kKept) {
    scratch_.push_back(std::move(block));
    return;
  }
  const auto smallest = std::ranges::min_element(scratch_, {}, &ScratchBlock::bytes);
  if (smallest->bytes < block.bytes) *smallest = std::move(block);
}

Flight::~Flight() {
  if (operation_->done) return;
  // The memory of an operation in flight must not be freed, and waiting could take forever: a rank
  // that fails within a step ends its process instead (trainer/loop/rank_end.h).
  SORTIE_CHECK(engine_->broken() || std::uncaught_exceptions() > 0,
               "{} is dropped while it is in flight", operation_->what());
  engine_->drop(operation_);
}

bool Flight::poll() {
  if (!operation_->done) engine_->poll();
  return operation_->done;
}

void Flight::wait() {
  engine_->wait(*operation_);
}

}  // namespace sortie::trainer
