// Attempt: the tunnel. Creates the network on which ranks meet, after all hosts are ready and
// before any rank starts.
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "launcher/host/host_texts.h"
#include "launcher/supervise/attempt.h"
#include "launcher/tunnel/mesh_setup.h"

namespace sortie::launcher {
namespace asio = boost::asio;

/// Returns true if the tunnel is up, or none is needed.
asio::awaitable<bool> Attempt::raise_tunnel() {
  if (plan_.tunnel.empty() || hosts_.size() < 2) co_return true;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<tunnel::MeshHost> hosts;
  for (const Host& host : hosts_) {
    tunnel::MeshHost& entry = hosts.emplace_back();
    entry.name = host.plan->name;
    entry.reached_at = host.session->address();
    entry.addresses = host.network.addresses;
  }
  mesh_ = std::make_unique<tunnel::MeshSetup>(
      std::move(hosts), tunnel::MeshSetup::Options{parts_.folder.id(), plan_.attempt,
                                                   job_.runner.network.tunnel_port});
  Result<bool> more = true;
  while (more && *more) {
    tunnel_orders_ = mesh_->orders();
    tunnel_reports_.assign(hosts_.size(), "");
    co_await for_all_hosts(&Attempt::tunnel_host);
    if (report_host_errors() || failing()) co_return false;
    more = mesh_->take(tunnel_reports_);
  }
  if (!more) {
    Cause cause;
    cause.what = Cause::What::unreachable;
    cause.message = more.error().message;
    cause.exit_code = exit_code_for(more.error().code);
    blame(std::move(cause));
    co_return false;
  }
  note_tunnel(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  co_return true;
}

/// Sends the order of the current step and receives its report.
asio::awaitable<void> Attempt::tunnel_host(std::size_t index) {
  Host& host = hosts_[index];
  const auto session = host.session;
  session->expect_progress(mesh_->patience());
  session->send(wire::TunnelOrder{tunnel_orders_[index]});
  auto message = co_await session->next();
  if (message)
    if (const auto* report = std::get_if<wire::TunnelReport>(&*message)) {
      tunnel_reports_[index] = report->json;
      co_return;
    }
  if (!message) {
    host.error = std::move(message).error();
  } else if (const auto* error = std::get_if<wire::RunnerError>(&*message)) {
    host.error = Error{runner_error_code(*error), error->message};
  } else {
    host.error = Error{ErrorCode::protocol, fmt::format("runner sent {} instead of TunnelReport",
                                                        wire::message_name(*message))};
  }
  host.state = HostState::lost;
  sweep_unprepared(host);
}

/// Makes the tunnel the network of the ranks, and reports it.
void Attempt::note_tunnel(double seconds) {
  const tunnel::Mesh& mesh = mesh_->mesh();
  interface_ = mesh.network;
  nlohmann::ordered_json relayed = nlohmann::ordered_json::array(),
                         addresses = nlohmann::ordered_json::object();
  for (Host& host : hosts_) {
    const std::string line =
        fmt::format("{} {}/{}", mesh_->device(host.index), mesh.addresses[host.index], mesh.prefix);
    if (auto parsed = parse_addresses({line}))
      host.network.addresses.push_back(std::move(parsed->front()));
    addresses[host.plan->name] = line;
  }
  for (const tunnel::Relayed& pair : mesh.relayed)
    relayed.push_back({{"a", hosts_[pair.a].plan->name},
                       {"b", hosts_[pair.b].plan->name},
                       {"by", hosts_[pair.hub].plan->name}});
  parts_.folder.event(JournalEvent::tunnel, {{"network", mesh.network},
                                             {"mtu", mesh.mtu},
                                             {"seconds", seconds},
                                             {"devices", addresses},
                                             {"relayed", relayed}});
  parts_.console.message(fmt::format("tunnel between {} hosts: {}; up in {:.1f} s", hosts_.size(),
                                     tunnel::mesh_text(mesh_->hosts(), mesh), seconds));
}

}  // namespace sortie::launcher
