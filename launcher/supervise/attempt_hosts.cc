// Attempt: the phase between "every host is connected" and "every rank is told to start": preparing
// the hosts, and what all of them must agree on.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "launcher/host/host_ready.h"
#include "launcher/plan/host_memory.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {

Result<> Attempt::take_ready(Host& host, const wire::JobReady& ready) {
  SORTIE_ASSIGN_OR_RETURN(HostFacts facts, check_ready(*host.plan, host.session->address(), ready));
  SORTIE_TRY(check_memory(plan_, *host.plan, facts.memory_bytes));
  host.network = std::move(facts.network);
  host.machine_id = std::move(facts.machine_id);
  host.master_port = ready.master_port;
  host.no_work_dir = facts.no_work_dir;
  for (std::size_t i = 0; i < facts.cpu_sets.size(); ++i)
    ranks_[host.plan->ranks[i].rank].cpus = std::move(facts.cpu_sets[i]);
  return {};
}

/// Returns true if all hosts are different machines. Ranks of a machine that is listed under two
/// names would share its devices unknowingly.
bool Attempt::machines_differ() {
  if (job_.runner.allow_same_machine) return true;
  std::vector<std::pair<std::string, std::string>> machines;
  for (const Host& host : hosts_) machines.emplace_back(host.plan->name, host.machine_id);
  std::string shared = shared_machine(machines);
  if (shared.empty()) return true;
  Cause cause;
  cause.what = Cause::What::unreachable;
  cause.message = std::move(shared);
  cause.exit_code = exit_code_for(ErrorCode::config);
  blame(std::move(cause));
  return false;
}

/// Chooses where the ranks meet, from the networks of all hosts. If there is no common network that
/// is a failure.
void Attempt::agree_on_meeting() {
  std::vector<HostNetwork> networks;
  for (const Host& host : hosts_) networks.push_back(host.network);
  auto meeting = choose_meeting(networks, interface_);
  if (!meeting) {
    Cause cause;
    cause.what = Cause::What::unreachable;
    cause.message = meeting.error().message;
    cause.exit_code = exit_code_for(meeting.error().code);
    blame(std::move(cause));
    return;
  }
  meeting_ = std::move(*meeting);
  if (!plan_.master_addr.empty()) meeting_ = {plan_.master_addr, "runner.master_addr", false};
  master_port_ = hosts_.front().master_port;
  if (meeting_.doubtful)
    parts_.console.message(
        fmt::format("MASTER_ADDR is {} ({}); where ranks can not connect to it, set "
                    "runner.network.interface",
                    meeting_.address, meeting_.how));
  parts_.folder.event(JournalEvent::master, {{"host", hosts_.front().plan->name},
                                             {"address", meeting_.address},
                                             {"port", master_port_},
                                             {"how", meeting_.how}});
}

/// Names the hosts without the current folder of the launcher. Their ranks run in the home folder.
void Attempt::warn_of_work_dir() {
  std::vector<std::string> lacking;
  for (const Host& host : hosts_)
    if (host.no_work_dir) lacking.push_back(host.plan->name);
  if (!lacking.empty())
    parts_.console.message("warning: " + work_dir_warning(std::move(lacking), plan_));
}

boost::asio::awaitable<void> Attempt::prepare_host(std::size_t index) {
  Host& host = hosts_[index];
  const auto session = host.session;
  wire::JobSpec spec = job_spec_of(host);
  host.ordered = std::chrono::steady_clock::now();
  auto ready = co_await session->prepare(std::move(spec), parts_.binary.sha256());
  if (ready) {
    Result<> good = take_ready(host, *ready);
    if (good) {
      host.state = HostState::ready;
      note_ready(host, *ready);
      co_return;
    }
    host.error = std::move(good).error();
  } else {
    host.error = std::move(ready).error();
  }
  host.state = HostState::lost;
  sweep_unprepared(host);
}

/// Sweeps the host if its runner was killed or hangs, because it may have left files or processes.
/// A runner that refuses, or whose connection was closed, cleans up itself.
void Attempt::sweep_unprepared(Host& host) {
  const ErrorCode code = host.error->code;
  if (failing()) return;  // then this launcher closed the connection
  if (code == ErrorCode::lost || code == ErrorCode::timeout) start_sweep(host);
}

/// Closes the connection to a host on which nothing was started; its runner, if any, sees EOF. A
/// frozen runner does not: it has missed heartbeats, and is swept. In an adoption that is not
/// complete, hosts may hold ranks of the lost supervisor and would continue to: each is swept.
void Attempt::let_go(Host& host) {
  const auto heard = std::max(host.ordered, host.session->last_heard());
  const auto silent = std::chrono::steady_clock::now() - heard;
  const bool ordered = host.state == HostState::connected && !host.session->closed() &&
                       host.ordered != std::chrono::steady_clock::time_point{};
  host.session->close();
  const bool frozen = ordered && silent > 3 * job_.runner.heartbeat_interval;
  if ((frozen || adopting()) && !host.sweeping) start_sweep(host);
}

wire::JobSpec Attempt::job_spec_of(const Host& host) const {
  std::vector<std::string> reached_at;
  if (host.index == 0)
    for (const Host& other : hosts_) reached_at.push_back(other.session->address());
  wire::JobSpec spec = make_job_spec(plan_, *host.plan, job_, parts_.folder.id(),
                                     peers_of_first(reached_at), host.stage_folder);
  if (plan_.container) {
    spec.container.image_id = image_id_;
    spec.container.engine = client_of(host);
  }
  spec.epoch = parts_.epoch;
  return spec;
}

void Attempt::note_ready(Host& host, const wire::JobReady& ready) {
  if (ready.cgroup.starts_with("v2 ")) host.cgroup = ready.cgroup.substr(3);
  host.memory_bytes = ready.memory_bytes;
  parts_.folder.event(JournalEvent::ready, {{"host", host.plan->name},
                                            {"hostname", ready.hostname},
                                            {"cpus", ready.cpus},
                                            {"memory_bytes", ready.memory_bytes},
                                            {"gpus", ready.gpus},
                                            {"kernel", ready.kernel},
                                            {"cgroup", ready.cgroup},
                                            {"pmix", ready.pmix},
                                            {"addresses", ready.addresses},
                                            {"cpu_binding", ready.binding},
                                            {"cpu_sets", ready.cpu_sets}});
}

}  // namespace sortie::launcher
