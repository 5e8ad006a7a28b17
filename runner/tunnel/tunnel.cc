#include "runner/tunnel/tunnel.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/asio/spawn.h"
#include "common/base/atomic_file.h"
#include "common/base/json_member.h"
#include "common/base/json_text.h"
#include "common/base/log.h"
#include "runner/tunnel/holder_orders.h"
#include "runner/tunnel/link_device.h"

namespace sortie::runner::tunnel {
namespace asio = boost::asio;
using Json = nlohmann::json;
using std::chrono::milliseconds;
namespace {

constexpr std::size_t kMaxOrder = 1u << 20;
constexpr int kPortsTried = 16, kPortPatience = 10;
constexpr milliseconds kPortPause{100};
constexpr std::int64_t kMaxLimit = 30000;
/// MTUs to try, of typical paths: jumbo frames, Ethernet, PPPoE, clouds, other tunnels.
constexpr std::size_t kMtus[] = {8920, 1420, 1412, 1400, 1392, 1380, 1360,
                                 1340, 1320, 1300, 1280, 1200, 1024, kLeastMtu};
/// IPv4 and UDP headers within the tunnel.
constexpr std::size_t kInnerHeaders = 28;

bool read_token(const std::string& text, Prober::Token& token) {
  if (text.size() != 2 * token.size()) return false;
  for (std::size_t i = 0; i < token.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(digits, digits + 2, value, 16);
    if (error != std::errc() || end != digits + 2) return false;
    token[i] = static_cast<char>(value);
  }
  return true;
}

Result<std::vector<ProbePeer>> read_peers(const Json& order) {
  const auto list = order.find("peers");
  if (list == order.end() || !list->is_array() || list->size() > kMaxPeers)
    return fail(ErrorCode::protocol, "tunnel: no list of peers");
  std::vector<ProbePeer> peers;
  for (const Json& object : *list) {
    if (!object.is_object()) return fail(ErrorCode::protocol, "tunnel: a peer that is no object");
    ProbePeer& peer = peers.emplace_back();
    SORTIE_ASSIGN_OR_RETURN(const auto index, number_within(object, "index", 0, 65535));
    peer.index = static_cast<std::uint16_t>(index);
    if (object.contains("after_ms")) {
      SORTIE_ASSIGN_OR_RETURN(const auto after, number_within(object, "after_ms", 0, kMaxLimit));
      peer.after = milliseconds(after);
    }
    const auto endpoints = object.find("endpoints");
    if (endpoints == object.end() || !endpoints->is_array()) continue;
    for (const Json& text : *endpoints)
      if (text.is_string())
        if (const auto endpoint = parse_endpoint(text.get<std::string>()))
          peer.endpoints.push_back(*endpoint);
  }
  return peers;
}

Json survey_json(const std::vector<ProbeOutcome>& outcomes) {
  Json list = Json::array();
  for (const ProbeOutcome& outcome : outcomes)
    if (outcome.endpoint)
      list.push_back({{"index", outcome.index},
                      {"endpoint", endpoint_text(*outcome.endpoint)},
                      {"learned", outcome.learned},
                      {"mtu", outcome.size > kOverheadInDatagram + Prober::kSmall
                                  ? outcome.size - kOverheadInDatagram
                                  : 0},
                      {"round_trip_us", outcome.round_trip_us}});
  return list;
}

Json proof_json(const std::vector<ProbeOutcome>& outcomes, std::size_t full) {
  Json list = Json::array();
  for (const ProbeOutcome& outcome : outcomes)
    list.push_back({{"index", outcome.index},
                    {"small", outcome.endpoint.has_value()},
                    {"full", outcome.size >= full},
                    {"round_trip_us", outcome.round_trip_us}});
  return list;
}

}  // namespace

Tunnel::Tunnel(asio::io_context& io, Link& link, const ProcessDefaults& defaults, Events events)
    : io_(io), link_(link), defaults_(defaults), events_(std::move(events)) {}

Result<> Tunnel::take(const std::string& text) {
  Json order =
      text.size() <= kMaxOrder ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json();
  if (!order.is_object()) return fail(ErrorCode::protocol, "TunnelOrder: no object");
  if (std::exchange(busy_, true))
    return fail(ErrorCode::protocol, "TunnelOrder before the report of the last one");
  spawn(io_, carry_out(std::move(order)));
  return {};
}

asio::awaitable<void> Tunnel::carry_out(Json order) {
  const auto self = shared_from_this();
  const std::string what = json_member::text(order, "do");
  Answer answer = fail(ErrorCode::protocol, "TunnelOrder: unknown, or out of order");
  if (what == "open" && !holder_)
    answer = co_await open(std::move(order));
  else if (what == "survey" && outside_)
    answer = co_await survey(std::move(order));
  else if (what == "raise" && outside_)
    answer = co_await raise(std::move(order));
  else if (what == "prove" && inside_)
    answer = co_await prove(std::move(order));
  busy_ = false;
  if (!answer) {
    events_.on_failure(std::move(answer).error());
    co_return;
  }
  (*answer)["part"] = what;
  link_.send(wire::TunnelReport{json_text(*answer)});
}

/// Binds the port `wanted` or one of the following ones; tries `tries` ports in total.
Result<> Tunnel::take_port(std::uint16_t wanted, int tries) {
  Result<> first;
  for (int i = 0; i < tries; ++i) {
    const auto port = static_cast<std::uint16_t>(std::max(1, (wanted + i) % 65536));
    outside_ = std::make_shared<Prober>(io_, token_, me_);
    const Result<> taken = outside_->open(port);
    if (taken) {
      port_ = port;
      return {};
    }
    if (i == 0) first = taken;
  }
  outside_.reset();
  return fail(ErrorCode::unsupported,
              fmt::format("tunnel: {}, and so are the next {} ports; choose another one "
                          "(runner.network.tunnel_port)",
                          first.error().message, kPortsTried - 1));
}

asio::awaitable<Tunnel::Answer> Tunnel::open(Json order) {
  const std::string name = json_member::text(order, "name");
  const auto port = number_within(order, "port", 1, 65535);
  const auto me = number_within(order, "me", 0, 65535);
  if (!port || !me || !is_device_name(name) ||
      !read_token(json_member::text(order, "token"), token_))
    co_return fail(ErrorCode::protocol, "TunnelOrder: open: name, port, number or token");
  me_ = static_cast<std::uint16_t>(*me);
  name_ = name;
  holder_ = std::make_shared<HolderProcess>(io_, defaults_);
  holder_->on_lost = [this, self = weak_from_this()](Error error) {
    if (const auto alive = self.lock()) events_.on_lost(std::move(error));
  };
  auto answer = co_await holder_->start(name, events_.on_child);
  if (!answer) co_return answer;
  // A port held by the previous attempt is released in a moment. Wait for it, because firewalls
  // know it.
  asio::steady_timer pause(io_);
  Result<> taken = take_port(static_cast<std::uint16_t>(*port), 1);
  for (int i = 0; !taken && i < kPortPatience; ++i) {
    pause.expires_after(kPortPause);
    co_await pause.async_wait(kToken);
    taken = take_port(static_cast<std::uint16_t>(*port), 1);
  }
  if (!taken) taken = take_port(static_cast<std::uint16_t>(*port), kPortsTried);
  if (!taken) co_return std::unexpected(std::move(taken).error());
  (*answer)["port"] = port_;
  (*answer)["networks"] =
      networks_in(read_file("/proc/net/route", 4u << 20).value_or(std::string()));
  co_return answer;
}

asio::awaitable<Tunnel::Answer> Tunnel::survey(Json order) {
  auto peers = read_peers(order);
  const auto limit = number_within(order, "limit_ms", 1, kMaxLimit);
  if (!peers || !limit) co_return fail(ErrorCode::protocol, "TunnelOrder: survey: peers or limit");
  std::vector<std::size_t> sizes;
  for (const std::size_t mtu : kMtus) sizes.push_back(mtu + kOverheadInDatagram);
  const auto outcomes =
      co_await outside_->probe(std::move(*peers), std::move(sizes), milliseconds(*limit));
  Json list = survey_json(outcomes);
  Json report;
  report["peers"] = std::move(list);
  co_return report;
}

asio::awaitable<Tunnel::Answer> Tunnel::raise(Json order) {
  const std::string address = json_member::text(order, "address");
  outside_->close();
  outside_.reset();
  order["do"] = "up";
  order["port"] = port_;
  auto answer = co_await holder_->ask(std::move(order));
  if (!answer) co_return answer;
  boost::system::error_code error;
  const auto own = asio::ip::make_address(address, error);
  inside_ = std::make_shared<Prober>(io_, token_, me_);
  const auto port = inside_->open_at(own);
  if (!port) co_return std::unexpected(with_context(port.error(), "tunnel: " + address));
  Json report;
  report["port"] = *port;
  co_return report;
}

asio::awaitable<Tunnel::Answer> Tunnel::prove(Json order) {
  auto peers = read_peers(order);
  const auto limit = number_within(order, "limit_ms", 1, kMaxLimit);
  const auto mtu = number_within(order, "mtu", kLeastMtu, kMostMtu);
  if (!peers || !limit || !mtu)
    co_return fail(ErrorCode::protocol, "TunnelOrder: prove: peers, limit or mtu");
  const std::size_t full = static_cast<std::size_t>(*mtu) - kInnerHeaders;
  std::vector<std::size_t> sizes(1, full);
  const auto outcomes =
      co_await inside_->probe(std::move(*peers), std::move(sizes), milliseconds(*limit));
  Json keep;
  keep["do"] = "keep";
  auto kept = co_await holder_->ask(std::move(keep));
  if (!kept) co_return kept;
  Json look;
  look["do"] = "look";
  auto answer = co_await holder_->ask(std::move(look));
  if (!answer) co_return answer;
  Json list = proof_json(outcomes, full);
  Json report;
  report["peers"] = std::move(list);
  report["handshakes"] = std::move((*answer)["peers"]);
  co_return report;
}

void Tunnel::settle() {
  if (outside_) outside_->close();
  if (inside_) inside_->close();
}

/// Starting another holder removes what has no holder, with the rights that this needs.
asio::awaitable<void> Tunnel::clean_up_after_loss() {
  holder_ = std::make_shared<HolderProcess>(io_, defaults_);
  const auto cleaned = co_await holder_->start(name_, events_.on_child);
  if (!cleaned) log::error("{}: leftover of its holder: {}", name_, cleaned.error().message);
}

asio::awaitable<bool> Tunnel::close() {
  const auto self = shared_from_this();
  settle();
  if (!holder_) co_return true;
  if (holder_->was_lost()) co_await clean_up_after_loss();
  const bool gone = co_await holder_->end();
  if (!gone) log::error("the tunnel is not gone yet: its holder does not end");
  co_return gone;
}

}  // namespace sortie::runner::tunnel
