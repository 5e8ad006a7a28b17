// The last step of a pass: makes the tunnel of the job between all usable hosts and sends data over
// every pair. The tunnel disappears with the runners.
#include <fmt/format.h>

#include <chrono>

#include "common/asio/task_group.h"
#include "launcher/check/pass.h"
#include "launcher/check/requests.h"
#include "launcher/tunnel/mesh_setup.h"

namespace sortie::launcher::check {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

constexpr milliseconds kInnerListenLimit{5000};
constexpr milliseconds kInnerRateMargin{5000};

}  // namespace

asio::awaitable<void> Pass::try_tunnel() {
  step_ = "making a tunnel";
  const auto begin = std::chrono::steady_clock::now();
  std::vector<tunnel::MeshHost> hosts;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const HostResult& result = hosts_[i]->result;
    if (!hosts_[i]->usable() || !result.report.host) continue;
    in_mesh_.push_back(i);
    tunnel::MeshHost& host = hosts.emplace_back();
    host.name = result.host;
    host.reached_at = result.address;
    if (auto parsed = parse_addresses(result.report.host->addresses))
      host.addresses = *std::move(parsed);
  }
  if (hosts.size() < 2) co_return;
  // The name differs from that of any run, and so do the names of its devices.
  mesh_ = std::make_unique<tunnel::MeshSetup>(
      std::move(hosts), tunnel::MeshSetup::Options{token_, 1, *expect_.tunnel_port});
  Result<bool> more = true;
  while (more && *more) {
    done_ = 0;
    tunnel_orders_ = mesh_->orders();
    tunnel_reports_.assign(in_mesh_.size(), "");
    TaskGroup group(environment_.executor);
    for (std::size_t place = 0; place < in_mesh_.size(); ++place)
      group.spawn(tunnel_step(in_mesh_[place], place));
    co_await group.wait();
    for (const std::size_t index : in_mesh_)
      if (!hosts_[index]->result.tunnel_error.empty()) co_return;
    more = mesh_->take(tunnel_reports_);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const std::size_t index : in_mesh_) {
    HostResult& result = hosts_[index]->result;
    if (!more) result.tunnel_error = more.error().message;
    if (more)
      result.tunnel = fmt::format("{}; up in {:.1f} s",
                                  tunnel::mesh_text(mesh_->hosts(), mesh_->mesh()), seconds);
  }
  if (!more || !expect_.bandwidth) co_return;
  TaskGroup group(environment_.executor);
  for (std::size_t place = 0; place < in_mesh_.size(); ++place) {
    std::string request = listen_request(token_, mesh_->mesh().addresses[place]);
    group.spawn(hosts_[in_mesh_[place]]->ask("listen", std::move(request), kInnerListenLimit));
  }
  co_await group.wait();
  for (std::size_t place = 0; place < in_mesh_.size(); ++place)
    co_await measure_tunnel(in_mesh_[place], place);
}

asio::awaitable<void> Pass::tunnel_step(std::size_t index, std::size_t place) {
  const auto host = hosts_[index];
  auto report = co_await host->order_tunnel(tunnel_orders_[place], mesh_->patience());
  if (report)
    tunnel_reports_[place] = std::move(*report);
  else
    host->result.tunnel_error = report.error().message;
  ++done_;
}

/// Measures to all other hosts in the tunnel, one after the other, because a relayed pair uses the
/// links of its hub.
asio::awaitable<void> Pass::measure_tunnel(std::size_t index, std::size_t place) {
  const auto host = hosts_[index];
  const auto before = host->result.report.bandwidth;
  const milliseconds duration(static_cast<std::int64_t>(options_.bandwidth_s * 1000));
  for (std::size_t other = 0; other < in_mesh_.size(); ++other) {
    const HostResult& peer = hosts_[in_mesh_[other]]->result;
    if (other == place || !host->usable() || !peer.report.listen_port) continue;
    host->result.report.bandwidth.reset();
    std::string request =
        bandwidth_request({peer.host, mesh_->mesh().addresses[other], *peer.report.listen_port},
                          static_cast<std::uint64_t>(duration.count()));
    co_await host->ask("bandwidth", std::move(request), duration + kInnerRateMargin);
    const auto facts = host->result.report.bandwidth;
    std::string& text = host->result.tunnel_rate;
    if (facts && facts->error.empty() && facts->us > 0)
      text += fmt::format("{}to {} {:.1f} Mbit/s", text.empty() ? "" : ", ", peer.host,
                          static_cast<double>(facts->bytes) * 8 / static_cast<double>(facts->us));
    else
      text += fmt::format("{}to {}: {}", text.empty() ? "" : ", ", peer.host,
                          facts ? facts->error : "no answer");
  }
  host->result.report.bandwidth = before;
}

}  // namespace sortie::launcher::check
