#include "launcher/check/pass.h"

#include <algorithm>
#include <random>
#include <utility>

#include "common/asio/task_group.h"
#include "launcher/check/pairs.h"
#include "launcher/check/requests.h"
#include "launcher/tunnel/mesh_setup.h"

namespace sortie::launcher::check {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

/// A lost SYN is retransmitted after one second: long enough for one retransmission. Hosts try
/// twice.
constexpr milliseconds kReachLimit{2000};
/// Added to the limit: the second try, round trips, path MTU.
constexpr milliseconds kReachMargin{12000};
constexpr milliseconds kTurn{50};
constexpr milliseconds kListenLimit{5000};
constexpr milliseconds kBandwidthMargin{5000};
/// The trainer reads large libraries and initializes GPUs: each takes seconds, and more on a cold
/// host.
constexpr int kTrainerFactor = 3;
constexpr milliseconds kTrainerMost{60000}, kTrainerMargin{5000};

}  // namespace

Pass::Pass(PassEnvironment environment, const PlannedJob& job, const Expectations& expect,
           const CheckOptions& options)
    : environment_(environment),
      job_(job),
      expect_(expect),
      options_(options),
      token_(random_token()) {
  for (const HostPlan& host : job.plan.hosts) {
    std::vector<int> slots;
    for (const RankPlan& rank : host.ranks) slots.push_back(rank.slot);
    hosts_.push_back(
        std::make_shared<CheckHost>(environment.executor, host.name, std::move(slots)));
    const std::size_t index = hosts_.size() - 1;
    if (index < job.hosts.size()) hosts_.back()->result.site = job.hosts[index].site;
  }
}

Pass::~Pass() {
  for (const auto& host : hosts_) host->close();
}

std::vector<HostResult> Pass::results() const {
  std::vector<HostResult> results;
  for (const auto& host : hosts_) results.push_back(host->result);
  return results;
}

asio::awaitable<void> Pass::one(std::shared_ptr<Work> work, std::size_t index) {
  co_await (*work)(index);
  ++done_;
}

asio::awaitable<void> Pass::for_all(const char* step, Work work) {
  step_ = step;
  done_ = 0;
  const auto shared = std::make_shared<Work>(std::move(work));
  TaskGroup tasks(environment_.executor);
  for (std::size_t i = 0; i < hosts_.size(); ++i) tasks.spawn(one(shared, i));
  co_await tasks.wait();
}

asio::awaitable<void> Pass::run() {
  const std::size_t all = hosts_.size();
  Work look_at = [this](std::size_t i) { return look(i); };
  co_await for_all("looking at the hosts", std::move(look_at));
  if (all < 2) co_return;
  Work listen_on = [this](std::size_t i) { return listen(i); };
  co_await for_all("listening", std::move(listen_on));
  std::vector<std::string> sites;
  for (const auto& host : hosts_) sites.push_back(host->result.site);
  peers_ = choose_site_peers(sites, std::random_device()());
  Work reach_from = [this](std::size_t i) { return reach(i); };
  co_await for_all("reaching each other", std::move(reach_from));
  if (expect_.bandwidth) {
    Work measure_from = [this](std::size_t i) { return measure(i); };
    co_await for_all("measuring bandwidth", std::move(measure_from));
  }
  if (expect_.sites) co_await measure_sites();
  if (expect_.tunnel_port) co_await try_tunnel();
}

asio::awaitable<void> Pass::look(std::size_t index) {
  const auto host = hosts_[index];
  // The transport bounds each stage and queues hosts; this bounds everything else.
  const milliseconds limit = 2 * options_.host_limit + kTurn * static_cast<int>(hosts_.size());
  co_await host->connect(environment_.transport, environment_.binary, limit);
  if (!host->usable()) co_return;
  const HostPlan& planned = job_.plan.hosts[index];
  std::string request = look_request(job_, expect_, planned, index == 0);
  co_await host->ask("look", std::move(request), options_.host_limit);
  // A program that can not be started has been reported.
  const auto& program = host->result.report.program;
  if (!expect_.ask_trainer || !host->usable() || !program || !program->error.empty() ||
      !program->missing.empty())
    co_return;
  const milliseconds for_trainer = std::min(kTrainerFactor * options_.host_limit, kTrainerMost);
  std::string question =
      trainer_request(job_, expect_, planned, static_cast<std::uint64_t>(for_trainer.count()));
  co_await host->ask("trainer", std::move(question), for_trainer + kTrainerMargin);
}

asio::awaitable<void> Pass::listen(std::size_t index) {
  const auto host = hosts_[index];
  if (!host->usable()) co_return;
  std::vector<const HostResult*> others;
  for (const auto& other : hosts_)
    if (other != host && other->usable()) others.push_back(&other->result);
  const std::string& interface = job_.loaded.job.runner.network.interface;
  host->result.address = reach_address(host->result, others, interface);
  if (host->result.address.empty()) {
    host->result.report.listen_error =
        interface.empty() ? "its address for other hosts is unknown"
                          : "it has no address on " + interface + " (runner.network.interface)";
    co_return;
  }
  std::string request = listen_request(token_, host->result.address);
  co_await host->ask("listen", std::move(request), kListenLimit);
}

asio::awaitable<void> Pass::reach(std::size_t index) {
  const auto host = hosts_[index];
  if (!host->usable()) co_return;
  std::vector<PeerAddress> peers;
  for (const std::size_t other : peers_[index]) {
    const HostResult& peer = hosts_[other]->result;
    if (!hosts_[other]->usable() || !peer.report.listen_port || peer.address.empty()) continue;
    peers.push_back({peer.host, peer.address, *peer.report.listen_port});
    host->result.asked_peers.push_back(peer.host);
  }
  std::string request = reach_request(peers, static_cast<std::uint64_t>(kReachLimit.count()));
  co_await host->ask("reach", std::move(request), kReachLimit + kReachMargin);
}

/// Returns the index of the next listening host of the same site, or `index` if there is none.
std::size_t Pass::next_listening(std::size_t index) const {
  for (std::size_t step = 1; step < hosts_.size(); ++step) {
    const std::size_t other = (index + step) % hosts_.size();
    const HostResult& peer = hosts_[other]->result;
    if (peer.site != hosts_[index]->result.site) continue;
    if (hosts_[other]->usable() && peer.report.listen_port && !peer.address.empty()) return other;
  }
  return index;
}

/// Measures around a ring: each host sends one stream and receives one.
asio::awaitable<void> Pass::measure(std::size_t index) {
  const auto host = hosts_[index];
  const std::size_t other = next_listening(index);
  if (!host->usable() || other == index) co_return;
  const HostResult& peer = hosts_[other]->result;
  host->result.asked_bandwidth = peer.host;
  const milliseconds duration(static_cast<std::int64_t>(options_.bandwidth_s * 1000));
  PeerAddress to = {peer.host, peer.address, *peer.report.listen_port};
  std::string request = bandwidth_request(to, static_cast<std::uint64_t>(duration.count()));
  co_await host->ask("bandwidth", std::move(request), duration + kBandwidthMargin);
}

}  // namespace sortie::launcher::check
