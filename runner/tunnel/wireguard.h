// The words of wg(8): keys, the configuration that `wg setconf` takes, the table of `wg show DEVICE
// dump`. Pure, but for the random bytes of a key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner::tunnel {

/// 32 bytes each, in the base64 of wg(8). The private one is wiped with the object.
struct KeyPair {
  std::string secret, open;
  KeyPair() = default;
  KeyPair(const KeyPair&) = delete;
  KeyPair& operator=(const KeyPair&) = delete;
  KeyPair(KeyPair&&) = default;
  KeyPair& operator=(KeyPair&&) = default;
  ~KeyPair();
};
/// A clamped random number and its point on Curve25519 (RFC 7748).
KeyPair make_keys();
/// 44 characters that are the base64 of 32 bytes.
bool is_key(std::string_view text);

struct Peer {
  std::string key;
  std::vector<std::string> allowed;  // IPv4 addresses, each alone: what comes from and goes to it
  std::string endpoint;              // "192.0.2.1:51820", "[fd00::1]:51820"; empty: it calls
  std::uint32_t keepalive_s = 0;     // 0: none
};
/// Error: a field that wg(8) would not take, or that could be more than one line.
Result<> check_peer(const Peer& peer);

/// Without keepalives: WireGuard sends the first one as soon as it is told of it, and with that
/// begins a handshake.
std::string config_text(const KeyPair& keys, std::uint16_t port, const std::vector<Peer>& peers);
/// Of `wg`: the keepalives of those that have one. Empty when none has.
std::vector<std::string> keepalive_words(const std::string& device, const std::vector<Peer>& peers);

struct PeerState {
  std::string key, endpoint;
  std::uint64_t handshake_unix_s = 0;  // of the last one; 0: none yet
  std::uint64_t received = 0, sent = 0;
};
/// Error: no such table.
Result<std::vector<PeerState>> parse_dump(std::string_view text);

/// What WireGuard adds to an IPv4 or IPv6 packet that it carries: IP, UDP, its header, its tag.
inline constexpr int kOverheadV4 = 60, kOverheadV6 = 80;
/// Of those, what lies within the UDP datagram.
inline constexpr int kOverheadInDatagram = 32;

}  // namespace sortie::runner::tunnel
