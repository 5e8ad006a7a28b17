#include "runner/container/init_report.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace sortie::runner::container {
namespace {

/// A packet consists of this head and the text.
struct Head {
  InitReport::Kind kind = InitReport::Kind::hello;
  std::int32_t value = 0;
};

}  // namespace

Result<> send_report(int socket, const InitReport& report) {
  const Head head{report.kind, report.value};
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes += report.text.substr(0, kMaxReportText);
  if (::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0)
    return std::unexpected(os_error(errno, "send", ErrorCode::lost));
  return {};
}

Result<InitReport> receive_report(int socket) {
  std::array<char, kMaxReportText + sizeof(Head)> buffer;
  const ssize_t count = ::recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR))
    return fail(ErrorCode::timeout, "nothing has come");
  if (count <= 0)
    return fail(ErrorCode::lost, count < 0 ? std::strerror(errno) : "the other side is gone");
  Head head;
  if (static_cast<std::size_t>(count) < sizeof head)
    return fail(ErrorCode::protocol, "a short report");
  std::memcpy(&head, buffer.data(), sizeof head);
  return InitReport{
      head.kind, head.value,
      std::string(buffer.data() + sizeof head, static_cast<std::size_t>(count) - sizeof head)};
}

}  // namespace sortie::runner::container
