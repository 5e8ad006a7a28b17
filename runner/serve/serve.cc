#include "runner/serve/serve.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <utility>

#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/result.h"
#include "common/wire/serving.h"
#include "runner/process/own_mounts.h"

namespace sortie::runner {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Until the terms are there.
constexpr milliseconds kFirstFrame{120'000};
/// For a frame of ours to leave; who does not read it for so long is gone.
constexpr milliseconds kAnswerTime{10'000};

class Server {
 public:
  Server(Fd in, Fd out, const Converse& converse)
      : in_(std::move(in)), out_(std::move(out)), converse_(converse) {}

  int run() {
    sigset_t watched;
    sigemptyset(&watched);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&watched, number);
    signals_.reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) return failed(os_error(errno, "signalfd").message);
    for (const int fd : {in_.get(), out_.get()})
      ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    own_mounts();  // conversations have them from here
    heard_ = last_used_ = Clock::now();
    while (!exit_code_) wait_once();
    return *exit_code_;
  }

 private:
  /// While a conversation is on, its process alone reads.
  void wait_once() {
    pollfd polled[] = {{signals_.get(), POLLIN, 0}, {in_.get(), POLLIN, 0}};
    int limit = -1;
    if (child_ < 0) {
      const auto left = std::chrono::ceil<milliseconds>(deadline() - Clock::now()).count();
      limit = static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
    }
    const int ready = ::poll(polled, child_ < 0 ? 2 : 1, limit);
    if (ready < 0 && errno != EINTR) leave(failed(os_error(errno, "poll").message));
    if (ready == 0 && child_ < 0 && Clock::now() >= deadline()) {
      log::info("nobody has needed this runner for its time");
      leave(kExitOk);
    }
    if (ready <= 0) return;
    if (polled[0].revents != 0) take_signals();
    if (child_ < 0 && !exit_code_ && polled[1].revents != 0) read_frame();
  }

  Clock::time_point deadline() const {
    if (!terms_.idle_ms) return heard_ + kFirstFrame;
    return std::min(last_used_ + milliseconds(terms_.idle_ms),
                    heard_ + milliseconds(terms_.silence_ms));
  }

  void take_signals() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number == SIGCHLD) {
        reap();
      } else if (child_ > 0) {
        signal_ = number;
        ::kill(child_, number);
      } else {
        leave(128 + number);
      }
    }
  }

  /// Never a byte more than the frame has: what follows it is for the child.
  void read_frame() {
    const std::size_t wanted = frame_.size() < wire::kFrameHeaderBytes
                                   ? wire::kFrameHeaderBytes
                                   : wire::kFrameHeaderBytes + payload_bytes();
    if (frame_.size() < wanted) {
      char bytes[wire::kFrameHeaderBytes + wire::kMaxServingPayload];
      const ssize_t count = ::read(in_.get(), bytes, wanted - frame_.size());
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (count <= 0) return leave(kExitOk);  // whoever kept this runner is gone
      frame_.append(bytes, static_cast<std::size_t>(count));
    }
    if (frame_.size() < wire::kFrameHeaderBytes) return;
    if (payload_bytes() > wire::kMaxServingPayload) return leave(failed("no frame of serving"));
    if (frame_.size() == wire::kFrameHeaderBytes + payload_bytes()) take_frame();
  }

  std::size_t payload_bytes() const { return wire::announced_bytes(frame_); }

  void take_frame() {
    const std::string frame = std::exchange(frame_, {});
    const auto type = static_cast<wire::Serving>(static_cast<unsigned char>(frame[4]));
    const std::string_view payload = std::string_view(frame).substr(wire::kFrameHeaderBytes);
    heard_ = Clock::now();
    if (type == wire::Serving::terms) {
      const auto terms = wire::read_terms(payload);
      if (!terms) return leave(failed(terms.error().message));
      terms_ = *terms;
    } else if (!terms_.idle_ms) {
      leave(failed("the first frame has no terms of serving"));
    } else if (type == wire::Serving::ping) {
      say(wire::serving_frame(wire::Serving::pong));
    } else if (type == wire::Serving::begin) {
      begin();
    } else {
      leave(failed(fmt::format("a frame of type {} between conversations",
                               static_cast<unsigned char>(frame[4]))));
    }
  }

  void begin() {
    say(wire::serving_frame(wire::Serving::begun));
    if (exit_code_) return;
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ < 0) return leave(failed(os_error(errno, "fork").message));
    if (child_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // is not inherited
    if (::getppid() != parent) ::_exit(kExitLost);
    signals_.reset();
    ::_exit(converse_(std::move(in_), std::move(out_)));
  }

  /// The conversation's process, and what a killed one has left to this process.
  void reap() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
      if (pid == child_) ended(status);
  }

  void ended(int status) {
    child_ = -1;
    heard_ = last_used_ = Clock::now();
    const bool signaled = WIFSIGNALED(status);
    const int code = signaled ? WTERMSIG(status) : WEXITSTATUS(status);
    // First the word: what comes after disorder is a new runner.
    say(wire::serving_frame(
        wire::ConversationEnd{static_cast<std::uint32_t>(code), signaled ? 1u : 0u}));
    if (signal_ != 0) leave(128 + signal_);
    if (signaled) leave(128 + code);
    if (code != kExitOk) leave(code);
  }

  void say(const std::string& frame) {
    const auto until = Clock::now() + kAnswerTime;
    for (std::size_t sent = 0; sent < frame.size();) {
      const ssize_t count = ::write(out_.get(), frame.data() + sent, frame.size() - sent);
      if (count > 0) sent += static_cast<std::size_t>(count);
      if (count > 0 || (count < 0 && errno == EINTR)) continue;
      if (count < 0 && errno != EAGAIN) return leave(kExitLost);
      const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
      pollfd polled{out_.get(), POLLOUT, 0};
      if (left <= 0 || ::poll(&polled, 1, static_cast<int>(left)) == 0) return leave(kExitLost);
    }
  }

  void leave(int code) {
    if (!exit_code_) exit_code_ = code;
  }
  static int failed(const std::string& why) {
    log::error("{}", why);
    return kExitFailed;
  }

  Fd in_, out_, signals_;
  const Converse& converse_;
  wire::ServeTerms terms_;
  std::string frame_;  // as far as it has come
  Clock::time_point heard_, last_used_;
  pid_t child_ = -1;
  int signal_ = 0;  // came while a conversation was on: the end follows its end
  std::optional<int> exit_code_;
};

}  // namespace

int serve_conversations(Fd in, Fd out, const Converse& converse) {
  return Server(std::move(in), std::move(out), converse).run();
}

}  // namespace sortie::runner
