// How ranks end: by Stop, by themselves, or with their keeper; and the cleanup that follows.
#include "runner/job/job.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "common/asio/spawn.h"
#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "common/base/fd.h"
#include "common/base/log.h"
#include "common/base/process_status.h"
#include "common/training/progress.h"
#include "common/wire/left_behind.h"
#include "runner/process/cgroup.h"
#include "runner/process/process_tree.h"
#include "runner/unix_time.h"

namespace sortie::runner {
namespace {

using std::chrono::milliseconds;

/// Whether a program's path, relative to `folder`, names a folder.
bool is_folder(const std::string& path, const std::string& folder) {
  struct stat info {};
  return ::stat((path.starts_with('/') ? path : folder + '/' + path).c_str(), &info) == 0 &&
         S_ISDIR(info.st_mode);
}

constexpr std::size_t kMaxOrphanStatuses = 4096;
/// Time for the engine to remove the job's containers when nothing runs in them any more.
constexpr milliseconds kRemovalLimit{10000};

bool is_alive(pid_t pid) {
  const char state = pid > 0 ? process_state(pid) : '?';
  return state != '?' && state != 'Z' && state != 'X';
}

}  // namespace

/// If the file can not be created, the rank waits for its peers and is killed at the end of the
/// grace.
void Job::hurry(const Rank& rank) {
  const std::string path = rank.socket_path + std::string(training::kHurrySuffix);
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!file) log::warning("{}", os_error(errno, path).message);
}

void Job::stop(milliseconds grace, bool peers_lost) {
  stopped_ = true;
  if (!started_) {
    if (prepared_ && !finished_) spawn(io_, finish());
    if (!prepared_ && pmix_) pmix_->stop();
    return;
  }
  const bool hurried = peers_lost || grace < milliseconds(spec_.grace_ms);
  for (const auto& rank : ranks_) {
    if (rank->gone) continue;
    if (hurried) hurry(*rank);
    rank->process.stop(grace);
  }
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
      rank.exited.time_boot_ms = report.time_boot_ms;
      report_spawn_failure(slot, report);
      break;
    case KeeperReport::Kind::died:
      rank.pid = report.pid;
      rank.exited.time_unix_ms = report.time_unix_ms;
      rank.exited.time_boot_ms = report.time_boot_ms;
      rank.exited.stopped = static_cast<std::uint8_t>(report.stopped);
      set_status(rank, report.wait_status);
      break;
    case KeeperReport::Kind::unkillable:
      on_unkillable(slot, report);
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
      log::warning("rank {}: its keeper was killed; killing its processes", rank.spec->rank);
      rank.keeper_lost = true;
      // A Stop that comes before the rank is reaped is not what ends it.
      if (!rank.has_status) rank.exited.stopped = stopped_ ? 1 : 0;
      if (!rank.cgroup.empty()) cgroup::kill_all(rank.cgroup);
      start_sweep();
      break;
  }
}

/// The end of a dead rank is reported, whatever it has left.
void Job::on_unkillable(std::size_t slot, const KeeperReport& report) {
  Rank& rank = *ranks_[slot];
  const std::string what = report.error == EPERM
                               ? fmt::format("{} can not be killed: {}; end it on the host",
                                             process_text(report.pid), std::strerror(EPERM))
                               : fmt::format(
                                     "{} does not die of SIGKILL (state {}); the host "
                                     "needs attention",
                                     process_text(report.pid), process_state(report.pid));
  if (!rank.has_status) return send_error(ErrorCode::timeout, what, rank);
  rank.exited.left = what;
  rank_gone(slot);
}

void Job::set_time_of_death(wire::RankExited& exited) {
  exited.time_unix_ms = unix_ms();
  exited.time_boot_ms = static_cast<std::uint64_t>(boot_ms());
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
    return send_error(
        ErrorCode::unsupported,
        fmt::format("{}{} is an MPI program, and MPI ranks can not be wired up here: {}; or set "
                    "runner.mpi = \"off\" to run it unconnected",
                    rank.program, where, pmix_note_.substr(pmix_note_.find(' ') + 1)),
        rank);
  std::string hint;
  if (error == ENOENT && rank.program.find('/') == std::string::npos)
    hint = fmt::format("; not in PATH={}", rank.searched_path);
  else if (error == ENOENT && report.found)
    hint = "; the file exists, so its interpreter (#! line or ELF loader) is missing";
  else if (error == ENOENT && boxes_)
    hint = "; it must be in the image, or under a mount";
  else if (error == ENOENT)
    hint = "; a program must be at the same path on every host";
  else if (error == EACCES && !boxes_ && is_folder(rank.program, spec_.work_dir))
    hint = "; it is a folder; name a program";
  else if (error == EACCES)
    hint = "; needs execute permission, on a file system mounted without noexec";
  else if (error == E2BIG)
    hint = "; arguments and environment exceed the kernel's limit";
  send_error(
      ErrorCode::spawn,
      fmt::format("cannot start {}{}: {}{}", rank.program, where, std::strerror(error), hint),
      rank);
}

/// The container's own counters are proof, like those of the own cgroup of a rank without a
/// container.
void Job::look_for_oom(Rank& rank) const {
  if (!rank.group || rank.exited.stopped || (!rank.exited.signaled && rank.exited.code == 0))
    return;
  const bool killed = rank.exited.signaled && rank.exited.code == SIGKILL;
  const bool alone = spec_.ranks.size() == 1 || spec_.container.scope == wire::ContainerScope::rank;
  if ((killed || alone) && rank.group->has_killed()) rank.exited.oom_killed = 1;
  if (rank.exited.oom_killed) rank.exited.memory_limit_bytes = rank.group->limit();
}

boost::asio::awaitable<void> Job::tick_groups() {
  while (!finished_) {
    group_timer_.expires_after(oom::kTick);
    const auto [error] = co_await group_timer_.async_wait(kToken);
    if (error) co_return;
    for (const auto& rank : ranks_)
      if (rank->group) rank->group->tick();
  }
}

void Job::rank_gone(std::size_t slot) {
  Rank& rank = *ranks_[slot];
  if (rank.gone) return;
  rank.gone = true;
  progress_.rank_ended(rank.spec->rank);
  if (rank.input) rank.input->close();
  rank.events->finish();
  const wire::RankExited& exited = rank.exited;
  const bool succeeded = rank.has_status && !exited.signaled && exited.code == 0;
  if (succeeded && !exited.stopped && pmix_up_ && pmix_->running())
    return finalize_check_.ask(*pmix_, exited.rank);
  pump_.finish(slot);
}

void Job::rank_drained(std::size_t slot) {
  ranks_[slot]->drained = true;
  if (!resending_) link_.send(ranks_[slot]->exited);
  if (++exited_ == ranks_.size()) spawn(io_, finish());
}

boost::asio::awaitable<void> Job::finish() {
  if (forwards_) forwards_->close();
  if (pmix_) {
    pmix_->stop();
    co_await pmix_->wait_gone(std::chrono::seconds(2));
  }
  co_await end_health();
  group_timer_.cancel();
  co_await remove_boxes();
  if (!std::exchange(finished_, true) && !resending_) link_.send(wire::Finished{});
  for (boost::asio::steady_timer* waiter : finish_waiters_) waiter->cancel();
}

boost::asio::awaitable<void> Job::end_health() {
  if (!health_) co_return;
  health_->stop();
  co_await health_->wait_gone(std::chrono::seconds(1));
  if (health_->running()) log::warning("sortie-health waits in a driver and does not end yet");
}

/// Reports containers that are still there. With a living process this is an error of the job.
boost::asio::awaitable<void> Job::remove_boxes() {
  if (!boxes_) co_return;
  const Result<> removed = co_await boxes_->remove(kRemovalLimit);
  if (removed) co_return;
  const bool harmless = removed.error().code == container::Boxes::kLeftBehind;
  send_error(harmless ? wire::kLeftBehind : error_code_name(removed.error().code),
             removed.error().message);
}

void Job::reap() {
  int status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
    if (keepers_.erase(pid) == 0 && orphan_statuses_.size() < kMaxOrphanStatuses)
      orphan_statuses_[pid] = status;
    if (health_) health_->reaped(pid, status);
  }
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

/// Kills what a killed keeper held: it becomes a child of the runner once the keeper is dead. The
/// keeper's sockets close a moment earlier, so this waits until the keeper is reaped.
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
      send_error(ErrorCode::timeout, "a process does not die of SIGKILL; the host needs attention");
    }
    pause.expires_after(milliseconds(complained ? 1000 : 5));
    co_await pause.async_wait(kToken);
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
    set_time_of_death(rank.exited);
  }
  look_for_oom(rank);
  if (boxes_ && !rank.exited.stopped && !rank.exited.oom_killed)
    if (std::string why = boxes_->why_lost(slot); !why.empty())
      send_error(ErrorCode::lost, std::move(why), rank);
  if (!rank.cgroup.empty()) cgroup::remove(rank.cgroup);
  rank_gone(slot);
}

}  // namespace sortie::runner
