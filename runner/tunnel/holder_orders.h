// Validates what the runner sends to the holder of its tunnel: the holder may run as root while the
// runner does not. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "runner/tunnel/wireguard.h"

namespace sortie::runner::tunnel {

struct UpOrder {
  std::string address;
  int prefix = 24, mtu = 1420;
  std::uint16_t port = 0;
  bool forward = false;
  std::vector<Peer> peers;
};

inline constexpr std::size_t kMaxPeers = 4096;
inline constexpr int kLeastMtu = 576, kMostMtu = 65000;

/// ErrorCode::protocol: a member is missing, has another type or is out of range.
Result<UpOrder> read_up_order(const nlohmann::json& order);

/// The whole number under `key`. ErrorCode::protocol if it is missing or outside [least, most].
Result<std::int64_t> number_within(const nlohmann::json& object, const char* key,
                                   std::int64_t least, std::int64_t most);

}  // namespace sortie::runner::tunnel
