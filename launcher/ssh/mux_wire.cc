#include "launcher/ssh/mux_wire.h"

#include <fmt/core.h>

#include <optional>

namespace sortie::launcher::ssh {
namespace {

constexpr std::uint32_t kNoEscapeChar = 0xffffffff;

void put_u32(std::string& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    out += static_cast<char>(static_cast<unsigned char>(value >> shift));
}

void put_text(std::string& out, std::string_view text) {
  put_u32(out, static_cast<std::uint32_t>(text.size()));
  out += text;
}

std::string with_length(const std::string& body) {
  std::string message;
  put_text(message, body);
  return message;
}

std::string request(MuxType type, std::uint32_t id) {
  std::string body;
  put_u32(body, static_cast<std::uint32_t>(type));
  put_u32(body, id);
  return body;
}

// Reads fields from the front. After an incomplete field all further ones are empty.
class MuxFields {
 public:
  explicit MuxFields(std::string_view bytes) : bytes_(bytes) {}

  std::uint32_t u32() {
    if (bytes_.size() < 4) {
      whole_ = false;
      bytes_ = {};
      return 0;
    }
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes_[i]);
    bytes_.remove_prefix(4);
    return value;
  }
  std::string text() {
    const std::uint32_t size = u32();
    if (size > bytes_.size()) whole_ = false;
    if (!whole_) return "";
    std::string value(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return value;
  }
  bool whole() const { return whole_; }

 private:
  std::string_view bytes_;
  bool whole_ = true;
};

}  // namespace

std::string mux_hello() {
  std::string body;
  put_u32(body, static_cast<std::uint32_t>(MuxType::hello));
  put_u32(body, kMuxVersion);
  return with_length(body);
}

std::string mux_alive_check(std::uint32_t id) {
  return with_length(request(MuxType::alive_check, id));
}

std::string mux_new_session(std::uint32_t id, std::string_view command) {
  std::string body = request(MuxType::new_session, id);
  put_text(body, "");                                     // reserved
  for (int flag = 0; flag < 4; ++flag) put_u32(body, 0);  // terminal, X11, agent, subsystem
  put_u32(body, kNoEscapeChar);
  put_text(body, "");  // terminal type
  put_text(body, command);
  return with_length(body);
}

std::string mux_stdio_forward(std::uint32_t id, std::string_view host, int port) {
  std::string body = request(MuxType::stdio_forward, id);
  put_text(body, "");  // reserved
  put_text(body, host);
  put_u32(body, static_cast<std::uint32_t>(port));
  return with_length(body);
}

Result<std::size_t> mux_length(std::string_view four_bytes) {
  const std::size_t length = MuxFields(four_bytes).u32();
  if (length < 4 || length > kMaxMuxMessage)
    return fail(ErrorCode::protocol, fmt::format("a message of {} bytes", length));
  return length;
}

Result<MuxMessage> parse_mux_message(std::string_view body) {
  MuxFields fields(body);
  MuxMessage message;
  const std::uint32_t type = fields.u32();
  message.type = static_cast<MuxType>(type);
  switch (message.type) {
    case MuxType::hello:
      message.value = fields.u32();
      break;
    case MuxType::ok:
    case MuxType::tty_alloc_fail:
      message.id = fields.u32();
      break;
    case MuxType::permission_denied:
    case MuxType::failure:
      message.id = fields.u32();
      message.text = fields.text();
      break;
    case MuxType::exit_message:
    case MuxType::alive:
    case MuxType::session_opened:
    case MuxType::remote_port:
      message.id = fields.u32();
      message.value = fields.u32();
      break;
    default:
      return fail(ErrorCode::protocol, fmt::format("a message of the unknown type {:#x}", type));
  }
  if (!fields.whole())
    return fail(ErrorCode::protocol, fmt::format("a message of type {:#x} that is cut off", type));
  return message;
}

}  // namespace sortie::launcher::ssh
