// Attempt: the order to start, and ranks that do not start in time.
#include <fmt/format.h>
#include <malloc.h>

#include <nlohmann/json.hpp>

#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "common/base/quantity.h"
#include "common/config/hostlist.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {

void Attempt::start_all() {
  starting_ = false;
  started_at_ = static_cast<double>(boot_ms()) / 1000;
  const Environment common = {{"MASTER_ADDR", meeting_.address},
                              {"MASTER_PORT", fmt::format("{}", master_port_)}};
  for (Host& host : hosts_) {
    wire::Start start{interface_environment(host.network, interface_, plan_.env)};
    start.env.insert(start.env.end(), common.begin(), common.end());
    watch(host);
    host.session->send(start);
  }
  watch_.begin();
  parts_.folder.event(JournalEvent::started,
                      {{"ranks", plan_.world_size}, {"hosts", hosts_.size()}});
  await_starts();
  // Return the memory used for authentication and for pushing runners (keys, buffers) to the OS.
  ::malloc_trim(0);
}

void Attempt::note_started() {
  if (++ranks_started_ < plan_.world_size) return;
  start_timer_.cancel();
  if (parts_.on_started) parts_.on_started();
}

/// Starts the timeout for the start of ranks. If the file system of the program hangs, a rank stays
/// between fork and exec without an error.
void Attempt::await_starts() {
  start_timer_.set(job_.runner.startup_timeout, [this] {
    if (ranks_started_ == plan_.world_size) return;
    if (stopping_ || failing() || over_ || superseded()) return;
    // If this process did not run for a while, messages of hosts are still unread.
    if (std::chrono::steady_clock::now() - start_timer_.time() > kNotRunning) return await_starts();
    // A host whose connection is broken may have ranks that started.
    for (const Host& host : hosts_)
      if (host.way_back) return await_starts();
    blame_unstarted();
  });
}

void Attempt::blame_unstarted() {
  std::vector<std::string> hosts;
  std::vector<std::uint32_t> missing;
  for (const Host& host : hosts_) {
    const std::size_t before = missing.size();
    for (const RankPlan& rank : host.plan->ranks)
      if (ranks_[rank.rank].pid == 0 && !ranks_[rank.rank].status) missing.push_back(rank.rank);
    if (missing.size() > before) hosts.push_back(host.plan->name);
  }
  if (missing.empty()) return;
  Cause cause;
  cause.what = Cause::What::spawn;
  cause.host = hosts.front();
  cause.rank = missing.front();
  cause.exit_code = exit_code_for(ErrorCode::timeout);
  cause.message = fmt::format(
      "{}: {} not started within {} (runner.startup_timeout); see whether the file system of the "
      "program answers there, or raise the key",
      config::fold_host_names(hosts),
      missing.size() == 1
          ? fmt::format("rank {} has", missing.front())
          : fmt::format("{} ranks, the first is {}, have", missing.size(), missing.front()),
      short_time(static_cast<double>(job_.runner.startup_timeout.count()) / 1000));
  blame(std::move(cause));
}

}  // namespace sortie::launcher
