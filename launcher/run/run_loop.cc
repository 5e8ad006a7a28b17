#include "launcher/run/run_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "common/base/process_status.h"
#include "common/config/outer.h"
#include "launcher/plan/plan_container.h"
#include "launcher/recovery/attempt_events.h"
#include "launcher/recovery/shrink.h"
#include "launcher/recovery/spares.h"
#include "launcher/run/successor.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

RunLoop::RunLoop(Parts parts, const config::JobConfig& job, LaunchPlan plan)
    : parts_(std::move(parts)),
      first_job_(job),
      configured_ranks_(parts_.configured_ranks > 0 ? parts_.configured_ranks : plan.world_size),
      job_(job),
      plan_(std::move(plan)),
      hosts_(parts_.hosts),
      history_(parts_.history),
      between_(parts_.between_attempts),
      plan_is_partial_(parts_.attempt.adopts || parts_.between_attempts),
      pause_(parts_.attempt.executor),
      fit_timer_(parts_.attempt.executor),
      adoption_look_(parts_.attempt.executor),
      looking_(parts_.attempt.executor),
      give_up_(std::make_shared<GiveUp>()) {
  if (parts_.places.empty()) parts_.places = hosts_;
  if (!keeps_memory(first_job_)) return;
  const auto say = [this](const std::string& text) { parts_.attempt.console.error(text); };
  memory_ = std::make_unique<MemoryHolders>(MemoryHolders::Parts{
      parts_.attempt.executor, parts_.attempt.transport, parts_.attempt.binary, first_job_.runner,
      parts_.attempt.folder.id(), parts_.attempt.epoch, say});
}

RunLoop::~RunLoop() = default;

bool RunLoop::recovers() const {
  return first_job_.recovery.max_restarts > 0;
}

asio::awaitable<Verdict> RunLoop::run() {
  RunFolder& folder = parts_.attempt.folder;
  const bool fresh = !parts_.attempt.adopts && history_.empty();
  if (fresh)
    folder.event(JournalEvent::begin, {{"hosts", plan_.hosts.size()}, {"ranks", plan_.world_size}});
  Verdict verdict;
  bool more = true, superseded = false;
  if (between_) {
    verdict.exit_code = history_.back().exit_code;
    verdict.text = history_.back().cause;
    verdict.shown = true;
    // A detached start must not wait for the pause.
    if (parts_.attempt.on_started) parts_.attempt.on_started();
    // Take over memory that hosts still hold without waiting for the pause to end.
    if (memory_) spawn(parts_.attempt.executor, hold_memory());
    more = co_await go_on(verdict);
  }
  for (bool adopts = parts_.attempt.adopts; more; adopts = false) {
    // Adopted ranks run already, so adoption must not wait.
    if (adopts && memory_) spawn(parts_.attempt.executor, hold_memory());
    if (!adopts && memory_) co_await hold_memory();
    if (!adopts && plan_.container) co_await read_logins();
    if (!adopts && stop_order_) {
      verdict = Verdict();
      verdict.exit_code = stop_order_->exit_code;
      verdict.text = stop_order_->text + " before the attempt";
      break;
    }
    verdict = co_await one_attempt(adopts);
    superseded = started_.back()->attempt->was_superseded();
    if (superseded) break;
    more = co_await go_on(verdict);
  }
  superseded = superseded || verdict.adopted;
  // Wait until leftovers on lost hosts are killed or reported.
  for (const auto& started : started_) co_await started->attempt->swept();
  // A supervisor that has adopted the run takes the memory over.
  if (memory_ && !superseded) co_await memory_->release();
  if (!superseded) co_await cordon_chronic();
  between_ = false;
  ended_ = true;
  folder.event(JournalEvent::end, {{"exit_code", verdict.exit_code},
                                   {"text", verdict.text},
                                   {"ended_after", verdict.ended_after}});
  co_return verdict;
}

asio::awaitable<void> RunLoop::hold_memory() {
  std::vector<std::string> hosts;
  for (const HostPlan& host : plan_.hosts) hosts.push_back(host.name);
  return memory_->hold(std::move(hosts));
}

/// Reads runner.container.credentials_file, for each attempt anew: a login may expire in a run of
/// weeks. While the disk does not answer, those of the last attempt are used.
asio::awaitable<void> RunLoop::read_logins() {
  const std::string& path = job_.runner.container.credentials_file;
  if (path.empty()) co_return;
  const std::function<Result<std::string>()> work = [container = job_.runner.container] {
    return read_credentials(container);
  };
  auto answer = co_await parts_.file_calls.call(work, give_up_);
  Result<std::string>& logins = parts_.attempt.credentials;
  if (answer) {
    logins = std::move(*answer);
    co_return;
  }
  const std::string stalled =
      fmt::format("runner.container.credentials_file: {}: the disk does not answer", path);
  if (started_.empty() || !logins)
    logins = fail(ErrorCode::timeout, stalled);
  else if (!stop_order_)
    parts_.attempt.console.error(stalled + "; the logins of the last attempt are used");
}

asio::awaitable<Verdict> RunLoop::one_attempt(bool adopts) {
  drop_finished();
  RunFolder& folder = parts_.attempt.folder;
  if (!adopts) {
    AttemptBegin begin{plan_.attempt, {}, plan_.world_size};
    for (const HostPlan& host : plan_.hosts) begin.hosts.push_back(host.name);
    folder.event(JournalEvent::attempt, event_fields(begin));
  }
  auto entry = std::make_unique<Started>(Started{job_, plan_, unix_time(), adopts, nullptr});
  Started& started = *entry;
  if (adopts && parts_.before) started.begun = parts_.before->begun;
  Attempt::Parts parts = parts_.attempt;
  parts.adopts = adopts;
  if (!adopts) parts.cgroups.clear();
  if (!history_.empty()) parts.reached_before = history_.back().reached_step;
  for (const HostPlan& host : plan_.hosts) fit_.erase(host.name);
  leaving_.clear();
  growing_ = false;
  parts.on_slow = [this, looking = give_up_](const std::string& host) {
    const bool over = looking != give_up_;  // this attempt has ended; another one may run
    if (!over) looking_.spawn(swap_slow_host(host));
  };
  started.attempt = std::make_unique<Attempt>(std::move(parts), started.job, started.plan);
  started_.push_back(std::move(entry));
  between_ = false;
  if (parts_.on_attempt) parts_.on_attempt(started.plan.attempt);
  looking_.spawn(look_for_fit_hosts());
  Verdict verdict = co_await started.attempt->run();
  co_await end_of_looking();
  if (parts_.on_attempt_end) parts_.on_attempt_end();
  co_return verdict;
}

void RunLoop::drop_finished() {
  std::erase_if(started_, [](const auto& started) { return !started->attempt->at_work(); });
}

AttemptEnd RunLoop::end_of_attempt(const Started& started, const Verdict& verdict) const {
  const Attempt& attempt = *started.attempt;
  AttemptEnd end;
  if (attempt.cause()) end = end_of(started.plan.attempt, *attempt.cause());
  end.attempt = started.plan.attempt;
  end.exit_code = verdict.exit_code;
  end.unusable_hosts = attempt.unusable_hosts();
  end.slow_hosts = leaving_;
  if (const auto evidence = attempt.hardware_evidence()) {
    const auto& [host, why] = *evidence;
    end.failure = FailureClass::hardware;
    end.blamed_host = host;
    end.cause += fmt::format("; {}: {}", host, why.reason);
    end.broken = why.unusable;
    if (why.unusable) end.unusable_hosts.insert(host);
  }
  end.committed_step = attempt.committed_step();
  end.begun_at_step = attempt.begun_at_step();
  end.reached_step = attempt.reached_step();
  if (parts_.before && started.adopted) {
    end.committed_step = std::max(end.committed_step, parts_.before->committed_step);
    end.begun_at_step = parts_.before->begun_at_step;
  }
  end.started = attempt.started();
  end.begun = started.begun;
  end.ended = unix_time();
  return end;
}

/// Whether the decision must wait for sweeps. A lost host is usable once it is swept, and then the
/// run may need neither to stop nor to shrink.
bool RunLoop::needs_sweeps(const Started& started, const Decision& decision) const {
  if (!started.attempt->sweeping()) return false;
  return decision.action == Decision::Action::stop || decision.hosts.size() < hosts_.size();
}

Decision RunLoop::decide_now() {
  thread_local std::minstd_rand random(std::random_device{}());
  const double chance = static_cast<double>(random() - std::minstd_rand::min()) /
                        static_cast<double>(std::minstd_rand::max());
  return decide(first_job_.recovery, history_, pool(), chance);
}

/// Adds the end of the attempt to the history and the journal.
asio::awaitable<void> RunLoop::learn_of_end(Started& started, const Verdict& verdict) {
  history_.push_back(end_of_attempt(started, verdict));
  const auto may_restart = [&] { return recovers() && !stop_order_ && verdict.exit_code != 0; };
  if (may_restart()) co_await read_known_hosts(give_up_);
  if (!may_restart() || needs_sweeps(started, decide_now())) {
    co_await started.attempt->swept();
    const double ended = history_.back().ended;
    history_.back() = end_of_attempt(started, verdict);
    history_.back().ended = ended;
  }
  parts_.attempt.folder.event(JournalEvent::attempt_end, event_fields(history_.back()));
  co_await note_blames();
}

/// Decides after an attempt. Returns true if the next attempt shall start; plan_ is then its plan.
/// Otherwise `verdict` is the verdict of the run.
asio::awaitable<bool> RunLoop::go_on(Verdict& verdict) {
  const Attempt* ended = nullptr;
  if (!between_) {
    Started& started = *started_.back();
    co_await learn_of_end(started, verdict);
    ended = started.attempt.get();
    between_ = true;
  }
  // The end of an attempt for a planned restart is no reason for the end of the run.
  const bool as_planned = history_.back().failure == FailureClass::planned;
  if (verdict.exit_code != 0 && stop_order_ && as_planned) verdict = stopped_before_next();
  if (verdict.exit_code == 0 || stop_order_ || !recovers()) co_return false;
  const std::optional<Decision> decision = co_await choose(verdict);
  if (!decision) co_return false;
  const bool waited = co_await pause(Clock::now() + decision->pause, ended, verdict);
  if (!waited) co_return false;
  if (auto planned = plan_next(*decision); !planned) {
    verdict.exit_code = exit_code_for(planned.error().code);
    verdict.text = fmt::format("no plan for the next attempt: {}", planned.error().message);
    verdict.shown = false;
    co_return false;
  }
  co_return true;
}

/// Repeats the decision until all joining hosts are fit. Returns nullopt if the run ends.
asio::awaitable<std::optional<Decision>> RunLoop::choose(Verdict& verdict) {
  for (;;) {
    co_await read_known_hosts(give_up_);
    Decision decision = decide_now();
    const DecisionMade made{history_.back().attempt, decision};
    parts_.attempt.folder.event(JournalEvent::decision, event_fields(made));
    if (decision.action == Decision::Action::stop) {
      conclude(decision, verdict);
      co_await cordon(decision.cordon);
      co_return std::nullopt;
    }
    say_restart(decision, verdict);
    const bool fit = co_await joiners_are_fit(decision);
    if (fit) {
      // Only now: if no spare is fit the host stays, and its own run must not refuse it as
      // cordoned.
      co_await cordon(decision.cordon);
      co_return decision;
    }
    verdict.shown = true;
  }
}

/// Waits until `until`, and for the runners on lost hosts of the attempt `ended` (nullptr = none)
/// that are not swept. Returns false if the run ends; then sets `verdict`.
asio::awaitable<bool> RunLoop::pause(Clock::time_point until, const Attempt* ended,
                                     Verdict& verdict) {
  constexpr std::chrono::milliseconds kLook{100};
  while (!stop_order_) {
    const auto now = Clock::now();
    const auto last = ended ? std::max(until, ended->leases_end()) : until;
    if (now >= last) break;
    const bool may_shorten = ended && ended->sweeping();
    pause_.expires_at(may_shorten ? std::min<Clock::time_point>(last, now + kLook) : last);
    co_await pause_.async_wait(kToken);
  }
  // If this process was stopped in the meantime, another supervisor may have adopted the run.
  std::optional<bool> newer = false;
  if (!started_.empty() && !stop_order_)
    newer = co_await has_successor(parts_.attempt.executor, parts_.attempt.folder);
  if (newer.value_or(false)) {
    verdict = Verdict();
    verdict.adopted = true;
    verdict.exit_code = kExitAdopted;
    verdict.text = "this run was adopted by another supervisor (`sortie attach --adopt`)";
    co_return false;
  }
  if (!stop_order_) co_return true;
  verdict = stopped_before_next();
  co_return false;
}

/// Verdict of a run that the user has stopped between two attempts, or while the ranks were being
/// stopped for a planned restart.
Verdict RunLoop::stopped_before_next() const {
  Verdict verdict;
  verdict.exit_code = stop_order_->exit_code;
  verdict.text = stop_order_->text + " before the next attempt";
  return verdict;
}

/// Topology of the whole job if this site has `ranks` ranks.
std::optional<config::TopologyConfig> RunLoop::topology_on(std::int64_t ranks) const {
  if (parts_.sites <= 1) return topology_for(first_job_, configured_ranks_, ranks);
  config::JobConfig site = first_job_;
  site.topology = config::topology_of_site(first_job_.topology, parts_.sites);
  auto topology = topology_for(site, configured_ranks_, ranks);
  if (topology) topology->global_batch_size *= parts_.sites;
  return topology;
}

Result<> RunLoop::plan_next(const Decision& decision) {
  const std::uint32_t number = history_.back().attempt + 1;
  std::vector<config::HostSlots> hosts =
      with_slots(decision.hosts, with_places(), parts_.spares, decision.replaced);
  if (hosts != hosts_ || plan_is_partial_) {
    if (!parts_.replan) return fail(ErrorCode::unsupported, "other hosts can not be planned for");
    std::int64_t ranks = 0;
    for (const config::HostSlots& host : hosts)
      ranks += static_cast<std::int64_t>(host.slots.size());
    auto topology = topology_on(ranks);
    if (!topology)
      return fail(ErrorCode::config,
                  fmt::format("topology: {} ranks can not share the global batch size", ranks));
    config::JobConfig job = first_job_;
    job.topology = std::move(*topology);
    SORTIE_ASSIGN_OR_RETURN(LaunchPlan plan, parts_.replan(job, hosts));
    job_ = std::move(job);
    plan_ = std::move(plan);
    hosts_ = std::move(hosts);
    plan_is_partial_ = false;
  }
  plan_.attempt = number;
  parts_.attempt.folder.begin_attempt(number, plan_json_text(plan_));
  return {};
}

}  // namespace sortie::launcher
