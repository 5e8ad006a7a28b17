// Messages of OpenSSH's multiplexing protocol (PROTOCOL.mux, version 4) between a client and a
// master. Pure: bytes in, values out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::launcher::ssh {

inline constexpr std::uint32_t kMuxVersion = 4;
/// OpenSSH's limit for a message, in bytes.
inline constexpr std::size_t kMaxMuxMessage = 256 * 1024;

enum class MuxType : std::uint32_t {
  hello = 0x00000001,
  new_session = 0x10000002,
  alive_check = 0x10000004,
  stdio_forward = 0x10000008,
  ok = 0x80000001,
  permission_denied = 0x80000002,
  failure = 0x80000003,
  exit_message = 0x80000004,
  alive = 0x80000005,
  session_opened = 0x80000006,
  remote_port = 0x80000007,
  tty_alloc_fail = 0x80000008,
};

/// A message of a master. `id`: id of the request, or of the session in exit_message and
/// tty_alloc_fail. `value`: version, process id, session id, exit code or port. `text`: reason of a
/// refusal.
struct MuxMessage {
  MuxType type = MuxType::ok;
  std::uint32_t id = 0;
  std::uint32_t value = 0;
  std::string text;
};

// Messages of a client, with their length prefix.
std::string mux_hello();
std::string mux_alive_check(std::uint32_t id);
/// Requests a session without a terminal, forwards or variables. Its three descriptors must follow.
std::string mux_new_session(std::uint32_t id, std::string_view command);
/// Requests a TCP stream from the master's server to host:port. Its two descriptors must follow.
std::string mux_stdio_forward(std::uint32_t id, std::string_view host, int port);

/// Decodes a length prefix. ErrorCode::protocol if no message has this length.
Result<std::size_t> mux_length(std::string_view four_bytes);
/// Parses a message without its length prefix. ErrorCode::protocol if it is truncated or its type
/// is unknown.
Result<MuxMessage> parse_mux_message(std::string_view body);

}  // namespace sortie::launcher::ssh
