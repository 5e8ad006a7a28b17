#include "runner/process/held_process.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/fd.h"
#include "runner/process/order.h"

namespace sortie::runner {

Result<> HeldProcess::start(const HeldSpec& spec, OnReport on_report) {
  return open(std::move(on_report), [this, &spec](int control) -> Result<> {
    keeper_ = ::fork();
    if (keeper_ < 0) return std::unexpected(os_error(errno, "fork", ErrorCode::spawn));
    if (keeper_ == 0) keeper_main(spec, control);
    return {};
  });
}

Result<> HeldProcess::start_prepared(PreparedKeeper prepared, const HeldSpec& spec,
                                     OnReport on_report) {
  if (!prepared.control || !send_order(prepared.control.get(), spec, -1))
    return start(spec, std::move(on_report));
  keeper_ = prepared.pid;
  return listen(std::move(prepared.control), std::move(on_report));
}

Result<> HeldProcess::start_inside(const std::function<Result<>(int control)>& hand_over,
                                   OnReport on_report) {
  return open(std::move(on_report), hand_over);
}

Result<> HeldProcess::open(OnReport on_report, const std::function<Result<>(int control)>& give) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    return std::unexpected(os_error(errno, "socketpair", ErrorCode::spawn));
  Fd mine(pair[0]);
  const Fd keepers(pair[1]);
  const int on = 1;
  if (::setsockopt(mine.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
    return std::unexpected(os_error(errno, "SO_PASSCRED", ErrorCode::spawn));
  SORTIE_TRY(give(keepers.get()));
  return listen(std::move(mine), std::move(on_report));
}

Result<> HeldProcess::listen(Fd control, OnReport on_report) {
  boost::system::error_code error;
  control_.assign(control.get(), error);
  if (error) return fail(ErrorCode::spawn, "epoll: " + error.message());
  control.release();
  on_report_ = std::move(on_report);
  await_report();
  return {};
}

void HeldProcess::stop(std::chrono::milliseconds grace) {
  if (!control_.is_open() || over_) return;
  const KeeperCommand command{static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(grace.count(), 0, std::int64_t{1} << 31))};
  // If the socket is closed, the keeper is dead; if it is full, the keeper has enough commands.
  if (::send(control_.native_handle(), &command, sizeof command, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    return;
}

void HeldProcess::await_report() {
  control_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this](const boost::system::error_code& error) {
                        if (!error) read_reports();
                      });
}

ssize_t HeldProcess::receive(KeeperReport& report) {
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(ucred))];
  iovec bytes{&report, sizeof report};
  msghdr packet{};
  packet.msg_iov = &bytes;
  packet.msg_iovlen = 1;
  packet.msg_control = space;
  packet.msg_controllen = sizeof space;
  const ssize_t count = ::recvmsg(control_.native_handle(), &packet, MSG_DONTWAIT);
  if (count != sizeof report || report.kind != KeeperReport::Kind::announced) return count;
  for (cmsghdr* part = CMSG_FIRSTHDR(&packet); part; part = CMSG_NXTHDR(&packet, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(part), sizeof sender);
    report.pid = sender.pid;
  }
  return count;
}

void HeldProcess::read_reports() {
  for (;;) {
    KeeperReport report;
    const ssize_t count = receive(report);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return await_report();
    // The keeper exited with an unread command. Told once; its reports follow.
    if (count < 0 && errno == ECONNRESET) continue;
    if (over_) return control_.close();  // the keeper has exited, too
    if (count != sizeof report) report = {.kind = KeeperReport::Kind::keeper_lost};
    if (report.kind == KeeperReport::Kind::announced) {
      announced_ = report.pid;
      continue;
    }
    const bool of_the_process =
        report.kind == KeeperReport::Kind::started || report.kind == KeeperReport::Kind::died;
    if (announced_ > 0 && of_the_process) report.pid = announced_;
    // Keep the socket open: the keeper takes a closed one for a killed runner and would clean up
    // for it.
    if (report.kind == KeeperReport::Kind::gone) {
      over_ = true;
      await_report();
      return on_report_(report);
    }
    if (report.kind == KeeperReport::Kind::keeper_lost) {
      control_.close();
      return on_report_(report);
    }
    on_report_(report);
  }
}

}  // namespace sortie::runner
