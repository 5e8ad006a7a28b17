// The data of wg(8): keys, the configuration for `wg setconf`, and the table of `wg show DEVICE
// dump`. Pure, except for the random bytes of a key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner::tunnel {

/// Private and public key, 32 bytes each, in the base64 of wg(8). The destructor wipes the private
/// key.
struct KeyPair {
  std::string secret, open;
  KeyPair() = default;
  KeyPair(const KeyPair&) = delete;
  KeyPair& operator=(const KeyPair&) = delete;
  KeyPair(KeyPair&&) = default;
  KeyPair& operator=(KeyPair&&) = default;
  ~KeyPair();
};
/// Generates a clamped random number and its point on Curve25519 (RFC 7748).
KeyPair make_keys();
/// Whether `text` is 44 characters that encode 32 bytes in base64.
bool is_key(std::string_view text);

struct Peer {
  std::string key;
  std::vector<std::string> allowed;  // single IPv4 addresses that it may send from and that are
                                     // routed to it
  std::string endpoint;              // "192.0.2.1:51820", "[fd00::1]:51820"; empty: the peer
                                     // connects to us
  std::uint32_t keepalive_s = 0;     // 0: none
};
/// Error: a field that wg(8) would reject, or that could contain a line break.
Result<> check_peer(const Peer& peer);

/// Text for `wg setconf`. Omits keepalives: WireGuard sends the first one as soon as it is
/// configured, which would start a handshake.
std::string config_text(const KeyPair& keys, std::uint16_t port, const std::vector<Peer>& peers);
/// Arguments of `wg` that set the keepalives of `peers`. Empty if no peer has one.
std::vector<std::string> keepalive_words(const std::string& device, const std::vector<Peer>& peers);

struct PeerState {
  std::string key, endpoint;
  std::uint64_t handshake_unix_s = 0;  // of the last handshake; 0: none yet
  std::uint64_t received = 0, sent = 0;
};
/// Error: not the output of `wg show DEVICE dump`.
Result<std::vector<PeerState>> parse_dump(std::string_view text);

/// Bytes that WireGuard adds to a packet within the UDP datagram: its header and its tag.
inline constexpr int kOverheadInDatagram = 32;

}  // namespace sortie::runner::tunnel
