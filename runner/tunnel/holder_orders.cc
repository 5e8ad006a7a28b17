#include "runner/tunnel/holder_orders.h"

#include <fmt/core.h>

#include "common/base/json_member.h"

namespace sortie::runner::tunnel {
using Json = nlohmann::json;

Result<std::int64_t> number_within(const Json& object, const char* key, std::int64_t least,
                                   std::int64_t most) {
  const auto it = object.find(key);
  if (it != object.end() && it->is_number_integer())
    if (const auto number = it->get<std::int64_t>(); number >= least && number <= most)
      return number;
  return fail(ErrorCode::protocol,
              fmt::format("tunnel: {} is no number from {} to {}", key, least, most));
}

Result<UpOrder> read_up_order(const Json& order) {
  if (!order.is_object()) return fail(ErrorCode::protocol, "tunnel: no object");
  UpOrder up;
  up.address = json_member::text(order, "address");
  SORTIE_ASSIGN_OR_RETURN(const auto prefix, number_within(order, "prefix", 8, 30));
  SORTIE_ASSIGN_OR_RETURN(const auto mtu, number_within(order, "mtu", kLeastMtu, kMostMtu));
  SORTIE_ASSIGN_OR_RETURN(const auto port, number_within(order, "port", 1, 65535));
  up.prefix = static_cast<int>(prefix);
  up.mtu = static_cast<int>(mtu);
  up.port = static_cast<std::uint16_t>(port);
  up.forward = order.value("forward", Json()) == Json(true);
  const auto peers = order.find("peers");
  if (peers == order.end() || !peers->is_array() || peers->size() > kMaxPeers)
    return fail(ErrorCode::protocol, "tunnel: no list of peers");
  for (const Json& object : *peers) {
    Peer peer;
    peer.key = json_member::text(object, "key");
    peer.endpoint = json_member::text(object, "endpoint");
    if (!object.is_object()) return fail(ErrorCode::protocol, "tunnel: a peer that is no object");
    if (object.contains("keepalive")) {
      SORTIE_ASSIGN_OR_RETURN(const auto seconds, number_within(object, "keepalive", 0, 65535));
      peer.keepalive_s = static_cast<std::uint32_t>(seconds);
    }
    if (const auto allowed = object.find("allowed"); allowed != object.end() && allowed->is_array())
      for (const Json& address : *allowed)
        if (address.is_string()) peer.allowed.push_back(address.get<std::string>());
    SORTIE_TRY(check_peer(peer));
    up.peers.push_back(std::move(peer));
  }
  return up;
}

}  // namespace sortie::runner::tunnel
