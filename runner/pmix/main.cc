// sortie-pmix: the PMIx server of one host of an MPI job. The runner starts it with frames on stdin
// and stdout, and it ends with the runner. README.md describes the order of messages.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string_view>

#include "common/base/exit_code.h"
#include "runner/pmix/frame_pipe.h"
#include "runner/pmix/probe.h"
#include "runner/pmix/server.h"
#include "runner/pmix/upcalls.h"

namespace sortie::runner {
namespace {

volatile std::sig_atomic_t end_requested = 0;
int wake_fd = -1;  // the queue's eventfd: the signal may arrive on any thread, and before poll()

/// The parent is gone, or this process was asked to end. The loop notices it. If libpmix blocks the
/// main thread, SIGALRM ends the process.
void on_end_signal(int) {
  end_requested = 1;
  const std::uint64_t one = 1;
  (void)!write(wake_fd, &one, sizeof one);
  alarm(2);
}

void set_up_signals(int queue_fd) {
  wake_fd = queue_fd;
  struct sigaction action = {};
  action.sa_handler = on_end_signal;
  sigaction(SIGTERM, &action, nullptr);
  // The runner handles Ctrl-C: ranks may still need this server while they write checkpoints.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGHUP, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
}

/// Timeout of poll() until `time`; -1 (no timeout) if nothing is scheduled.
int poll_limit(std::optional<DirectModex::Time> time) {
  if (!time) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*time - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

/// Waits until the runner or libpmix has sent something, or until `due`. Returns false if the
/// process must end.
bool wait_for_work(FramePipe& pipe, int queue_fd, std::optional<DirectModex::Time> due) {
  const short out_events = pipe.wants_write() ? POLLOUT : 0;
  pollfd fds[] = {{pipe.in_fd(), POLLIN, 0}, {queue_fd, POLLIN, 0}, {pipe.out_fd(), out_events, 0}};
  if (end_requested) return false;  // the signal's wake-up may have been consumed with the queue's
  return (poll(fds, 3, poll_limit(due)) >= 0 || errno == EINTR) && !end_requested;
}

Result<> serve(FramePipe& pipe, UpcallQueue& queue, std::string& tmp_dir) {
  std::optional<PmixServer> server;
  Result<> result;
  const auto step = [&]() -> Result<bool> {
    SORTIE_TRY(pipe.flush());
    SORTIE_ASSIGN_OR_RETURN(const bool open, pipe.fill());
    while (true) {
      SORTIE_ASSIGN_OR_RETURN(std::optional<wire::Message> message, pipe.next());
      if (!message) break;
      if (server) {
        SORTIE_TRY(server->handle(std::move(*message)));
        continue;
      }
      const auto* setup = std::get_if<wire::PmixSetup>(&*message);
      if (!setup) return fail(ErrorCode::protocol, "the first message must be PmixSetup");
      tmp_dir = setup->tmp_dir;
      SORTIE_ASSIGN_OR_RETURN(PmixServer started, PmixServer::start(*setup, pipe, queue));
      SORTIE_TRY(pipe.send(started.ready()));
      server.emplace(std::move(started));
    }
    if (server) {
      SORTIE_TRY(server->handle_upcalls());
      SORTIE_TRY(server->handle_due());
    }
    return open;
  };
  const auto due = [&] { return server ? server->next_due() : std::nullopt; };
  while (wait_for_work(pipe, queue.fd(), due())) {
    const Result<bool> open = step();
    if (!open) result = std::unexpected(open.error());
    if (!open || !*open) break;
  }
  if (server) server->finalize();
  return result;
}

/// Removes the contents only: tmp_dir itself belongs to the runner.
void empty_directory(const std::string& path) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored))
    std::filesystem::remove_all(entry.path(), ignored);
}

int run() {
  const Result<UpcallQueue*> queue = UpcallQueue::create();
  if (!queue) {
    fmt::print(stderr, "sortie-pmix: {}\n", queue.error().message);
    return kExitFailed;
  }
  set_up_signals((*queue)->fd());
  // Frames use separate descriptors, so that output of libpmix or a plugin can not corrupt them.
  Fd in(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  Fd out(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  const Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  dup2(null.get(), STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  FramePipe pipe(std::move(in), std::move(out));
  std::string tmp_dir;
  const Result<> result = serve(pipe, **queue, tmp_dir);
  if (!tmp_dir.empty()) empty_directory(tmp_dir);
  if (result) return kExitOk;
  if (pipe.send(wire::RunnerError{std::string(error_code_name(result.error().code)),
                                  result.error().message, -1}))
    (void)pipe.flush();
  fmt::print(stderr, "sortie-pmix: {}\n", result.error().message);
  return exit_code_for(result.error().code);
}

}  // namespace
}  // namespace sortie::runner

int main(int argc, char** argv) {
  const bool probing = argc == 3 && std::string_view(argv[1]) == "--probe";
  const int code = probing ? sortie::runner::probe_libraries(argv[2]) : sortie::runner::run();
  std::fflush(nullptr);
  _exit(code);  // no destructors: libpmix's threads may still run
}
