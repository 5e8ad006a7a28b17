#include "runner/job.h"

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "common/base/log.h"
#include "common/base/process_status.h"
#include "runner/cgroup.h"
#include "runner/container/inside.h"
#include "runner/environment.h"
#include "runner/process_tree.h"
#include "runner/spawn.h"
#include "runner/unix_time.h"

namespace sortie::runner {
namespace {

using std::chrono::milliseconds;

/// Exit codes of a rank that could not be started, as shells have them.
constexpr std::uint32_t kExitNotFound = 127;
constexpr std::uint32_t kExitNotRunnable = 126;
/// With this much waiting for the launcher, events are dropped: they must not pile up in memory.
constexpr std::size_t kMaxQueuedForEvents = 4u << 20;
constexpr std::size_t kSpawnsBetweenYields = 8;
constexpr std::size_t kMaxOrphanStatuses = 4096;
/// For the engine to remove the job's containers when nothing runs in them any more.
constexpr milliseconds kRemovalLimit{10000};

bool is_alive(pid_t pid) {
  const char state = pid > 0 ? process_state(pid) : '?';
  return state != '?' && state != 'Z' && state != 'X';
}

wire::RunnerError rank_error(ErrorCode code, std::string message, std::uint32_t rank) {
  return {std::string(error_code_name(code)), std::move(message), static_cast<std::int32_t>(rank)};
}

}  // namespace

Job::Job(boost::asio::io_context& io, Link& link, wire::JobSpec spec,
         const ProcessDefaults& defaults)
    : io_(io),
      link_(link),
      spec_(std::move(spec)),
      defaults_(defaults),
      facts_(read_node_facts()),
      base_env_(base_environment(environ)),
      pump_(
          io, spec_.output_window, [this] { link_.wake(); },
          [this](std::size_t slot) { rank_drained(slot); }),
      finished_wakeup_(io) {
  link_.set_source([this] { return pump_.next(); });
  if (spec_.hold_ms > 0) pump_.keep_unacknowledged();
}

boost::asio::awaitable<void> Job::start(wire::Environment env) {
  started_ = true;
  start_env_ = std::move(env);
  port_.release_port();  // rank 0 will listen there; the lease is kept
  for (std::size_t slot = 0; slot < ranks_.size(); ++slot) {
    start_rank(slot);
    if (slot % kSpawnsBetweenYields == kSpawnsBetweenYields - 1)
      co_await boost::asio::post(io_, boost::asio::use_awaitable);
  }
}

void Job::start_rank(std::size_t slot) {
  Rank& rank = *ranks_[slot];
  Fd in = std::move(rank.in), out = std::move(rank.out), err = std::move(rank.err);
  if (stopped_) {  // Stop overtook the start
    rank.exited.signaled = 1;
    rank.exited.code = SIGTERM;
    rank.exited.stopped = 1;
    rank.exited.time_unix_ms = unix_ms();
    in.reset();
    out.reset();
    err.reset();
    return rank_gone(slot);
  }
  HeldSpec held;
  held.title = fmt::format("sortie-keep-{}", rank.spec->local_rank % 1000);
  held.env = environment_of(rank);
  if (!binding_.ranks.empty()) held.cpus = binding_.ranks[slot].cpus;
  rank.searched_path = env_value(held.env, "PATH");
  if (in) held.stdin_fd = in.get();
  held.stdout_fd = out.get();
  held.stderr_fd = err.get();
  held.cgroup = rank.cgroup;
  held.job_cgroup = cgroup_;
  held.run_folder = folder_.path();
  held.defaults = defaults_;
  const Result<> started = start_process(slot, held);
  if (rank.process.keeper() > 0) keepers_.insert(rank.process.keeper());
  in.reset();
  out.reset();
  err.reset();
  if (started) return;
  send_error(rank_error(ErrorCode::spawn, started.error().message, rank.spec->rank));
  rank.exited.code = kExitNotRunnable;
  rank.exited.time_unix_ms = unix_ms();
  rank_gone(slot);
}

/// Here, or in its container, where program and folder are looked for by process 1.
Result<> Job::start_process(std::size_t slot, HeldSpec& held) {
  Rank& rank = *ranks_[slot];
  const auto report = [this, slot](const KeeperReport& what) { on_report(slot, what); };
  if (boxes_) {
    held.argv = boxes_->argv(spec_.argv);
    held.announce = true;
    held.refuse_mpi = spec_.mpi != 0 && !pmix_up_ && spec_.world_size > 1;
    if (rank.searched_path.empty()) rank.searched_path = boxes_->path(slot);
    rank.program = held.argv[0];
    return boxes_->start(slot, rank.process, held, report);
  }
  held.argv = spec_.argv;
  rank.program = held.argv[0];
  held.candidates = program_candidates(spec_.argv[0], rank.searched_path);
  held.folders = {spec_.work_dir, std::string(env_value(base_env_, "HOME")), "/"};
  return rank.process.start(held, report);
}

std::vector<std::string> Job::environment_of(const Rank& rank) const {
  RankContext context;
  context.config_path = config_path_;
  context.socket_path = rank.socket_path;
  context.cpus = facts_.cpus;
  const std::size_t index = static_cast<std::size_t>(rank.spec - spec_.ranks.data());
  if (!binding_.ranks.empty()) context.threads = binding_.ranks[index].threads;
  context.amd_gpus =
      !topology_.gpus.empty() && topology_.gpus.front().vendor == cpu::Gpu::Vendor::amd;
  context.pmix_env = pmix_lines_for(pmix_env_, rank.spec->rank);
  context.start_env = start_env_;
  if (!boxes_) return rank_environment(base_env_, spec_, *rank.spec, context);
  wire::RankSpec adapted = *rank.spec;
  boxes_->adapt(adapted.env, index);
  return rank_environment(container::default_environment(spec_), spec_, adapted, context);
}

void Job::stop(milliseconds grace) {
  stopped_ = true;
  if (!started_) {
    if (prepared_ && !finished_) spawn(io_, finish());
    if (!prepared_ && pmix_) pmix_->stop();
    return;
  }
  for (const auto& rank : ranks_)
    if (!rank->gone) rank->process.stop(grace);
  wake_keepers();
}

void Job::on_report(std::size_t slot, const KeeperReport& report) {
  Rank& rank = *ranks_[slot];
  switch (report.kind) {
    case KeeperReport::Kind::started:
      rank.pid = report.pid;
      if (boxes_ && rank.pid > 0) rank.group.emplace(rank.pid);
      link_.send(wire::RankStarted{rank.spec->rank, static_cast<std::uint32_t>(report.pid)});
      break;
    case KeeperReport::Kind::spawn_failed:
      rank.exited.time_unix_ms = report.time_unix_ms;
      report_spawn_failure(slot, report);
      break;
    case KeeperReport::Kind::died:
      rank.pid = report.pid;
      rank.exited.time_unix_ms = report.time_unix_ms;
      rank.exited.stopped = static_cast<std::uint8_t>(report.stopped);
      set_status(rank, report.wait_status);
      break;
    case KeeperReport::Kind::unkillable:
      send_error(rank_error(
          ErrorCode::timeout,
          fmt::format("process {} does not die of SIGKILL (state {}); the host needs attention",
                      report.pid, process_state(report.pid)),
          rank.spec->rank));
      break;
    case KeeperReport::Kind::gone:
      rank.exited.leftovers_killed = report.leftovers;
      rank.exited.oom_killed = static_cast<std::uint8_t>(report.oom);
      look_for_oom(rank);
      rank_gone(slot);
      break;
    case KeeperReport::Kind::announced:
      break;
    case KeeperReport::Kind::keeper_lost:
      log::warning("rank {}: its keeper was killed; ending what it held", rank.spec->rank);
      rank.keeper_lost = true;
      if (!rank.cgroup.empty()) cgroup::kill_all(rank.cgroup);
      start_sweep();
      break;
  }
}

void Job::set_status(Rank& rank, int wait_status) {
  const ProcessStatus status = ProcessStatus::from_wait_status(wait_status);
  rank.has_status = true;
  rank.exited.signaled = status.kind == ProcessStatus::Kind::signaled ? 1 : 0;
  rank.exited.code = static_cast<std::uint32_t>(status.code);
  rank.exited.core_dumped = status.core_dumped ? 1 : 0;
}

void Job::report_spawn_failure(std::size_t slot, const KeeperReport& report) {
  Rank& rank = *ranks_[slot];
  const int error = report.error;
  rank.has_status = true;
  rank.exited.code = error == ENOENT ? kExitNotFound : kExitNotRunnable;
  const std::string where = boxes_ ? " in " + boxes_->where(slot) : "";
  if (error == kUnconnectedMpi)
    return send_error(rank_error(
        ErrorCode::unsupported,
        fmt::format("{}{} is an MPI program, and MPI ranks can not be wired up here: {}; or set "
                    "runner.mpi = \"off\" to run it unconnected",
                    rank.program, where, pmix_note_.substr(pmix_note_.find(' ') + 1)),
        rank.spec->rank));
  std::string hint;
  if (error == ENOENT && rank.program.find('/') == std::string::npos)
    hint = fmt::format("; not in PATH={}", rank.searched_path);
  else if (error == ENOENT && report.found)
    hint = "; it is there, so its interpreter (#! line or ELF loader) is what is missing";
  else if (error == ENOENT && boxes_)
    hint = "; it must be in the image, or under a mount";
  else if (error == ENOENT)
    hint = "; a program must be at the same path on every host";
  else if (error == EACCES)
    hint = "; needs execute permission, on a file system mounted without noexec";
  else if (error == E2BIG)
    hint = "; arguments and environment exceed what the kernel takes";
  send_error(rank_error(
      ErrorCode::spawn,
      fmt::format("cannot start {}{}: {}{}", rank.program, where, std::strerror(error), hint),
      rank.spec->rank));
}

/// The container's own counters are proof, as those of a bare rank's own cgroup are.
void Job::look_for_oom(Rank& rank) const {
  if (!rank.group || rank.exited.stopped || (!rank.exited.signaled && rank.exited.code == 0))
    return;
  const bool killed = rank.exited.signaled && rank.exited.code == SIGKILL;
  const bool alone = spec_.ranks.size() == 1 || spec_.container.scope == wire::ContainerScope::rank;
  if ((killed || alone) && rank.group->has_killed()) rank.exited.oom_killed = 1;
  if (rank.exited.oom_killed) rank.exited.memory_limit_bytes = rank.group->limit();
}

void Job::send_error(wire::RunnerError error) {
  link_.send(error);
  if (spec_.hold_ms > 0) errors_.push_back(std::move(error));
}

void Job::on_event(const Rank& rank, std::string line) {
  if (link_.broken() && spec_.hold_ms > 0 && !stopped_ &&
      held_event_bytes_ + line.size() < kMaxQueuedForEvents) {
    held_event_bytes_ += line.size();
    held_events_.push_back({rank.spec->rank, std::move(line)});
    return;
  }
  if (link_.queued_bytes() < kMaxQueuedForEvents)
    return link_.send(wire::RankEvent{rank.spec->rank, std::move(line)});
  if (dropped_events_++ == 0)
    log::warning("rank {}: events are dropped, the launcher is too slow", rank.spec->rank);
}

void Job::rank_gone(std::size_t slot) {
  Rank& rank = *ranks_[slot];
  if (rank.gone) return;
  rank.gone = true;
  if (rank.input) rank.input->close();
  rank.events->finish();
  pump_.finish(slot);
}

void Job::rank_drained(std::size_t slot) {
  ranks_[slot]->drained = true;
  if (!resending_) link_.send(ranks_[slot]->exited);
  if (++exited_ == ranks_.size()) spawn(io_, finish());
}

boost::asio::awaitable<void> Job::finish() {
  if (pmix_) {
    pmix_->stop();
    co_await pmix_->wait_gone(std::chrono::seconds(2));
  }
  co_await remove_boxes();
  if (!std::exchange(finished_, true) && !resending_) link_.send(wire::Finished{});
  finished_wakeup_.notify();
}

/// Error: a process of a container is still there; the host needs attention.
boost::asio::awaitable<void> Job::remove_boxes() {
  if (!boxes_) co_return;
  const Result<> removed = co_await boxes_->remove(kRemovalLimit);
  if (!removed)
    send_error(wire::RunnerError{std::string(error_code_name(removed.error().code)),
                                 removed.error().message, -1});
}

Result<> Job::take_input(const wire::Input& input) {
  if (spec_.input_window == 0) return fail(ErrorCode::protocol, "Input for a job without stdin");
  if (ranks_.empty()) return fail(ErrorCode::protocol, "Input before JobReady");
  return ranks_.front()->input->take(input);
}

Result<> Job::to_pmix(const wire::Message& message) {
  if (!pmix_up_) return fail(ErrorCode::protocol, "a PMIx message for a job without PMIx");
  if (spec_.hold_ms > 0 && !pmix_memory_.answered(message)) return {};
  if (pmix_->running()) pmix_->send(message);
  return {};
}

void Job::wake_keepers() const {
  for (const pid_t keeper : keepers_) ::kill(keeper, SIGCONT);
}

void Job::reap() {
  int status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0)
    if (keepers_.erase(pid) == 0 && orphan_statuses_.size() < kMaxOrphanStatuses)
      orphan_statuses_[pid] = status;
}

bool Job::lost_keepers_reaped() const {
  for (const auto& rank : ranks_) {
    if (!rank->keeper_lost) continue;
    if (keepers_.contains(rank->process.keeper())) return false;
    if (boxes_ && !rank->gone && is_alive(rank->pid)) return false;
  }
  return true;
}

void Job::start_sweep() {
  if (!std::exchange(sweeping_, true)) spawn(io_, sweep_orphans());
}

/// What a killed keeper held has become ours, as soon as the keeper is dead altogether: its sockets
/// close a moment before that, so it is waited for first.
boost::asio::awaitable<void> Job::sweep_orphans() {
  boost::asio::steady_timer pause(io_);
  const auto begin = std::chrono::steady_clock::now();
  bool complained = false;
  for (;;) {
    reap();
    std::vector<pid_t> orphans = direct_children();
    std::erase_if(orphans, [this](pid_t pid) { return keepers_.contains(pid); });
    kill_children(orphans);
    if (orphans.empty() && lost_keepers_reaped()) break;
    if (!complained && std::chrono::steady_clock::now() - begin > kUnkillableAfter) {
      complained = true;
      send_error(wire::RunnerError{std::string(error_code_name(ErrorCode::timeout)),
                                   "a process does not die of SIGKILL; the host needs attention",
                                   -1});
    }
    pause.expires_after(milliseconds(complained ? 1000 : 5));
    co_await pause.async_wait(kAsTuple);
  }
  sweeping_ = false;
  for (std::size_t slot = 0; slot < ranks_.size(); ++slot) settle_lost_keeper(slot);
}

void Job::settle_lost_keeper(std::size_t slot) {
  Rank& rank = *ranks_[slot];
  if (!rank.keeper_lost || rank.gone) return;
  if (!rank.has_status) {
    const auto found = orphan_statuses_.find(rank.pid);
    set_status(rank, found != orphan_statuses_.end() ? found->second : SIGKILL);
    rank.exited.time_unix_ms = unix_ms();
  }
  rank.exited.stopped = stopped_ ? 1 : 0;
  look_for_oom(rank);
  if (boxes_ && !stopped_ && !rank.exited.oom_killed)
    if (std::string why = boxes_->why_lost(slot); !why.empty())
      send_error(rank_error(ErrorCode::lost, std::move(why), rank.spec->rank));
  if (!rank.cgroup.empty()) cgroup::remove(rank.cgroup);
  rank_gone(slot);
}

void Job::resend(const std::vector<wire::LogSize>& sizes) {
  resending_ = true;
  for (const auto& rank : ranks_)
    if (rank->pid > 0)
      link_.send(wire::RankStarted{rank->spec->rank, static_cast<std::uint32_t>(rank->pid)});
  for (const wire::RunnerError& error : errors_) link_.send(error);
  for (const wire::Message& message : pmix_memory_.open(ranks_.front()->spec->rank))
    link_.send(message);
  for (const wire::RankEvent& event : held_events_) link_.send(event);
  held_events_.clear();
  held_event_bytes_ = 0;
  pump_.resend(sizes, [this] { resend_ends(); });
}

void Job::resend_ends() {
  resending_ = false;
  for (const auto& rank : ranks_)
    if (rank->drained) link_.send(rank->exited);
  if (finished_) link_.send(wire::Finished{});
}

boost::asio::awaitable<bool> Job::wait_finished(std::chrono::steady_clock::duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!finished_) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) co_return false;
    co_await finished_wakeup_.wait(deadline - now);
  }
  co_return true;
}

boost::asio::awaitable<void> Job::clean_up() {
  if (pmix_ && pmix_->running()) {
    pmix_->stop();
    co_await pmix_->wait_gone(std::chrono::seconds(2));
  }
  co_await remove_boxes();
  if (!cgroup_.empty()) cgroup::remove(cgroup_);
  folder_.remove();
  port_ = PortLease();
}

}  // namespace sortie::runner
