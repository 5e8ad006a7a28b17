// The step of a pass that measures between sites: one host of each site measures the links to one
// host of each other site.
#include <algorithm>
#include <optional>
#include <utility>

#include "common/asio/task_group.h"
#include "launcher/check/pairs.h"
#include "launcher/check/pass.h"
#include "launcher/check/requests.h"

namespace sortie::launcher::check {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

/// Time for each direction: long-distance connections reach their full rate within two seconds.
constexpr milliseconds kWayTime{2000};
constexpr milliseconds kLinkReach{2000};
/// Added to the limit: the second try, round trips, path MTU, and data still in flight on a slow
/// link when the time is up.
constexpr milliseconds kLinkMargin{45000};
constexpr milliseconds kSiteListenLimit{5000};

}  // namespace

asio::awaitable<void> Pass::measure_sites() {
  step_ = "measuring between sites";
  done_ = 0;
  std::vector<std::size_t> of_site;  // the first usable host of each site
  std::vector<std::string> sites;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const HostResult& result = hosts_[i]->result;
    if (result.site.empty() || !hosts_[i]->usable()) continue;
    if (std::ranges::find(sites, result.site) != sites.end()) continue;
    sites.push_back(result.site);
    of_site.push_back(i);
  }
  TaskGroup group(environment_.executor);
  for (const std::size_t index : of_site) group.spawn(listen_for_sites(index));
  co_await group.wait();
  for (const auto& pairs : pair_rounds(of_site.size())) {
    for (const auto& [a, b] : pairs) group.spawn(measure_pair(of_site[a], of_site[b]));
    co_await group.wait();
  }
}

/// Makes the host listen at the address that other sites use, whatever network its ranks use within
/// the site, on the port that training will listen on.
asio::awaitable<void> Pass::listen_for_sites(std::size_t index) {
  const auto host = hosts_[index];
  std::vector<const HostResult*> others;
  for (const auto& other : hosts_)
    if (other != host && other->usable()) others.push_back(&other->result);
  HostResult& result = host->result;
  result.site_address = reach_address(result, others, /*interface=*/"");
  result.site_port = static_cast<std::uint64_t>(expect_.sites->port);
  const std::optional<std::uint64_t> port_before = std::exchange(result.report.listen_port, {});
  std::string request = listen_request(token_, result.site_address, expect_.sites->port);
  co_await host->ask("listen", std::move(request), kSiteListenLimit);
  if (result.report.listen_port) result.site_port = *result.report.listen_port;
  // The checks within the site use the earlier values.
  result.site_error = std::exchange(result.report.listen_error, "");
  result.report.listen_port = port_before;
}

asio::awaitable<void> Pass::measure_pair(std::size_t index, std::size_t other) {
  const milliseconds time =
      options_.bandwidth_s > 0 ? milliseconds(static_cast<std::int64_t>(options_.bandwidth_s * 1e3))
                               : kWayTime;
  const bool measured = co_await link_to(index, other, time);
  co_await link_to(other, index, measured ? milliseconds(0) : time);
  ++done_;
}

/// Returns whether the rates were measured.
asio::awaitable<bool> Pass::link_to(std::size_t index, std::size_t other, milliseconds duration) {
  const auto host = hosts_[index];
  const HostResult& peer = hosts_[other]->result;
  if (!host->usable() || !peer.site_error.empty() || peer.site_address.empty()) co_return false;
  host->result.asked_links.push_back(peer.host);
  const PeerAddress to = {peer.host, peer.site_address, peer.site_port};
  std::string request =
      link_request(to, static_cast<std::uint64_t>(kLinkReach.count()),
                   static_cast<std::uint64_t>(duration.count()), expect_.sites->streams);
  const std::size_t before = host->result.report.links.size();
  co_await host->ask("link", std::move(request), 2 * duration + kLinkMargin);
  const std::vector<LinkFacts>& links = host->result.report.links;
  co_return links.size() > before&& links.back().error.empty() && links.back().rate_error.empty();
}

}  // namespace sortie::launcher::check
