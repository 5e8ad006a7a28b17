#include "launcher/warm/keeper_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "common/asio/run.h"
#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/c_strings.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "launcher/control/control_socket.h"
#include "launcher/ssh/ssh_transport.h"
#include "launcher/warm/keeper.h"

namespace sortie::launcher::warm {
namespace asio = boost::asio;
namespace {

using Acceptor = asio::local::stream_protocol::acceptor;

constexpr int kListenFd = 3, kLockFd = 4;
constexpr std::chrono::milliseconds kLook{1000};
/// Pause after a failed accept(), as when the process has no descriptor left.
constexpr std::chrono::milliseconds kAcceptPause{50};

/// The environment of the process: only the variables with locations from that of the command.
std::vector<std::string> plain_environment() {
  std::vector<std::string> out;
  for (const char* name : {"HOME", "PATH", "USER", "LOGNAME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR",
                           "XDG_STATE_HOME", "XDG_CONFIG_HOME"})
    if (const char* value = std::getenv(name)) out.push_back(fmt::format("{}={}", name, value));
  return out;
}

struct SpawnActions {
  SpawnActions() {
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnActions() {
    ::posix_spawn_file_actions_destroy(&files);
    ::posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

/// Accepts all waiting clients at once. Accepted one by one, each would wait for a step of every
/// running authentication, and many longer than the time limit of the first record (kTakenTime).
asio::awaitable<void> accept_clients(Acceptor& acceptor, Keeper& keeper) {
  const auto executor = acceptor.get_executor();
  asio::steady_timer pause(executor);
  acceptor.non_blocking(true);
  for (;;) {
    const auto [unwatched] = co_await acceptor.async_wait(Acceptor::wait_read, kToken);
    if (unwatched == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    boost::system::error_code error;
    while (!error) {
      Keeper::Socket socket(executor);
      acceptor.accept(socket, error);
      if (error || !check_peer(socket.native_handle())) continue;
      spawn(executor, keeper.serve(std::make_shared<Keeper::Socket>(std::move(socket))));
    }
    if (error == asio::error::would_block || error == asio::error::try_again) continue;
    pause.expires_after(kAcceptPause);
    co_await pause.async_wait(kToken);
  }
}

asio::awaitable<void> look_after(Keeper& keeper, asio::signal_set& signals) {
  // Shared with the handler, which may be called after this coroutine has ended.
  const auto pause = std::make_shared<asio::steady_timer>(co_await asio::this_coro::executor);
  const auto stopped = std::make_shared<bool>(false);
  signals.async_wait([pause, stopped](const boost::system::error_code& error, int) {
    if (error) return;
    *stopped = true;
    pause->cancel();
  });
  while (!*stopped && keeper.look()) {
    pause->expires_after(kLook);
    co_await pause->async_wait(kToken);
  }
  signals.cancel();
}

/// Makes the processes of other builds retire, because their connections are never used again.
void retire_others(const Place& place, const std::string& build) {
  Request request;
  request.kind = Request::Kind::retire;
  const std::string frame = request_frame(request);
  for (const std::string& other : place.builds()) {
    if (other == build) continue;
    const auto socket = place.connect(other);
    if (!socket) {
      // Its process is gone, unless it holds the lock because it is being started.
      if (const auto lock = place.lock(other)) {
        place.remove_socket(other);
        ::unlink((place.folder() / (other + ".lock")).c_str());
      }
    } else if (::write(socket->get(), frame.data(), frame.size()) < 0) {
      log::info("another build's process takes no request");
    }
  }
}

}  // namespace

Result<> start_keeper(const Place& place, const std::string& build,
                      const std::filesystem::path& sortie, const std::filesystem::path& runner_file,
                      const std::string& runner_hash) {
  auto lock = place.lock(build);
  if (!lock && lock.error().code == ErrorCode::lost) return {};  // another command is faster
  if (!lock) return std::unexpected(std::move(lock).error());
  SORTIE_ASSIGN_OR_RETURN(const Fd socket, place.listen(build));
  SORTIE_ASSIGN_OR_RETURN(const Fd log_file, place.open_log());
  // Move the descriptors away first: dup2() onto the same number would keep close-on-exec.
  const Fd listening(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 16));
  const Fd locked(::fcntl(lock->get(), F_DUPFD_CLOEXEC, 16));
  const Fd log_end(::fcntl(log_file.get(), F_DUPFD_CLOEXEC, 16));
  SpawnActions actions;
  ::posix_spawn_file_actions_addopen(&actions.files, 0, "/dev/null", O_RDWR, 0);
  ::posix_spawn_file_actions_adddup2(&actions.files, 0, 1);
  ::posix_spawn_file_actions_adddup2(&actions.files, log_end.get(), 2);
  ::posix_spawn_file_actions_adddup2(&actions.files, listening.get(), kListenFd);
  ::posix_spawn_file_actions_adddup2(&actions.files, locked.get(), kLockFd);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&actions.attributes, &none);
  ::posix_spawnattr_setsigdefault(&actions.attributes, &all);
  ::posix_spawnattr_setflags(&actions.attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const std::vector<std::string> words = {"sortie", kKeeperWord, build, runner_file.string(),
                                          runner_hash};
  const std::vector<std::string> variables = plain_environment();
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, sortie.c_str(), &actions.files, &actions.attributes,
                                  c_strings(words).data(), c_strings(variables).data());
  if (error == 0) return {};
  place.remove_socket(build);
  return std::unexpected(os_error(error, sortie.string()));
}

int keep_connections(std::span<char* const> words) {
  log::init("sortie connections", log::Level::info);
  if (words.size() != 5 || ::fcntl(kListenFd, F_GETFD) < 0 || ::fcntl(kLockFd, F_GETFD) < 0) {
    log::error("{} is started by sortie itself, where runner.ssh.persist is set", kKeeperWord);
    return kExitUsage;
  }
  ::close_range(kLockFd + 1, ~0u, 0);
  ::fcntl(kListenFd, F_SETFD, FD_CLOEXEC);
  ::fcntl(kLockFd, F_SETFD, FD_CLOEXEC);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
  // The memory contains keys and the data of connections.
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const std::string build = words[2];
  const auto place = Place::open();
  const auto binary = RunnerBinary::open(words[3]);
  if (!place || !binary) {
    log::error("{}", place ? binary.error().message : place.error().message);
    return kExitFailed;
  }
  if (binary->sha256() != words[4]) {
    log::error("{}: was replaced since the command that needs it read it", words[3]);
    return kExitFailed;
  }
  if (::chdir("/") != 0) log::warning("{}", os_error(errno, "/").message);
  retire_others(*place, build);

  asio::io_context io(1);
  const auto executor = io.get_executor();
  Acceptor acceptor(io, asio::local::stream_protocol(), kListenFd);
  const auto keeper = std::make_shared<Keeper>(
      Keeper::Parts{executor, *binary, build, [executor](const Want& want) {
                      return make_ssh_transport(executor, want.ssh, want.environment);
                    }});
  asio::signal_set signals(io, SIGTERM, SIGINT);
  spawn(io, accept_clients(acceptor, *keeper));
  run_to_end(io, look_after(*keeper, signals));
  // Later requests start a new process.
  place->remove_socket(build);
  ::unlink((place->folder() / (build + ".lock")).c_str());
  boost::system::error_code ignored;
  acceptor.close(ignored);
  keeper->close_all();
  io.restart();
  io.run_for(std::chrono::milliseconds(200));  // let the channels send their close messages
  return kExitOk;
}

}  // namespace sortie::launcher::warm
