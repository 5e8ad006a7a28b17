#include "launcher/exec/exec_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <csignal>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/exit_code.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Kind = Outcome::Kind;

namespace {

/// Limit of output in flight, over all hosts: a slow terminal makes the commands wait.
constexpr std::size_t kOutputInFlight = 64u << 20;
constexpr std::uint32_t kMinWindow = 64u << 10, kMaxWindow = 1u << 20;
/// A host that is still connecting after this time no longer counts towards the fan-out.
constexpr milliseconds kConnectPatience{500};
/// With more than this queued for the terminal no host gets credit.
constexpr std::size_t kMaxBacklog = 4u << 20;

}  // namespace

ExecRun::ExecRun(Parts parts, const ExecJob& job, const config::RunnerConfig& runner)
    : parts_(std::move(parts)),
      job_(job),
      runner_(runner),
      output_window_(static_cast<std::uint32_t>(std::clamp<std::size_t>(
          kOutputInFlight / std::max<std::size_t>(job.fanout, 1), kMinWindow, kMaxWindow))),
      active_(job.hosts.size()),
      tasks_(parts_.executor),
      tick_(parts_.executor) {
  outcomes_.reserve(job.hosts.size());
  for (const std::string& host : job.hosts) outcomes_.push_back({host, {}});
}

bool ExecRun::is_done(std::size_t index) const {
  return outcomes_[index].outcome.kind != Kind::waiting;
}

bool ExecRun::congested() const {
  return parts_.console.backlog() > kMaxBacklog;
}

asio::awaitable<void> ExecRun::run() {
  begun_ = Clock::now();
  start_input();
  spawn(parts_.executor, tick());
  for (std::size_t i = std::min(job_.fanout, outcomes_.size()); i > 0; --i) tasks_.spawn(worker());
  co_await tasks_.wait();
  if (parts_.input) parts_.input->close();
  tick_.cancel();
  parts_.console.status("");
}

/// Serves hosts one after the other. A host that connects slowly keeps its deadline, but another
/// worker replaces this one: unreachable hosts do not delay others, however many they are. A
/// replaced one that connects after all waits for a place.
asio::awaitable<void> ExecRun::worker() {
  while (next_ < outcomes_.size() && !stopping_) {
    const std::size_t index = next_++;
    const auto replaced = std::make_shared<bool>(false);
    Alarm patience(parts_.executor);
    patience.set(kConnectPatience, [this, index, replaced] {
      if (is_done(index) || !active_[index] || active_[index]->phase != Phase::connecting) return;
      *replaced = true;
      tasks_.spawn(worker());
    });
    co_await serve(index);
    if (*replaced) co_return;
  }
}

wire::JobSpec ExecRun::job_spec(std::size_t index) const {
  wire::JobSpec spec;
  spec.run_id = job_.run_id;
  spec.host = outcomes_[index].host;
  spec.node_rank = static_cast<std::uint32_t>(index);
  spec.world_size = 1;
  spec.argv = job_.argv;
  spec.ranks.emplace_back();
  spec.ranks.back().env.emplace_back("SORTIE_HOST", outcomes_[index].host);
  spec.grace_ms = static_cast<std::uint32_t>(job_.grace.count());
  spec.heartbeat_interval_ms = static_cast<std::uint32_t>(runner_.heartbeat_interval.count());
  spec.heartbeat_timeout_ms = static_cast<std::uint32_t>(runner_.heartbeat_timeout.count());
  spec.output_window = output_window_;
  spec.autostart = 1;
  if (parts_.input) spec.input_window = kInputWindow;
  return spec;
}

/// Serves one host from connect to exit. If the user has stopped it meanwhile, it is done already
/// and nothing more is reported.
asio::awaitable<void> ExecRun::serve(std::size_t index) {
  active_[index] = std::make_unique<Active>(parts_.executor);
  ++open_;
  Active& active = *active_[index];
  active.session = std::make_shared<HostSession>(parts_.executor, outcomes_[index].host, runner_);
  const std::shared_ptr<HostSession> session = active.session;
  auto connected = co_await session->connect(parts_.transport, parts_.binary);
  if (is_done(index)) co_return;
  if (!connected) {
    give_up(index, std::move(connected).error());
    co_return;
  }
  // A runner ends if it gets no job, so a host that has to wait has its job, and gets Start later.
  const bool at_once = placed_ < job_.fanout;
  if (at_once) take_place(active);
  active.phase = at_once ? Phase::preparing : Phase::queued;
  wire::JobSpec spec = job_spec(index);
  spec.autostart = at_once ? 1 : 0;
  auto ready = co_await session->prepare(std::move(spec), parts_.binary.sha256());
  if (is_done(index)) co_return;
  if (!ready) {
    give_up(index, std::move(ready).error());
    co_return;
  }
  if (!at_once) co_await wait_for_place(index);
  if (is_done(index)) co_return;
  begin(index);
  while (!is_done(index)) {
    active.timer.expires_at(std::min(active.timeout_at, active.give_up_at));
    co_await active.timer.async_wait(kToken);
    if (!is_done(index)) on_deadline(index);
  }
}

void ExecRun::take_place(Active& active) {
  active.placed = true;
  ++placed_;
}

/// Frees the place of a host that is done, for the one that has waited longest.
void ExecRun::give_place() {
  --placed_;
  while (!queue_.empty() && !stopping_) {
    const std::size_t index = queue_.front();
    queue_.pop_front();
    if (is_done(index)) continue;
    take_place(*active_[index]);
    active_[index]->timer.cancel();
    return;
  }
}

/// Returns when the host has a place, or is done: it may be lost meanwhile.
asio::awaitable<void> ExecRun::wait_for_place(std::size_t index) {
  Active& active = *active_[index];
  listen(index);
  if (is_done(index)) co_return;
  if (placed_ < job_.fanout)
    take_place(active);
  else
    queue_.push_back(index);
  while (!is_done(index) && !active.placed) {
    active.timer.expires_at(Clock::time_point::max());
    co_await active.timer.async_wait(kToken);
  }
}

/// Waits until the runner has cleaned up and exited; the next host does not wait for that.
asio::awaitable<void> ExecRun::let_go(std::size_t index) {
  co_await asio::post(parts_.executor, asio::use_awaitable);  // the caller may still use active_
  Active& active = *active_[index];
  const auto until = Clock::now() + std::chrono::seconds(2);
  while (!active.session->closed() && Clock::now() < until) {
    active.timer.expires_at(until);
    co_await active.timer.async_wait(kToken);
  }
  active.session->close();
  active_[index].reset();
  --open_;
  leave_when_done();
}

/// Ends run() without waiting for workers that still connect to a host that was given up.
void ExecRun::leave_when_done() {
  if (done_ == outcomes_.size() && open_ == 0) tasks_.stop_waiting();
}

void ExecRun::listen(std::size_t index) {
  active_[index]->session->start(
      {[this, index](wire::Message message) { on_message(index, std::move(message)); },
       [this, index](Error error) { on_lost(index, std::move(error)); },
       {},
       "its command ends by itself"});
}

void ExecRun::begin(std::size_t index) {
  Active& active = *active_[index];
  const bool waited = active.phase == Phase::queued;
  active.phase = Phase::running;
  active.begun = Clock::now();
  active.timeout_at =
      job_.timeout.count() > 0 ? active.begun + job_.timeout : Clock::time_point::max();
  active.give_up_at = Clock::time_point::max();
  active.input_room = parts_.input ? kInputWindow : 0;
  for (ExecSink* sink : parts_.sinks) sink->started(index, outcomes_[index].host);
  if (waited)
    active.session->send(wire::Start{});
  else
    listen(index);
  if (is_done(index)) return;  // a short command had already finished
  if (stopping_) stop(active, at_once_ ? milliseconds(0) : job_.grace, "interrupted");
  send_input(index);
}

/// Periodic work: delayed credit, a closed stdout, the status line.
asio::awaitable<void> ExecRun::tick() {
  while (done_ < outcomes_.size()) {
    tick_.expires_after(milliseconds(owed_.empty() ? 200 : 5));
    co_await tick_.async_wait(kToken);
    if (!owed_.empty() && !congested()) {
      for (const std::size_t index : std::exchange(owed_, {})) {
        if (is_done(index)) continue;
        active_[index]->owed = false;
        acknowledge(*active_[index]);
      }
    }
    if (const int error = parts_.console.out_error(); error == EPIPE && !interrupted_)
      interrupt(SIGPIPE);
    else if (error != 0 && !stopping_)
      stop_all();  // the output is lost; the exit code of exec tells why
    if (parts_.console.has_status() && Clock::now() - begun_ > std::chrono::seconds(1) &&
        done_ < outcomes_.size())
      parts_.console.status(fmt::format("{} of {} hosts done, {} running{}", done_,
                                        outcomes_.size(), open_,
                                        failed_ > 0 ? fmt::format(", {} failed", failed_) : ""));
  }
}

void ExecRun::on_deadline(std::size_t index) {
  Active& active = *active_[index];
  const auto now = Clock::now();
  if (now >= active.timeout_at) {
    active.timeout_at = Clock::time_point::max();
    if (!active.told_to_stop) {
      active.timed_out = true;
      stop(active, job_.grace, "timeout");
    }
  }
  if (now >= active.give_up_at)
    give_up(index,
            {ErrorCode::timeout,
             "the command did not end in time after the order to stop; a process there may be "
             "stuck"});
}

void ExecRun::stop(Active& active, milliseconds grace, const std::string& reason) {
  active.told_to_stop = true;
  active.session->send(wire::Stop{static_cast<std::uint32_t>(grace.count()), reason});
  active.give_up_at = Clock::now() + grace + parts_.stop_slack;
  active.timer.cancel();
}

void ExecRun::finish(std::size_t index, Outcome outcome) {
  Active& active = *active_[index];
  outcome.order = ++done_;
  if (active.phase == Phase::running)
    outcome.seconds = std::chrono::duration<double>(Clock::now() - active.begun).count();
  if (outcome.kind != Kind::ok) ++failed_;
  active.phase = Phase::ended;
  outcomes_[index].outcome = std::move(outcome);
  if (active.placed) give_place();
  for (ExecSink* sink : parts_.sinks)
    sink->finished(index, outcomes_[index].host, outcomes_[index].outcome);
  active.timer.cancel();
  tasks_.spawn(let_go(index));
  if (parts_.input) parts_.input->resume();
}

void ExecRun::interrupt(int signal_number) {
  if (done_ == outcomes_.size()) return;  // run() is about to return
  at_once_ = stopping_;
  if (!interrupted_) interrupted_ = 128 + signal_number;
  if (at_once_)
    parts_.console.message("killing all commands now");
  else if (signal_number != SIGPIPE)
    parts_.console.message(fmt::format(
        "{}: ending all commands (TERM, then KILL after {:.3g} s); once more kills them at once",
        signal_name(signal_number), static_cast<double>(job_.grace.count()) / 1000));
  stop_all();
}

void ExecRun::stop_all() {
  stopping_ = true;
  const std::size_t begun = next_;
  next_ = outcomes_.size();
  for (std::size_t index = 0; index < outcomes_.size(); ++index) {
    if (is_done(index)) continue;
    Outcome skipped;
    skipped.kind = Kind::skipped;
    skipped.exit_code = interrupted_.value_or(kExitFailed);
    skipped.reason = "the command was not started";
    if (index >= begun) {
      skipped.order = ++done_;
      ++failed_;
      outcomes_[index].outcome = skipped;
      for (ExecSink* sink : parts_.sinks)
        sink->finished(index, outcomes_[index].host, outcomes_[index].outcome);
      continue;
    }
    Active& active = *active_[index];
    if (active.phase == Phase::running) {
      stop(active, at_once_ ? milliseconds(0) : job_.grace, "interrupted");
    } else if (active.phase != Phase::preparing || at_once_) {
      active.session->close();
      finish(index, std::move(skipped));
    } else {
      // The runner has the job: wait for its answer, to stop the command properly.
      active.answer_due.set(parts_.stop_slack, [this, index] {
        if (!is_done(index)) give_up(index, {ErrorCode::timeout, "no answer from its runner"});
      });
    }
  }
  leave_when_done();
}

}  // namespace sortie::launcher
