#include "launcher/ssh/mux_forward.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace sortie::launcher::ssh {
namespace asio = boost::asio;

asio::awaitable<Result<Fd>> forward_through(std::shared_ptr<MuxClient> client, std::string host,
                                            int port, MuxClient::Clock::time_point deadline) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    co_return std::unexpected(os_error(errno, "socketpair; raise `ulimit -n`", ErrorCode::connect));
  Fd ours(ends[0]);
  // The descriptors from which the master reads and to which it writes.
  std::vector<Fd> theirs;
  theirs.emplace_back(ends[1]);
  theirs.emplace_back(::fcntl(ends[1], F_DUPFD_CLOEXEC, 0));
  if (!theirs.back())
    co_return std::unexpected(os_error(errno, "dup; raise `ulimit -n`", ErrorCode::connect));
  std::string request = mux_stdio_forward(MuxClient::kOpenRequest, host, port);
  auto opened = co_await client->open(std::move(request), std::move(theirs), deadline);
  if (!opened) {
    client->close();
    co_return std::unexpected(std::move(opened).error());
  }
  co_return ours;
}

}  // namespace sortie::launcher::ssh
