#include "runner/container/container_init.h"

#include <fmt/core.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>
#include <vector>

#include "common/base/exit_code.h"
#include "runner/container/init_report.h"
#include "runner/job/environment.h"
#include "runner/process/keeper.h"
#include "runner/process/order.h"
#include "runner/process/process_defaults.h"
#include "runner/process/process_tree.h"

namespace sortie::runner::container {
namespace {

/// The prefix is that of keepers, so that a sweep gives it the same time to end by itself.
constexpr const char* kName = "sortie-keep-box";
/// Above that of process 1 and keepers: when the container is out of memory, a rank is killed.
constexpr const char* kRankOomScore = "50";
constexpr int kPauseMs = 10;

int complain(const std::string& what, int error) {
  std::fprintf(stderr, "container-init: %s: %s\n", what.c_str(), std::strerror(error));
  return kExitFailed;
}

bool become(const std::string& user) {
  unsigned uid = 0, gid = 0;
  const char* end = user.data() + user.size();
  const auto [colon, bad] = std::from_chars(user.data(), end, uid);
  if (bad != std::errc{}) return false;
  gid = uid;
  if (colon != end && std::from_chars(colon + 1, end, gid).ec != std::errc{}) return false;
  if (uid == ::geteuid() && gid == ::getegid()) return true;
  return ::setgroups(0, nullptr) == 0 && ::setgid(gid) == 0 && ::setuid(uid) == 0;
}

Fd connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return Fd();
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (socket &&
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    socket.reset();
  return socket;
}

/// Adds the container's variables that the order does not set.
void add_own_environment(std::vector<std::string>& env) {
  std::set<std::string, std::less<>> given;
  for (const std::string& line : env) given.insert(line.substr(0, line.find('=')));
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view line = *entry;
    if (!given.contains(line.substr(0, line.find('=')))) env.emplace_back(line);
  }
}

/// Any other signal is taken for a request to end the container: images choose their own stop
/// signal.
bool is_harmless(std::uint32_t signal) {
  return signal == SIGCHLD || signal == SIGCONT || signal == SIGURG || signal == SIGPIPE;
}

class Init {
 public:
  Init(Fd socket, Fd signals, std::string folder, ProcessDefaults defaults)
      : socket_(std::move(socket)),
        signals_(std::move(signals)),
        folder_(std::move(folder)),
        defaults_(std::move(defaults)) {}

  int run() {
    const char* path = std::getenv("PATH");
    report({InitReport::Kind::hello, 0, path ? path : ""});
    while (socket_ || !keepers_.empty()) {
      pollfd polled[2] = {{signals_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
      ::poll(polled, socket_ ? 2 : 1, orphaned_ ? kPauseMs : -1);
      if (socket_ && polled[1].revents) take_order();
      if (polled[0].revents) take_signals();
      reap();
    }
    return 0;
  }

 private:
  void report(const InitReport& what) {
    if (socket_ && !send_report(socket_.get(), what)) socket_.reset();
  }

  void take_order() {
    Result<Order> order = receive_order(socket_.get());
    if (!order) {
      if (order.error().code == ErrorCode::lost) socket_.reset();
      if (order.error().code == ErrorCode::protocol)
        report({InitReport::Kind::refused, EPROTO, order.error().message});
      return;
    }
    HeldSpec& spec = order->spec;
    const mode_t umask = spec.defaults.umask;
    spec.defaults = defaults_;
    spec.defaults.umask = umask;
    add_own_environment(spec.env);
    if (spec.candidates.empty())
      spec.candidates = program_candidates(spec.argv[0], env_value(spec.env, "PATH"));
    spec.folders.push_back(folder_);
    const pid_t keeper = ::fork();
    if (keeper == 0) keeper_main(spec, order->control.get());
    if (keeper > 0)
      keepers_.insert(keeper);
    else  // its control socket closes now; this says why
      report({InitReport::Kind::refused, errno, "fork"});
  }

  void take_signals() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info)
      if (!is_harmless(info.ssi_signo))
        report({InitReport::Kind::asked_to_end, static_cast<std::int32_t>(info.ssi_signo), ""});
  }

  /// A keeper that exited in order leaves nothing. The processes of a killed one are now ours and
  /// are killed.
  void reap() {
    int status = 0;
    pid_t pid = 0;
    while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0)
      if (keepers_.erase(pid) > 0 && status != 0) orphaned_ = true;
    if (!orphaned_) return;
    std::vector<pid_t> orphans = direct_children();
    std::erase_if(orphans, [this](pid_t child) { return keepers_.contains(child); });
    kill_children(orphans);
    orphaned_ = !orphans.empty();
  }

  Fd socket_, signals_;
  const std::string folder_;
  const ProcessDefaults defaults_;
  std::set<pid_t> keepers_;
  bool orphaned_ = false;
};

/// Containers that share memory number their processes separately, so pids coincide. Open MPI 4
/// treats a shared-memory segment whose creator has the reader's pid as the reader's own, and
/// crashes. So the pids of "init-N.sock" start N strides later.
void skip_process_numbers(const std::string& socket_path) {
  constexpr std::string_view kMark = "/init-";
  constexpr int kStride = 16, kMost = 64;
  const std::size_t at = socket_path.rfind(kMark);
  if (at == std::string::npos) return;
  const int index = std::atoi(socket_path.c_str() + at + kMark.size());
  for (int i = 0; i < std::min(index, kMost) * kStride; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    if (child < 0 || ::waitpid(child, nullptr, 0) < 0) return;
  }
}

}  // namespace

int container_init(const std::string& socket_path, const std::string& user) {
  char folder[4096];
  const std::string home = ::getcwd(folder, sizeof folder) ? folder : "/";
  ProcessDefaults defaults = become_runner();
  defaults.oom_score_adj = kRankOomScore;
  ::prctl(PR_SET_NAME, kName);
  if (!user.empty() && !become(user)) return complain("cannot become user " + user, errno);
  skip_process_numbers(socket_path);
  sigset_t watched;
  sigfillset(&watched);
  Fd signals(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return complain("signalfd", errno);
  Fd socket = connect_to(socket_path);
  if (!socket) return complain(socket_path, errno);
  return Init(std::move(socket), std::move(signals), home, std::move(defaults)).run();
}

}  // namespace sortie::runner::container
