#include "trainer/outer/leader.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "common/base/check.h"
#include "common/base/elapsed.h"
#include "common/base/log.h"

namespace sortie::trainer::outer {
namespace {

using Clock = std::chrono::steady_clock;

/// Records which peer's link failed first.
class WatchedLinks final : public SiteLinks {
 public:
  explicit WatchedLinks(SiteLinks& links) : links_(links) {}
  std::string address() const override { return links_.address(); }
  Result<> open(const training::OuterExchange& order, std::size_t self) override {
    if (epoch_ == order.epoch) return {};  // exchange() opens them again
    Result<> opened = links_.open(order, self);
    if (opened)
      epoch_ = order.epoch;
    else if (!failed_)
      failed_ = links_.unreached();
    return opened;
  }
  Result<> send(std::size_t peer, std::uint32_t tag, std::span<const std::byte> bytes) override {
    return note(peer, links_.send(peer, tag, bytes));
  }
  Result<> receive(std::size_t peer, std::uint32_t tag, std::span<std::byte> bytes) override {
    return note(peer, links_.receive(peer, tag, bytes));
  }
  Result<> flush() override { return links_.flush(); }
  void cancel() override { links_.cancel(); }
  LinkCounters counters() const override { return links_.counters(); }
  const std::optional<std::size_t>& failed() const { return failed_; }

 private:
  Result<> note(std::size_t peer, Result<> result) {
    if (!result && result.error().code != ErrorCode::interrupted && !failed_) failed_ = peer;
    return result;
  }
  SiteLinks& links_;
  std::optional<std::uint64_t> epoch_;
  std::optional<std::size_t> failed_;
};

/// During its lifetime, cancels the links while the order is aborted. It checks repeatedly, because
/// open() resets a cancellation.
class AbortWatch {
 public:
  AbortWatch(std::function<bool()> called_off, SiteLinks& links)
      : thread_([this, called_off = std::move(called_off), &links] {
          constexpr std::chrono::milliseconds kPause{20};
          std::unique_lock lock(mutex_);
          while (!changed_.wait_for(lock, kPause, [this] { return ends_; }))
            if (called_off()) links.cancel();
        }) {}
  ~AbortWatch() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  AbortWatch(const AbortWatch&) = delete;
  AbortWatch& operator=(const AbortWatch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace

std::unexpected<Error> exchange_ended() {
  return fail(ErrorCode::interrupted, "the exchange between sites was ended");
}

Leader::Leader(LeaderParts parts, const std::vector<std::int64_t>& fragments) : parts_(parts) {
  if (parts_.site.settings.error_feedback)
    for (const std::int64_t elements : fragments)
      feedback_.emplace_back(static_cast<std::size_t>(elements));
  thread_ = std::thread([this] { run(); });
}

Leader::~Leader() {
  cancel();
  thread_.join();
}

void Leader::cancel() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  parts_.coordinator.cancel();
  parts_.links.cancel();
  changed_.notify_all();
}

bool Leader::cancelled() const {
  const std::lock_guard lock(mutex_);
  return ends_;
}

std::span<const float> Leader::error(std::size_t fragment) const {
  if (feedback_.empty()) return {};
  return feedback_[fragment].error();
}

void Leader::restore_error(std::size_t fragment, std::span<const float> error) {
  if (!feedback_.empty()) feedback_[fragment].restore(error);
}

void Leader::keep_error(std::size_t fragment) {
  feedback_[fragment].commit();
}

void Leader::set_lacks_state(std::vector<std::string> donors) {
  const std::lock_guard lock(mutex_);
  for (ErrorFeedback& feedback : feedback_) feedback.reset();
  lacks_state_ = true;
  donors_ = std::move(donors);
}

void Leader::leave(const std::string& reason) {
  parts_.coordinator.leave({reason});
}

void Leader::start(LeaderTask task) {
  const std::lock_guard lock(mutex_);
  if (ended_)
    answers_.emplace_back(exchange_ended());
  else
    tasks_.push_back(std::move(task));
  changed_.notify_all();
}

bool Leader::wants_state() const {
  const std::lock_guard lock(mutex_);
  return wants_state_;
}

void Leader::give_state(CopiedState state) {
  const std::lock_guard lock(mutex_);
  given_ = std::move(state);
  wants_state_ = false;
  changed_.notify_all();
}

bool Leader::has_answer() const {
  const std::lock_guard lock(mutex_);
  return !answers_.empty();
}

void Leader::wait(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [this] { return !answers_.empty() || wants_state_; });
}

Result<LeaderAnswer> Leader::take() {
  const std::lock_guard lock(mutex_);
  SORTIE_CHECK(!answers_.empty(), "a leader has no answer");
  auto answer = std::move(answers_.front());
  answers_.pop_front();
  return answer;
}

Result<LeaderAnswer> Leader::answer_to(const LeaderTask& task) {
  if (const auto* join = std::get_if<training::OuterJoin>(&task))
    return parts_.coordinator.join(*join);
  if (const auto* next = std::get_if<training::OuterNext>(&task))
    return parts_.coordinator.next(*next);
  return exchange_task(std::get<ExchangeTask>(task));
}

void Leader::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) {
      ended_ = true;
      return;
    }
    current_ = std::move(tasks_.front());
    tasks_.pop_front();
    const bool ends = ends_;
    lock.unlock();
    Result<LeaderAnswer> answer =
        ends ? Result<LeaderAnswer>(exchange_ended()) : answer_to(current_);
    lock.lock();
    const bool failed = !answer;
    answers_.push_back(std::move(answer));
    if (failed) {  // the queued tasks depend on it
      for (std::size_t i = 0; i < tasks_.size(); ++i)
        answers_.emplace_back(std::unexpected(answers_.back().error()));
      tasks_.clear();
    }
    wants_state_ = false;
    given_.reset();
    changed_.notify_all();
  }
}

Result<CopiedState> Leader::state_to_copy(const ExchangeTask& task) {
  if (task.outer) {
    OuterState& state = parts_.state;
    return CopiedState{{state.weights, state.momentum},
                       std::as_writable_bytes(std::span(&state.round, 1))};
  }
  std::unique_lock lock(mutex_);
  wants_state_ = !given_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return ends_ || given_; });
  if (!given_) return exchange_ended();
  return *given_;
}

Result<> Leader::attempt(const ExchangeTask& task, const training::OuterExchange& order,
                         std::size_t self, ExchangeOutcome& outcome) {
  // Leader::cancel() may have been called before open(), which resets a cancellation of the links.
  const AbortWatch watch([&] { return cancelled() || parts_.coordinator.aborted(order.epoch); },
                         parts_.links);
  WatchedLinks links(parts_.links);
  const auto inner = [&]() -> Result<> {
    if (order.members.size() > 1) {
      SORTIE_TRY(links.open(order, self));
      const StateOffer offer{
          .hash = task.outer && !lacks_state_ ? std::max<std::uint64_t>(parts_.state.hash(), 1) : 0,
          .lacks_state = lacks_state_,
          .donors = donors_};
      SORTIE_ASSIGN_OR_RETURN(const StateOutcome agreed,
                              agree_on_state(links, order, self, offer, parts_.memory.states,
                                             [&] { return state_to_copy(task); }));
      if (agreed.differs) {
        log::warning(
            "round {}: the outer weights of this site are not those of most sites; it "
            "takes theirs",
            order.round);
        lacks_state_ = true;
      }
      if (!agreed.reason.empty()) return fail(ErrorCode::protocol, agreed.reason);
      if (agreed.copied) {
        lacks_state_ = false;
        donors_.clear();
        outcome.copied_from = agreed.donor;
      }
    }
    if (lacks_state_)
      return fail(ErrorCode::unsupported, "no site of the order has the state of the run");
    mean_.resize(task.change.size());
    const config::OuterSettings& settings = parts_.site.settings;
    ExchangeSettings how;
    how.format = {.wire = settings.wire, .block = settings.block};
    how.threads = parts_.threads;
    ErrorFeedback* const feedback = task.outer && !feedback_.empty()
                                        ? &feedback_[static_cast<std::size_t>(task.fragment)]
                                        : nullptr;
    return exchange(links, order, self, how, task.change, mean_, feedback, parts_.memory.exchange,
                    &figures_);
  };
  const Result<> done = inner();
  suspect_.clear();
  if (done) return {};
  if (links.failed()) suspect_ = order.members[*links.failed()].site;
  // If the first donor failed, it is asked last from now on.
  if (lacks_state_ && !donors_.empty() && donors_.front() == suspect_)
    std::ranges::rotate(donors_, donors_.begin() + 1);
  return std::unexpected(done.error());
}

/// Repeats the exchange until it is committed. The coordinator makes the pauses between orders.
Result<ExchangeOutcome> Leader::exchange_task(const ExchangeTask& task) {
  ExchangeOutcome outcome;
  outcome.report.round = task.round;
  outcome.report.fragment = task.fragment;
  const LinkCounters before = parts_.links.counters();
  while (true) {
    const auto asked = Clock::now();
    SORTIE_ASSIGN_OR_RETURN(const training::OuterExchange order,
                            parts_.coordinator.ready({.round = task.round,
                                                      .fragment = task.fragment,
                                                      .tokens = task.tokens,
                                                      .abstains = task.abstains,
                                                      .reason = task.reason}));
    outcome.report.wait_seconds += seconds_since(asked);
    const auto begun = Clock::now();
    const auto member =
        std::ranges::find(order.members, parts_.site.name, &training::OuterMember::site);
    if (member == order.members.end() || order.round != task.round ||
        order.fragment != task.fragment)
      return fail(ErrorCode::protocol,
                  fmt::format("coordinator: the order of epoch {} is not for round {} of this site",
                              order.epoch, task.round));
    const Result<> exchanged =
        attempt(task, order, static_cast<std::size_t>(member - order.members.begin()), outcome);
    training::OuterVote vote;
    vote.round = task.round;
    vote.fragment = task.fragment;
    vote.epoch = order.epoch;
    if (exchanged) {
      vote.done = true;
      vote.hash = figures_.hash;
    } else {
      vote.reason = exchanged.error().message;
      vote.suspect = suspect_;
    }
    SORTIE_ASSIGN_OR_RETURN(const training::OuterDecision decision, parts_.coordinator.vote(vote));
    const bool feeds = task.outer && !feedback_.empty();
    const auto number = static_cast<std::size_t>(task.fragment);
    if (!decision.commit) {
      if (feeds) feedback_[number].rollback();
      log::debug("round {}: epoch {} was called off: {}", task.round, order.epoch, decision.reason);
      ++outcome.report.aborted;
      continue;
    }
    if (!exchanged)
      return fail(ErrorCode::config, fmt::format("coordinator: round {} was committed without this "
                                                 "site, which had voted against it",
                                                 task.round));
    outcome.report.signal = figures_.signal;
    outcome.report.noise = figures_.noise;
    outcome.report.epoch = order.epoch;
    outcome.report.members = static_cast<std::int64_t>(order.members.size());
    outcome.report.contributors = std::ranges::count_if(
        order.members, [](const training::OuterMember& one) { return one.weight > 0; });
    outcome.report.exchange_seconds = seconds_since(begun);
    const LinkCounters after = parts_.links.counters();
    outcome.report.payload_sent = after.payload_sent - before.payload_sent;
    outcome.report.payload_received = after.payload_received - before.payload_received;
    outcome.report.wire_sent = after.wire_sent - before.wire_sent;
    outcome.report.wire_received = after.wire_received - before.wire_received;
    outcome.values = mean_;
    outcome.feeds = feeds && !task.abstains;
    return outcome;
  }
}

}  // namespace sortie::trainer::outer
