#include "runner/serve/serve.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
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
#include "runner/job/node_facts.h"
#include "runner/process/own_mounts.h"

namespace sortie::runner {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Timeout until the terms are received.
constexpr milliseconds kFirstFrame{120'000};
/// Timeout for sending a frame. A peer that does not read it in this time is treated as gone.
constexpr milliseconds kAnswerTime{10'000};
/// Delay after a conversation until the process of the next one is forked, so that others run
/// first.
constexpr milliseconds kPrepareAfter{200};

/// The process of a conversation. `word` is a socket to it: one byte starts a child that waits. The
/// child sends its exit code over it before it exits, which takes longer.
struct Child {
  pid_t pid = -1;
  Fd word;
};

class Server {
 public:
  Server(Fd in, Fd out, const Conversation& conversation)
      : in_(std::move(in)), out_(std::move(out)), conversation_(conversation) {}

  int run() {
    sigset_t watched;
    sigemptyset(&watched);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&watched, number);
    signals_.reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) return failed(os_error(errno, "signalfd").message);
    for (const int fd : {in_.get(), out_.get()})
      ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
    own_mounts();  // inherited by the processes of conversations
    machine_id();
    heard_ = last_used_ = Clock::now();
    while (!exit_code_) wait_once();
    drop_next();
    return *exit_code_;
  }

 private:
  /// During a conversation, only its process reads from the stream.
  void wait_once() {
    const bool resting = child_.pid < 0;
    pollfd polled[] = {{signals_.get(), POLLIN, 0},
                       {resting       ? in_.get()
                        : child_.word ? child_.word.get()
                                      : -1,
                        POLLIN, 0}};
    int limit = -1;
    if (resting) {
      const auto left =
          std::chrono::ceil<milliseconds>(std::min(deadline(), prepare_at_) - Clock::now());
      limit = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3'600'000));
    }
    const int ready = ::poll(polled, 2, limit);
    if (ready < 0 && errno != EINTR) leave(failed(os_error(errno, "poll").message));
    if (ready == 0 && resting && Clock::now() >= deadline()) {
      log::info("this runner was unused for its idle time");
      leave(kExitOk);
    } else if (ready == 0 && resting && Clock::now() >= prepare_at_) {
      prepare_next();
    }
    if (ready <= 0) return;
    if (!resting && polled[1].revents != 0) take_word();
    if (polled[0].revents != 0) take_signals();
    if (resting && child_.pid < 0 && !exit_code_ && polled[1].revents != 0) read_frame();
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
      } else if (child_.pid > 0) {
        signal_ = number;
        ::kill(child_.pid, number);
      } else {
        leave(128 + number);
      }
    }
  }

  /// Never reads beyond the frame: what follows it is for the child.
  void read_frame() {
    const std::size_t wanted = frame_.size() < wire::kFrameHeaderBytes
                                   ? wire::kFrameHeaderBytes
                                   : wire::kFrameHeaderBytes + payload_bytes();
    if (frame_.size() < wanted) {
      char bytes[wire::kFrameHeaderBytes + wire::kMaxServingPayload];
      const ssize_t count = ::read(in_.get(), bytes, wanted - frame_.size());
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (count <= 0) return leave(kExitOk);  // the peer that kept this runner is gone
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
    prepare_at_ = Clock::time_point::max();
    if (next_.pid > 0 && ::send(next_.word.get(), "", 1, MSG_NOSIGNAL) == 1) {
      child_ = std::exchange(next_, {});
      return;
    }
    next_ = {};
    child_ = make_child(false);
    if (child_.pid < 0) leave(failed(os_error(errno, "fork").message));
  }

  /// Does in advance, between conversations, what takes a process time before its first message.
  void prepare_next() {
    prepare_at_ = Clock::time_point::max();
    if (next_.pid < 0) next_ = make_child(true);
  }

  /// Returns pid -1 on failure.
  Child make_child(bool waits) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return {};
    Fd theirs(ends[1]);
    Child child;
    child.word.reset(ends[0]);
    const pid_t parent = ::getpid();
    child.pid = ::fork();
    if (child.pid != 0) return child;
    child.word.reset();
    signals_.reset();
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // not inherited by forked processes
    if (::getppid() != parent) ::_exit(kExitLost);
    if (waits) {
      conversation_.prepare();
      char begin = 0;
      // At end of file, the serving process is gone.
      if (::read(theirs.get(), &begin, 1) != 1) ::_exit(kExitLost);
    }
    const int code = conversation_.hold(std::move(in_), std::move(out_));
    if (::send(theirs.get(), &code, sizeof code, MSG_NOSIGNAL) < 0) ::_exit(code);
    ::_exit(code);
  }

  /// Ends the waiting process. It exits at once, because it waits only for this socket.
  void drop_next() {
    next_.word.reset();
    if (next_.pid > 0) ::waitpid(next_.pid, nullptr, 0);
    next_ = {};
  }

  /// Receives the exit code of a conversation that ended in order; its process is about to exit.
  void take_word() {
    int code = 0;
    if (::recv(child_.word.get(), &code, sizeof code, MSG_DONTWAIT) == sizeof code)
      ended(code, false);
    else
      child_.word.reset();  // it was killed: its wait status says how
  }

  /// Reaps the conversation's process and the orphans of a killed one.
  void reap() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid == next_.pid) next_ = {};
      if (pid != child_.pid) continue;
      const bool signaled = WIFSIGNALED(status);
      ended(signaled ? WTERMSIG(status) : WEXITSTATUS(status), signaled);
    }
  }

  void ended(int code, bool signaled) {
    child_ = {};
    heard_ = last_used_ = Clock::now();
    prepare_at_ = last_used_ + kPrepareAfter;
    // Send this before leaving: after an unclean end the peer starts a new runner.
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
  const Conversation& conversation_;
  wire::ServeTerms terms_;
  std::string frame_;  // what was received of a frame
  Clock::time_point heard_, last_used_;
  Clock::time_point prepare_at_ = Clock::time_point::max();
  Child child_;     // runs the conversation
  Child next_;      // waits for the next one
  int signal_ = 0;  // received during a conversation; this process leaves after it
  std::optional<int> exit_code_;
};

}  // namespace

int serve_conversations(Fd in, Fd out, const Conversation& conversation) {
  return Server(std::move(in), std::move(out), conversation).run();
}

}  // namespace sortie::runner
