#include "launcher/supervise/attempt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <nlohmann/json.hpp>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "common/config/forms.h"
#include "launcher/host/host_errors.h"
#include "launcher/tunnel/mesh_setup.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Attempt::Attempt(Parts parts, const config::JobConfig& job, const LaunchPlan& plan)
    : parts_(parts),
      job_(job),
      plan_(plan),
      relay_(host_of_each_rank(plan), std::uint64_t{parts.epoch} << 32),
      interface_(plan.interface),
      watch_({parts.executor, parts.console, parts.folder, plan.attempt,
              [this] { return stopping_ || failing() || ended_ || superseded(); },
              [this](std::size_t host, const wire::Message& order) {
                hosts_[host].session->send(order);
              },
              [this](Cause cause) { blame(std::move(cause)); }, parts.on_slow},
             job, plan),
      hold_(config::launcher_hold(job.runner.on_launcher_loss)),
      host_work_(parts.executor),
      progress_timer_(parts.executor),
      stall_timer_(parts.executor),
      changed_(parts.executor),
      settle_timer_(parts.executor),
      links_timer_(parts.executor),
      commit_timer_(parts.executor),
      start_timer_(parts.executor),
      finalize_timer_(parts.executor) {
  ranks_.resize(plan.world_size);
  if (hold_.count() > 0) {
    relay_.keep_ended_fences();
    names_.keep_answers();
  }
  listening_ = parts_.folder.listen(
      {parts.executor,
       [this](std::uint64_t owner, std::uint64_t bytes, std::uint64_t pieces) {
         on_written(owner, bytes, pieces);
       },
       [this](const Error& error) {
         parts_.console.error(
             fmt::format("run folder: {}; the run continues, but what can not be written is "
                         "lost (gaps are marked in the logs)",
                         error.message));
       }});
  for (const HostPlan& host : plan.hosts) {
    Host& entry = hosts_.emplace_back();
    entry.index = hosts_.size() - 1;
    entry.plan = &host;
    if (const auto known = parts_.cgroups.find(host.name); known != parts_.cgroups.end())
      entry.cgroup = known->second;
    entry.session = std::make_shared<HostSession>(parts.executor, host.name, job.runner);
    for (const RankPlan& rank : host.ranks) ranks_[rank.rank].host = hosts_.size() - 1;
  }
}

Attempt::~Attempt() {
  parts_.folder.stop_listening(listening_);
}

bool Attempt::at_work() const {
  return sweeps_ > 0 || reconnects_ > 0 || host_work_.running() > 0;
}

std::set<std::string> Attempt::unusable_hosts() const {
  std::set<std::string> names;
  for (const Host& host : hosts_)
    if (host.error || (host.state == HostState::lost && !host.clear)) names.insert(host.plan->name);
  return names;
}

/// A runner that is cut off has received nothing later than one heartbeat after the last message
/// from it. If the connection ended here with an error, the runner may see only silence. It gives
/// its ranks a grace period of at most kLeaseGrace.
Clock::time_point Attempt::leases_end() const {
  constexpr milliseconds kLeaseGrace{5000}, kMargin{1000};
  const milliseconds grace = std::min(milliseconds(job_.runner.grace), kLeaseGrace);
  const milliseconds interval = job_.runner.heartbeat_interval;
  const milliseconds timeout = job_.runner.heartbeat_timeout;
  Clock::time_point latest{};
  for (const Host& host : hosts_) {
    if (host.state != HostState::lost || host.clear || host.lost_at == Clock::time_point{})
      continue;
    const Clock::time_point noticed =
        hold_.count() > 0
            ? host.lost_at + hold_ + timeout
            : std::max<Clock::time_point>(host.lost_at, host.session->last_heard() + timeout) +
                  interval;
    latest = std::max<Clock::time_point>(latest, noticed + grace + kMargin);
  }
  return latest;
}

void Attempt::wake() {
  changed_.cancel();
}

asio::awaitable<void> Attempt::one_host(HostWork work, std::size_t index) {
  if (!failing()) co_await (this->*work)(index);
}

asio::awaitable<void> Attempt::for_all_hosts(HostWork work) {
  for (std::size_t i = 0; i < hosts_.size(); ++i) host_work_.spawn(one_host(work, i));
  co_await host_work_.wait();
}

asio::awaitable<void> Attempt::connect_host(std::size_t index) {
  Host& host = hosts_[index];
  const auto session = host.session;
  auto connected = co_await session->connect(parts_.transport, parts_.binary);
  if (connected) {
    host.state = HostState::connected;
    note_connected(host);
  } else {
    host.state = HostState::lost;
    host.error = std::move(connected).error();
  }
}

bool Attempt::report_host_errors() {
  std::vector<std::pair<std::string, Error>> errors;
  for (const Host& host : hosts_) {
    if (!host.error) continue;
    errors.emplace_back(host.plan->name, *host.error);
    parts_.folder.event(JournalEvent::host_failed, {{"host", host.plan->name},
                                                    {"stage", error_code_name(host.error->code)},
                                                    {"message", host.error->message}});
  }
  if (errors.empty() || failing()) return !errors.empty();
  std::string text = fold_errors(errors);
  const std::size_t good = hosts_.size() - errors.size();
  if (good > 0)
    text += fmt::format("\nno rank was started: {} of {} hosts {} ready", good, hosts_.size(),
                        good == 1 ? "was" : "were");
  Cause cause;
  cause.what = Cause::What::unreachable;
  cause.host = errors.front().first;
  cause.message = std::move(text);
  cause.exit_code = exit_code_for(errors.front().second.code);
  blame(std::move(cause));
  return true;
}

asio::awaitable<Verdict> Attempt::run() {
  const auto prepared = std::make_shared<bool>(false);
  spawn(parts_.executor, show_progress(prepared));
  const auto left = std::make_shared<bool>(false);
  spawn(parts_.executor, note_stalls(left));
  // 1. Read the files for the hosts. Then on every host: connect, authenticate, start the runner.
  bool readable = true;
  if (!parts_.adopts) readable = co_await read_staged();
  if (readable && !parts_.credentials) {
    blame_files(parts_.credentials.error());
    readable = false;
  }
  if (readable) co_await for_all_hosts(&Attempt::connect_host);
  bool may_start = false;
  if (parts_.adopts) {
    // 2. Adopt the runners that still hold ranks of this run.
    co_await for_all_hosts(&Attempt::adopt_host);
  } else if (readable && !report_host_errors() && !failing()) {
    bool staged = true;
    if (stager_) {
      co_await stage_on_hosts();
      staged = !report_host_errors() && !failing();
    }
    if (staged && plan_.container) {
      imaging_ = true;
      co_await for_all_hosts(&Attempt::image_host);
      imaging_ = false;
      staged = !report_host_errors() && !failing() && agree_on_image();
    }
    // 2. Every host gets its part of the plan and prepares. Ranks start only when all are ready.
    if (staged) co_await for_all_hosts(&Attempt::prepare_host);
    may_start = staged && !report_host_errors() && !failing();
    if (may_start) warn_of_shm_size();
    if (may_start) warn_of_work_dir();
    may_start = may_start && machines_differ();
    if (may_start) may_start = co_await raise_tunnel();
    if (may_start) agree_on_meeting();
  }
  *prepared = true;
  progress_timer_.cancel();
  parts_.console.progress("");
  if (!failing() && parts_.adopts) start_adopted();
  // 3. Start all ranks at once, then watch.
  if (!failing() && may_start) start_all();
  while (running_ > 0) {
    changed_.expires_at(stopping_ ? stop_deadline_ : Clock::time_point::max());
    co_await changed_.async_wait(kToken);
    if (!stopping_ || Clock::now() < stop_deadline_) continue;
    for (Host& host : hosts_) {
      if (host.state != HostState::running) continue;
      give_up_on(host);
    }
  }
  settle();
  over_ = true;
  co_await let_runners_go();
  *left = true;
  stall_timer_.cancel();
  commit_timer_.cancel();
  start_timer_.cancel();
  finalize_timer_.cancel();
  co_return make_verdict();
}

void Attempt::note_connected(const Host& host) {
  parts_.folder.event(JournalEvent::connected,
                      {{"host", host.plan->name}, {"address", host.session->address()}});
}

void Attempt::watch(Host& host) {
  host.state = HostState::running;
  ++running_;
  listen_to(host);
}

void Attempt::listen_to(Host& host) {
  host.session->start(
      {[this, &host](wire::Message message) { on_message(host, std::move(message)); },
       [this, &host](Error error) { on_lost(host, std::move(error)); },
       [this, &host](const wire::Heartbeat& beat) { on_heartbeat(host, beat); }});
}

/// Counts running hosts instead of scanning all of them, because thousands may end at once.
void Attempt::end_of(Host& host, HostState state) {
  if (host.state == HostState::running) --running_;
  host.state = state;
  if (parts_.on_forwards_end) parts_.on_forwards_end(host.plan->name);
  if (running_ == 0) wake();
}

void Attempt::stop_all(std::uint32_t grace_ms, const std::string& reason) {
  if (superseded()) return;
  stopping_ = true;
  grace_ms_ = grace_ms;
  stop_deadline_ = Clock::now() + std::chrono::milliseconds(grace_ms) + parts_.stop_slack;
  parts_.folder.event(JournalEvent::stop, {{"grace_ms", grace_ms}, {"reason", reason}});
  for (Host& host : hosts_) {
    if (host.state == HostState::running)
      host.session->send(wire::Stop{grace_ms, reason, peers_lost()});
    else if (host.state != HostState::finished)
      let_go(host);
  }
  wake();
}

/// After an interrupt the attempt does not wait for slow hosts: nothing has been started on them.
void Attempt::count_interrupt() {
  ++interrupts_;
  host_work_.stop_waiting();
}

void Attempt::interrupt(int signal_number) {
  if (ended_) return;  // nothing runs, and the run is about to end
  count_interrupt();
  if (over_) return wake();  // no rank runs; the second interrupt ends swept()
  Cause cause;
  cause.what = Cause::What::interrupted;
  cause.code = signal_number;
  cause.exit_code = 128 + signal_number;
  cause.message = "interrupted by " + signal_name(signal_number);
  if (interrupts_ == 1 && !failing() && adopting()) {
    parts_.console.message(fmt::format(
        "{}: the adoption is given up; all hosts are reached again to end the ranks there; once "
        "more does not wait for that",
        signal_name(signal_number)));
    return blame(std::move(cause));
  }
  if (interrupts_ == 1 && (!failing() || ends_as_planned())) {
    parts_.console.message(fmt::format(
        "{}: stopping all ranks (TERM, then KILL after {:.3g} s); once more kills them at once",
        signal_name(signal_number), static_cast<double>(job_.runner.grace.count()) / 1000));
    return blame(std::move(cause));  // no effect on a planned end: its order to stop was sent
  }
  parts_.console.message("killing all ranks now");
  blame(std::move(cause));
  stop_all(0, "interrupted again");
  for (Host& host : hosts_) {
    if (!host.way_back) continue;
    abandon_reconnect(host);
    lose(host, *host.loss);
  }
}

void Attempt::stop(bool now, const std::string& by) {
  if (ended_) return;
  count_interrupt();
  if (over_) return wake();
  if (!failing() || ends_as_planned()) {
    parts_.console.message(fmt::format("stopping all ranks{}, by {}", now ? " at once" : "", by));
    Cause cause;
    cause.what = Cause::What::interrupted;
    cause.code = SIGTERM;
    cause.exit_code = 128 + SIGTERM;
    cause.message = "stopped by " + by;
    blame(std::move(cause));
  }
  if (now) stop_all(0, "`sortie stop --now`");
}

const char* Attempt::state() const {
  return stopping_ ? "stopping" : starting_ ? "starting" : "running";
}

}  // namespace sortie::launcher
