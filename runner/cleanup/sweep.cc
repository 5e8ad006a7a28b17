#include "runner/cleanup/sweep.h"

#include <dirent.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <set>
#include <vector>

#include "runner/cleanup/run_folder.h"
#include "runner/cleanup/shared_memory.h"
#include "runner/cleanup/stale.h"
#include "runner/container/removal.h"
#include "runner/job/job_check.h"
#include "runner/memory/memory_folder.h"
#include "runner/process/cgroup.h"
#include "runner/process/keeper.h"
#include "runner/process/process_tree.h"
#include "runner/streams/wakeup.h"
#include "runner/tunnel/holder.h"

namespace sortie::runner {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{50};
/// Time in addition to their own grace, for keepers to kill, reap and clean up.
constexpr milliseconds kKeeperMargin{1000};
constexpr std::size_t kMaxLeft = 32;
/// Keeps the command at the end of removal.h's error for a few containers.
constexpr std::size_t kMaxWhy = 2000;

struct Found {
  std::vector<pid_t> runners, keepers, members, holders;
  bool empty() const {
    return runners.empty() && keepers.empty() && members.empty() && holders.empty();
  }
};

/// Whether the process has a folder of the run, or a file in it, open, as runners and keepers do
/// for the lock. `base` ends with a slash.
bool holds_folder(const std::string& process, const std::string& base, const std::string& run_id) {
  return has_open(process, [&](std::string_view path) {
    if (!path.starts_with(base)) return false;
    path.remove_prefix(base.size());
    return is_run_folder_name(path.substr(0, path.find_first_of("/ ")), run_id);
  });
}

/// Whether the process holds the run's memory: a runner, not a rank that has a part of it open.
bool holds_memory(const std::string& process, const std::string& run_id) {
  return has_open(process, [&](std::string_view path) {
    return is_memory_of_run(path, run_id) && !path.ends_with(".data");
  });
}

class Sweeper {
 public:
  explicit Sweeper(const wire::Sweep& order) : order_(order), base_(run_folder_base() + '/') {}

  Found look() const {
    Found found;
    const std::set<pid_t> grouped = cgroup::members(order_.cgroup);
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc", error)) {
      const std::string& path = entry.path().native();
      const std::string name = entry.path().filename().native();
      pid_t pid = 0;
      const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
      if (bad != std::errc{} || end != name.data() + name.size() || pid == ::getpid()) continue;
      struct stat info {};
      if (::stat(path.c_str(), &info) != 0 || info.st_uid != ::geteuid()) continue;
      const char state = process_state(pid);
      if (state == 'Z' || state == 'X' || state == '?') continue;
      // Without ranks, a holder of memory has nothing left to do in order.
      if (holds_memory(path, order_.run_id))
        found.holders.push_back(pid);
      else if (holds_folder(path, base_, order_.run_id))
        (process_name(pid).starts_with("sortie-keep") ? found.keepers : found.runners)
            .push_back(pid);
      else if (grouped.contains(pid) || belongs_to_run(pid, order_.run_id))
        found.members.push_back(pid);
    }
    return found;
  }

  void kill(const std::vector<pid_t>& pids) {
    for (const pid_t pid : pids)
      if (::kill(pid, SIGKILL) == 0) killed_.insert(pid);
  }
  void kill_group() const {
    if (!order_.cgroup.empty()) cgroup::kill_all(order_.cgroup);
  }

  void remove_files() const {
    if (!order_.cgroup.empty()) cgroup::remove(order_.cgroup);
    // Memory that is still held was taken after the check, by a holder in good order.
    remove_unheld_memory(order_.run_id);
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(base_, error))
      if (is_run_folder_name(entry.path().filename().native(), order_.run_id))
        remove_with_shared_memory(entry.path());
  }

  wire::Swept result(const Found& left) const {
    wire::Swept swept;
    swept.killed = static_cast<std::uint32_t>(killed_.size());
    for (const auto* pids : {&left.runners, &left.keepers, &left.members, &left.holders})
      for (const pid_t pid : *pids)
        if (swept.left.size() < kMaxLeft)
          swept.left.push_back(
              fmt::format("{} {} (state {})", pid, process_name(pid), process_state(pid)));
    return swept;
  }

 private:
  const wire::Sweep& order_;
  const std::string base_;
  std::set<pid_t> killed_;
};

}  // namespace

Result<> check_sweep(const wire::Sweep& order) {
  if (!is_run_id(order.run_id))
    return fail(ErrorCode::protocol, "Sweep: run_id: not of the form [a-z0-9-]{1,64}");
  if (order.cgroup.empty()) return {};
  const fs::path path = order.cgroup;
  if (!order.cgroup.starts_with("/sys/fs/cgroup/") || path.lexically_normal() != path ||
      !path.filename().native().starts_with("sortie-" + order.run_id + "-"))
    return fail(ErrorCode::protocol, "Sweep: cgroup: not one of this run");
  return {};
}

/// Removes the run's containers, found by label. Returns the reason of a failure, "" if none is
/// left.
static boost::asio::awaitable<std::string> sweep_containers(boost::asio::io_context& io,
                                                            const wire::Sweep& order,
                                                            const ProcessDefaults& defaults) {
  const Result<container::Client> client = container::find_client(order.engine);
  if (!client) co_return client.error().message;
  container::EngineCalls calls(io, defaults);
  const container::Fenced all{order.run_id, 0, 0};
  const Result<std::size_t> removed = co_await container::remove_stale(io, calls, *client, all);
  if (!removed) co_return removed.error().message;
  co_return std::string();
}

boost::asio::awaitable<wire::Swept> sweep_run(boost::asio::io_context& io, wire::Sweep order,
                                              const ProcessDefaults& defaults) {
  Sweeper sweeper(order);
  const auto begin = Clock::now();
  const auto runner_deadline = begin + milliseconds(order.patience_ms);
  auto runner_gone = begin;                      // from then on its keepers have their grace
  auto give_up = begin + std::chrono::hours(1);  // set at the first KILL of all that is left
  boost::asio::steady_timer pause(io);
  Found found;
  for (;;) {
    found = sweeper.look();
    const auto now = Clock::now();
    if (found.empty() || now >= give_up) break;
    for (const pid_t pid : found.keepers) ::kill(pid, SIGCONT);
    sweeper.kill(found.holders);
    if (!found.runners.empty()) {
      runner_gone = now;
      // A frozen runner ends nothing and keeps its keepers from ending anything.
      for (const pid_t pid : found.runners)
        if (const char state = process_state(pid); state == 'T' || now >= runner_deadline)
          sweeper.kill({pid});
    }
    const bool keepers_work =
        !found.keepers.empty() && now < runner_gone + kOrphanGrace + kKeeperMargin;
    const bool runners_work = !found.runners.empty() && now < runner_deadline + kKeeperMargin;
    if (!keepers_work && !runners_work) {
      give_up = std::min(give_up, now + kUnkillableAfter);
      sweeper.kill_group();
      sweeper.kill(found.keepers);
      sweeper.kill(found.members);
    }
    pause.expires_after(kPause);
    co_await pause.async_wait(kToken);
  }
  std::string why;
  if (!order.engine.empty()) {
    why = co_await sweep_containers(io, order, defaults);
    found = sweeper.look();  // processes of a frozen container end with it
  }
  if (found.empty()) sweeper.remove_files();
  const std::size_t devices = tunnel::remove_stale_tunnels();
  wire::Swept swept = sweeper.result(found);
  if (devices > 0) swept.left.push_back(fmt::format("{} network devices of tunnels", devices));
  if (!why.empty()) swept.left.push_back("containers: " + why.substr(0, kMaxWhy));
  co_return swept;
}

}  // namespace sortie::runner
