#include "runner/streams/unix_listener.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>

namespace sortie::runner {
namespace {

constexpr std::chrono::milliseconds kNoDescriptorPause{200};

}  // namespace

Result<> UnixListener::open(const std::string& path, std::size_t backlog) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::io, fmt::format("{}: longer than the {} bytes of a socket path", path,
                                           sizeof address.sun_path - 1));
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd.get(), static_cast<int>(backlog)) != 0)
    return std::unexpected(os_error(errno, path));
  acceptor_.assign(fd.release());
  await_connection();
  return {};
}

void UnixListener::await_connection() {
  acceptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [this](const boost::system::error_code& error) {
                         if (error) return;
                         if (accept_all()) return await_connection();
                         // The socket stays readable: without a pause this would spin.
                         pause_.set(kNoDescriptorPause, [this] {
                           if (is_open()) await_connection();
                         });
                       });
}

bool UnixListener::accept_all() {
  for (;;) {
    Fd fd(::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return errno != EMFILE && errno != ENFILE;
    on_connection_(std::move(fd));
  }
}

void UnixListener::close() {
  if (acceptor_.is_open()) acceptor_.close();
  pause_.cancel();
}

}  // namespace sortie::runner
