#include "runner/held_process.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/base/fd.h"

namespace sortie::runner {

Result<> HeldProcess::start(const HeldSpec& spec, OnReport on_report) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return std::unexpected(os_error(errno, "socketpair", ErrorCode::spawn));
  Fd mine(pair[0]), keepers(pair[1]);
  keeper_ = ::fork();
  if (keeper_ < 0) return std::unexpected(os_error(errno, "fork", ErrorCode::spawn));
  if (keeper_ == 0) keeper_main(spec, keepers.get());
  boost::system::error_code error;
  control_.assign(mine.get(), error);
  if (error) return fail(ErrorCode::spawn, "epoll: " + error.message());
  mine.release();
  on_report_ = std::move(on_report);
  await_report();
  return {};
}

void HeldProcess::stop(std::chrono::milliseconds grace) {
  if (!control_.is_open()) return;
  const KeeperCommand command{static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(grace.count(), 0, std::int64_t{1} << 31))};
  // A full or closed socket: the keeper is dead or has plenty of commands to go on with.
  if (::send(control_.native_handle(), &command, sizeof command, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    return;
}

void HeldProcess::await_report() {
  control_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this](const boost::system::error_code& error) {
                        if (!error) read_reports();
                      });
}

void HeldProcess::read_reports() {
  for (;;) {
    KeeperReport report;
    const ssize_t count = ::recv(control_.native_handle(), &report, sizeof report, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return await_report();
    if (count != sizeof report) report = {.kind = KeeperReport::Kind::keeper_lost};
    const bool last =
        report.kind == KeeperReport::Kind::gone || report.kind == KeeperReport::Kind::keeper_lost;
    if (last) control_.close();
    on_report_(report);
    if (last) return;
  }
}

}  // namespace sortie::runner
