#include "trainer/outer/socket_coordinator.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/log.h"

namespace sortie::trainer::outer {
namespace {

constexpr std::size_t kMostLineBytes = 64u << 10;
constexpr std::size_t kKeptAborts = 64;

/// A restarted leader must use higher question numbers than before: microseconds since 1970 ensure
/// that.
std::uint64_t first_number() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::system_clock::now().time_since_epoch())
                                        .count());
}

Error runner_gone() {
  return {ErrorCode::lost, "coordinator: the runner of this host is gone from SORTIE_SOCKET"};
}

}  // namespace

Result<std::unique_ptr<SocketCoordinator>> SocketCoordinator::make(std::string socket_path,
                                                                   CoordinatorTimes times) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.empty() || socket_path.size() >= sizeof address.sun_path)
    return fail(
        ErrorCode::config,
        fmt::format("SORTIE_SOCKET \"{}\": no path of a socket; training over several sites "
                    "is started by sortie run",
                    socket_path));
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!socket || !wake ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return std::unexpected(os_error(errno, "SORTIE_SOCKET " + socket_path, ErrorCode::lost));
  std::unique_ptr<SocketCoordinator> made(
      new SocketCoordinator(std::move(socket), std::move(wake), times));
  const std::lock_guard lock(made->mutex_);
  SORTIE_TRY(made->write_line("{\"type\":\"listen\"}"));
  return made;
}

SocketCoordinator::SocketCoordinator(Fd socket, Fd wake, CoordinatorTimes times)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      times_(times),
      number_(first_number()),
      reader_([this] { read_lines(); }) {}

SocketCoordinator::~SocketCoordinator() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ::eventfd_write(wake_.get(), 1);
  }
  reader_.join();
}

Result<training::OuterJoined> SocketCoordinator::join(const training::OuterJoin& join) {
  return ask<training::OuterJoined>(join);
}
Result<training::OuterWork> SocketCoordinator::next(const training::OuterNext& next) {
  return ask<training::OuterWork>(next);
}
Result<training::OuterExchange> SocketCoordinator::ready(const training::OuterReady& ready) {
  return ask<training::OuterExchange>(ready);
}
Result<training::OuterDecision> SocketCoordinator::vote(const training::OuterVote& vote) {
  return ask<training::OuterDecision>(vote);
}

void SocketCoordinator::leave(const training::OuterLeave& leave) {
  const std::lock_guard lock(mutex_);
  // Also sent after cancel(). If the runner is gone, the launcher knows already.
  (void)write_line(to_json(training::OuterQuestion(leave), ++number_).dump());
}

bool SocketCoordinator::aborted(std::uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  return aborted_.contains(epoch);
}

std::string SocketCoordinator::left_out() {
  const std::lock_guard lock(mutex_);
  return left_out_;
}

void SocketCoordinator::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

template <class Answer>
Result<Answer> SocketCoordinator::ask(const training::OuterQuestion& question) {
  std::unique_lock lock(mutex_);
  answer_.reset();
  left_out_.clear();
  asking_ = true;
  const std::string line = to_json(question, ++number_).dump();
  auto pause = times_.repeat;
  const auto asked_at = std::chrono::steady_clock::now();
  bool said = false;
  for (;;) {
    if (cancelled_) return fail(ErrorCode::interrupted, "coordinator: called off");
    if (gone_) return std::unexpected(runner_gone());
    SORTIE_TRY(write_line(line));
    changed_.wait_for(lock, pause, [this] { return answer_ || cancelled_ || gone_; });
    if (answer_) break;
    pause = std::min(2 * pause, times_.most);
    const auto silence = std::chrono::steady_clock::now() - asked_at;
    if (!said && silence > times_.say) {
      said = true;
      log::warning("the coordinator has not answered for {} s; this site waits for it",
                   std::chrono::duration_cast<std::chrono::seconds>(silence).count());
    }
  }
  asking_ = false;
  if (said) log::info("the coordinator has answered");
  if (const auto* refused = std::get_if<training::OuterRefused>(&*answer_))
    return fail(ErrorCode::config, "coordinator: " + refused->reason);
  if (auto* wanted = std::get_if<Answer>(&*answer_)) return std::move(*wanted);
  return fail(ErrorCode::protocol, "coordinator: an answer to another question");
}

Result<> SocketCoordinator::write_line(const std::string& line) {
  const std::string whole = line + "\n";
  for (std::size_t sent = 0; sent < whole.size();) {
    const ssize_t count =
        ::send(socket_.get(), whole.data() + sent, whole.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(runner_gone());
    sent += static_cast<std::size_t>(count);
  }
  return {};
}

void SocketCoordinator::read_lines() {
  std::string pending;
  char buffer[16 << 10];
  for (;;) {
    pollfd polled[] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0) continue;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    const ssize_t count = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) break;
    pending.append(buffer, static_cast<std::size_t>(count));
    for (std::size_t end; (end = pending.find('\n')) != std::string::npos;) {
      take_line(pending.substr(0, end));
      pending.erase(0, end + 1);
    }
    if (pending.size() > kMostLineBytes) pending.clear();  // a runner never sends that
  }
  const std::lock_guard lock(mutex_);
  gone_ = true;
  changed_.notify_all();
}

void SocketCoordinator::take_line(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  auto parsed = training::parse_outer_answer(json);
  if (!parsed) return log::warning("a line of the launcher dropped: {}", parsed.error().message);
  const std::lock_guard lock(mutex_);
  if (const auto* abort = std::get_if<training::OuterAbort>(&parsed->answer)) {
    aborted_[abort->epoch] = abort->reason;
    if (aborted_.size() > kKeptAborts) aborted_.erase(aborted_.begin());
  } else if (const auto* refused = std::get_if<training::OuterRefused>(&parsed->answer);
             refused && !asking_ && (parsed->number == number_ || parsed->number == 0)) {
    left_out_ = refused->reason;
  } else if (parsed->number == number_) {  // else it answers an earlier question
    answer_ = std::move(parsed->answer);
  }
  changed_.notify_all();
}

}  // namespace sortie::trainer::outer
