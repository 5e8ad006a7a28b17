#include "launcher/tunnel/mesh_setup.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <functional>

#include "common/base/check.h"
#include "common/base/hex.h"
#include "common/base/json_member.h"
#include "launcher/host/host_texts.h"

namespace sortie::launcher::tunnel {
using Json = nlohmann::json;
using std::chrono::milliseconds;
namespace {

/// Time limit for answers to the datagrams of the survey, which are sent every 60 ms.
constexpr milliseconds kSurveyLimit{2500};
/// WireGuard retries a lost handshake after five seconds.
constexpr milliseconds kProofLimit{8000};
/// Delays of the second end of a tunnel, which begins only if the first does not get through, and
/// of relayed pairs.
constexpr int kSecondAfterMs = 1500, kRelayedAfterMs = 600;
/// Extra time of a step for wg, wireguard-go and busy hosts.
constexpr milliseconds kMargin{15000};
/// Routers forget an idle UDP flow after 30 s and more.
constexpr int kKeepaliveS = 25;
constexpr std::size_t kMaxReport = 256u << 10;
constexpr std::size_t kMaxNetworks = 4096;
constexpr std::size_t kMaxShownFailures = 6;
constexpr std::size_t kKeyCharacters = 44;

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  SORTIE_CHECK(::RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

Error unexpected_report(const MeshHost& host, const char* what) {
  return {ErrorCode::protocol,
          fmt::format("{}: runner sent a TunnelReport outside the grammar ({})", host.name, what)};
}

/// Base64 of 32 bytes. Checked because the key becomes a line of a configuration on every other
/// host.
bool is_key(const std::string& text) {
  return text.size() == kKeyCharacters && text.back() == '=' &&
         text.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") ==
             kKeyCharacters - 1;
}

bool is_endpoint_text(const std::string& text) {
  return text.size() <= 64 && text.find(':') != text.npos &&
         text.find_first_not_of("0123456789abcdef.:[]") == text.npos;
}

const Json& peers_in(const Json& report) {
  static const Json none = Json::array();
  const auto it = report.find("peers");
  return it != report.end() && it->is_array() ? *it : none;
}

}  // namespace

MeshSetup::MeshSetup(std::vector<MeshHost> hosts, Options options)
    : hosts_(std::move(hosts)),
      options_(std::move(options)),
      token_(random_token()),
      contacts_(hosts_.size(), std::vector<Contact>(hosts_.size())),
      inner_ports_(hosts_.size()) {}

std::string MeshSetup::device(std::size_t host) const {
  return device_name(options_.run_id, options_.attempt, host);
}

const char* MeshSetup::step() const {
  constexpr const char* kNames[] = {"open", "survey", "raise", "prove"};
  return kNames[static_cast<std::size_t>(step_)];
}

milliseconds MeshSetup::patience() const {
  return kMargin + (step_ == Step::survey  ? kSurveyLimit
                    : step_ == Step::prove ? kProofLimit
                                           : milliseconds(0));
}

std::vector<std::string> MeshSetup::orders() const {
  std::vector<std::string> orders;
  for (std::size_t i = 0; i < hosts_.size(); ++i) orders.push_back(order_for(i).dump());
  return orders;
}

Json MeshSetup::order_for(std::size_t host) const {
  Json order = {{"do", step()}};
  switch (step_) {
    case Step::open:
      order["name"] = device(host);
      order["port"] = options_.port;
      order["token"] = token_;
      order["me"] = host;
      break;
    case Step::survey:
      order["limit_ms"] = kSurveyLimit.count();
      order["peers"] = Json::array();
      for (std::size_t other = 0; other < hosts_.size(); ++other)
        if (other != host)
          order["peers"].push_back(
              {{"index", other}, {"endpoints", endpoints_for(hosts_[host], hosts_[other])}});
      break;
    case Step::raise:
      order["address"] = mesh_.addresses[host];
      order["prefix"] = mesh_.prefix;
      order["mtu"] = mesh_.mtu;
      order["forward"] =
          std::ranges::find(mesh_.relayed, host, &Relayed::hub) != mesh_.relayed.end();
      order["peers"] = peers_of(host);
      break;
    case Step::prove:
      order["mtu"] = mesh_.mtu;
      order["limit_ms"] = kProofLimit.count();
      order["peers"] = Json::array();
      for (std::size_t other = 0; other < hosts_.size(); ++other)
        if (other != host)
          order["peers"].push_back(
              {{"index", other},
               {"after_ms", wait_before(host, other)},
               {"endpoints", {fmt::format("{}:{}", mesh_.addresses[other], inner_ports_[other])}}});
      break;
  }
  return order;
}

/// Delay in milliseconds before `host` contacts `other`. If both ends begin a handshake at the same
/// moment, each takes the other for the initiator, and both wait for seconds. So one of them
/// begins: one that knows the other's endpoint. Relayed pairs follow after the handshakes of the
/// hub.
int MeshSetup::wait_before(std::size_t host, std::size_t other) const {
  const bool lower = host < other;
  if (!is_direct(contacts_, host, other)) return lower ? kRelayedAfterMs : 2 * kRelayedAfterMs;
  const auto sure = [](const Contact& to) { return !to.endpoint.empty() && !to.learned; };
  const bool here = sure(contacts_[host][other]), there = sure(contacts_[other][host]);
  return (here == there ? lower : here) ? 0 : kSecondAfterMs;
}

/// Exactly one peer is responsible for each address: the addresses of relayed hosts are in the list
/// of the hub.
Json MeshSetup::peers_of(std::size_t host) const {
  Json peers = Json::array();
  for (std::size_t other = 0; other < hosts_.size(); ++other) {
    if (other == host || !is_direct(contacts_, host, other)) continue;
    Json allowed = {mesh_.addresses[other]};
    for (const Relayed& pair : mesh_.relayed)
      if (pair.hub == other && (pair.a == host || pair.b == host))
        allowed.push_back(mesh_.addresses[pair.a == host ? pair.b : pair.a]);
    Json peer = {{"key", hosts_[other].key}, {"allowed", std::move(allowed)}};
    const Contact &to = contacts_[host][other], &from = contacts_[other][host];
    if (!to.endpoint.empty()) peer["endpoint"] = to.endpoint;
    if (to.learned || from.learned || to.endpoint.empty() || from.endpoint.empty())
      peer["keepalive"] = kKeepaliveS;
    peers.push_back(std::move(peer));
  }
  return peers;
}

Result<> MeshSetup::take_open(std::size_t index, const Json& report) {
  MeshHost& host = hosts_[index];
  host.key = json_member::text(report, "key");
  host.via = json_member::text(report, "via");
  const std::uint64_t port = json_member::u64(report, "port");
  if (!is_key(host.key) || (host.via != "kernel" && host.via != "wireguard-go") || port == 0 ||
      port > 65535)
    return std::unexpected(unexpected_report(host, "open"));
  host.port = static_cast<std::uint16_t>(port);
  const auto networks = report.find("networks");
  if (networks == report.end() || !networks->is_array() || networks->size() > kMaxNetworks)
    return std::unexpected(unexpected_report(host, "networks"));
  for (const Json& text : *networks)
    if (text.is_string()) host.networks.push_back(one_line(text.get<std::string>()));
  for (const InterfaceAddress& address : host.addresses)
    if (!address.v6) host.networks.push_back(fmt::format("{}/{}", address.address, address.bits));
  return {};
}

Result<> MeshSetup::take_survey(std::size_t index, const Json& report) {
  for (const Json& peer : peers_in(report)) {
    const std::uint64_t other = peer.is_object() ? json_member::u64(peer, "index") : hosts_.size();
    if (other >= hosts_.size() || other == index)
      return std::unexpected(unexpected_report(hosts_[index], "survey"));
    Contact& contact = contacts_[index][other];
    contact.endpoint = json_member::text(peer, "endpoint");
    contact.learned = json_member::flag(peer, "learned");
    contact.mtu =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(json_member::u64(peer, "mtu"), 8920));
    contact.round_trip_us = json_member::u64(peer, "round_trip_us");
    if (!is_endpoint_text(contact.endpoint))
      return std::unexpected(unexpected_report(hosts_[index], "endpoint"));
  }
  return {};
}

Result<> MeshSetup::take_raise(std::size_t index, const Json& report) {
  const std::uint64_t port = json_member::u64(report, "port");
  if (port == 0 || port > 65535) return std::unexpected(unexpected_report(hosts_[index], "raise"));
  inner_ports_[index] = static_cast<std::uint16_t>(port);
  return {};
}

/// Checks that every pair has exchanged datagrams through the tunnel, small ones and ones of the
/// full MTU.
Result<> MeshSetup::judge(const std::vector<Json>& reports) const {
  std::vector<std::string> pairs;
  const auto relayed_by = [&](std::size_t a, std::size_t b) -> std::string {
    for (const Relayed& pair : mesh_.relayed)
      if ((pair.a == a && pair.b == b) || (pair.a == b && pair.b == a))
        return fmt::format(
            " (relayed by {}: see whether its firewall drops what it forwards: iptables -L "
            "FORWARD, "
            "nft list ruleset)",
            hosts_[pair.hub].name);
    return {};
  };
  for (std::size_t i = 0; i < reports.size(); ++i) {
    std::vector<bool> small(hosts_.size()), full(hosts_.size()), shaken(hosts_.size());
    for (const Json& peer : peers_in(reports[i])) {
      const std::uint64_t other =
          peer.is_object() ? json_member::u64(peer, "index") : hosts_.size();
      if (other >= hosts_.size()) return std::unexpected(unexpected_report(hosts_[i], "prove"));
      small[other] = json_member::flag(peer, "small");
      full[other] = json_member::flag(peer, "full");
    }
    if (const auto list = reports[i].find("handshakes"); list != reports[i].end())
      for (const Json& peer : *list)
        for (std::size_t other = 0; peer.is_object() && other < hosts_.size(); ++other)
          if (json_member::text(peer, "key") == hosts_[other].key)
            shaken[other] = json_member::u64(peer, "handshake_unix_s") > 0;
    for (std::size_t other = 0; other < hosts_.size(); ++other) {
      if (other == i || full[other]) continue;
      const std::string relay = relayed_by(i, other);
      const char* why = small[other]                      ? "packets of its MTU are lost"
                        : !relay.empty() || shaken[other] ? "nothing comes through it"
                                                          : "no handshake";
      pairs.push_back(
          fmt::format("{} -> {}: {}{}", hosts_[i].name, hosts_[other].name, why, relay));
    }
  }
  if (pairs.empty()) return {};
  std::string text = fmt::format(
      "runner.network.tunnel: the tunnel {} (MTU {}) is up, but does not carry everything; no rank "
      "was started",
      mesh_.network, mesh_.mtu);
  for (std::size_t i = 0; i < pairs.size() && i < kMaxShownFailures; ++i) text += "\n  " + pairs[i];
  if (pairs.size() > kMaxShownFailures)
    text += fmt::format("\n  and {} more", pairs.size() - kMaxShownFailures);
  text += fmt::format("\nsee the firewalls of these hosts for UDP port {} and for the network {}",
                      options_.port, mesh_.network);
  return fail(ErrorCode::connect, std::move(text));
}

Result<bool> MeshSetup::take(const std::vector<std::string>& texts) {
  std::vector<Json> reports;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    Json report = texts[i].size() <= kMaxReport
                      ? Json::parse(texts[i], nullptr, /*allow_exceptions=*/false)
                      : Json();
    if (!report.is_object() || json_member::text(report, "part") != step())
      return std::unexpected(unexpected_report(hosts_[i], step()));
    if (step_ == Step::open) SORTIE_TRY(take_open(i, report));
    if (step_ == Step::survey) SORTIE_TRY(take_survey(i, report));
    if (step_ == Step::raise) SORTIE_TRY(take_raise(i, report));
    reports.push_back(std::move(report));
  }
  switch (step_) {
    case Step::open:
      step_ = Step::survey;
      return true;
    case Step::survey: {
      SORTIE_ASSIGN_OR_RETURN(
          mesh_, plan_mesh(hosts_, contacts_, std::hash<std::string>{}(options_.run_id)));
      step_ = Step::raise;
      return true;
    }
    case Step::raise:
      step_ = Step::prove;
      return true;
    case Step::prove:
      SORTIE_TRY(judge(reports));
      return false;
  }
  return false;
}

}  // namespace sortie::launcher::tunnel
