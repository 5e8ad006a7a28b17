#include "runner/tunnel/wireguard.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "common/base/split.h"

namespace sortie::runner::tunnel {
namespace {

constexpr std::size_t kKeyBytes = crypto_scalarmult_BYTES;
constexpr std::size_t kKeyCharacters = 44;

std::string base64(const std::array<unsigned char, kKeyBytes>& bytes) {
  std::array<char, kKeyCharacters + 1> text{};
  sodium_bin2base64(text.data(), text.size(), bytes.data(), bytes.size(),
                    sodium_base64_VARIANT_ORIGINAL);
  std::string result(text.data());
  sodium_memzero(text.data(), text.size());
  return result;
}

bool is_v4(const std::string& text) {
  in_addr address{};
  return ::inet_pton(AF_INET, text.c_str(), &address) == 1;
}

bool is_endpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return false;
  unsigned port = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + colon + 1, last, port);
  if (error != std::errc() || end != last || port == 0 || port > 65535) return false;
  const std::string host = text.substr(0, colon);
  in6_addr v6{};
  if (host.starts_with('[') && host.ends_with(']'))
    return ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &v6) == 1;
  return is_v4(host);
}

bool take_number(std::string_view field, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number);
  return error == std::errc() && end == field.data() + field.size();
}

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const std::size_t tab = line.find('\t');
    fields.push_back(line.substr(0, tab));
    if (tab == line.npos) return fields;
    line.remove_prefix(tab + 1);
  }
}

}  // namespace

KeyPair::~KeyPair() {
  sodium_memzero(secret.data(), secret.size());
}

KeyPair make_keys() {
  std::array<unsigned char, kKeyBytes> secret{}, open{};
  randombytes_buf(secret.data(), secret.size());
  secret[0] &= 248;
  secret[31] = static_cast<unsigned char>((secret[31] & 127) | 64);
  crypto_scalarmult_base(open.data(), secret.data());
  KeyPair keys;
  keys.secret = base64(secret);
  keys.open = base64(open);
  sodium_memzero(secret.data(), secret.size());
  return keys;
}

bool is_key(std::string_view text) {
  std::array<unsigned char, kKeyBytes> bytes{};
  std::size_t length = 0;
  return text.size() == kKeyCharacters &&
         sodium_base642bin(bytes.data(), bytes.size(), text.data(), text.size(), nullptr, &length,
                           nullptr, sodium_base64_VARIANT_ORIGINAL) == 0 &&
         length == kKeyBytes;
}

Result<> check_peer(const Peer& peer) {
  if (!is_key(peer.key)) return fail(ErrorCode::protocol, "tunnel: a peer without a key");
  if (peer.allowed.empty()) return fail(ErrorCode::protocol, "tunnel: a peer without an address");
  for (const std::string& address : peer.allowed)
    if (!is_v4(address))
      return fail(ErrorCode::protocol, fmt::format("tunnel: \"{}\" is no address", address));
  if (!peer.endpoint.empty() && !is_endpoint(peer.endpoint))
    return fail(ErrorCode::protocol, fmt::format("tunnel: \"{}\" is no endpoint", peer.endpoint));
  if (peer.keepalive_s > 65535) return fail(ErrorCode::protocol, "tunnel: keepalive");
  return {};
}

std::string config_text(const KeyPair& keys, std::uint16_t port, const std::vector<Peer>& peers) {
  std::string text =
      fmt::format("[Interface]\nPrivateKey = {}\nListenPort = {}\n", keys.secret, port);
  for (const Peer& peer : peers) {
    text += fmt::format("[Peer]\nPublicKey = {}\nAllowedIPs = {}/32\n", peer.key,
                        fmt::join(peer.allowed, "/32, "));
    if (!peer.endpoint.empty()) text += fmt::format("Endpoint = {}\n", peer.endpoint);
  }
  return text;
}

std::vector<std::string> keepalive_words(const std::string& device,
                                         const std::vector<Peer>& peers) {
  std::vector<std::string> words;
  for (const Peer& peer : peers) {
    if (peer.keepalive_s == 0) continue;
    if (words.empty()) words = {"set", device};
    words.insert(words.end(),
                 {"peer", peer.key, "persistent-keepalive", std::to_string(peer.keepalive_s)});
  }
  return words;
}

Result<std::vector<PeerState>> parse_dump(std::string_view text) {
  std::vector<PeerState> peers;
  bool own = true;  // the first line describes the device: its keys, port and mark
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    const auto fields = fields_of(line);
    if (std::exchange(own, false)) {
      if (fields.size() != 4) return fail(ErrorCode::io, "wg show dump: no line of the device");
      continue;
    }
    // public key, preshared key, endpoint, allowed ips, latest handshake, rx, tx, keepalive
    PeerState peer;
    if (fields.size() != 8 || !is_key(fields[0]) ||
        !take_number(fields[4], peer.handshake_unix_s) || !take_number(fields[5], peer.received) ||
        !take_number(fields[6], peer.sent))
      return fail(ErrorCode::io, "wg show dump: a line that is none of a peer");
    peer.key = fields[0];
    if (fields[2] != "(none)") peer.endpoint = fields[2];
    peers.push_back(std::move(peer));
  }
  if (own) return fail(ErrorCode::io, "wg show dump: nothing");
  return peers;
}

}  // namespace sortie::runner::tunnel
