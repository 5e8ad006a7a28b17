#include "runner/check/child.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/c_strings.h"
#include "common/base/exit_code.h"
#include "common/base/pipe.h"
#include "runner/process/process_tree.h"

namespace sortie::runner::check {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMaxText = 64u << 10;
constexpr std::size_t kMaxSaid = 300;
/// A process that survives KILL this long is stuck in the kernel; the check continues.
constexpr auto kDeathLimit = std::chrono::seconds(1);
constexpr useconds_t kPause = 1000;

[[noreturn]] void become(const std::string& path, const std::vector<std::string>& argv,
                         const std::vector<std::string>* environment, int output,
                         const ProcessDefaults& defaults) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ::dup2(null.get(), 0);
  ::dup2(output, 1);
  ::dup2(output, 2);
  restore(defaults);
  const std::vector<char*> arguments = c_strings(argv);
  if (environment)
    ::execve(path.c_str(), arguments.data(), c_strings(*environment).data());
  else
    ::execv(path.c_str(), arguments.data());
  ::dprintf(2, "%s", std::strerror(errno));
  ::_exit(errno == ENOENT ? kExitNotFound : kExitNotRunnable);
}

/// Reads to the end of the stream. Returns false at `deadline`.
bool read_all(int fd, Clock::time_point deadline, std::string& text) {
  char buffer[4096];
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{fd, POLLIN, 0};
    if (left <= 0 || ::poll(&waiting, 1, static_cast<int>(left)) <= 0) return false;
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count <= 0) return true;
    if (text.size() < kMaxText) text.append(buffer, static_cast<std::size_t>(count));
  }
}

/// Waits for the exit of `pid`. Returns false at `deadline`.
bool reap(pid_t pid, Clock::time_point deadline, int& status) {
  for (;;) {
    if (::waitpid(pid, &status, WNOHANG) == pid) return true;
    if (Clock::now() >= deadline) return false;
    ::usleep(kPause);
  }
}

/// What the child leaves becomes our own child: see process_tree.h.
void end_all_children() {
  const auto deadline = Clock::now() + kDeathLimit;
  for (;;) {
    kill_children(direct_children());
    const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
    if ((pid < 0 && errno == ECHILD) || Clock::now() >= deadline) return;
    if (pid == 0) ::usleep(kPause);
  }
}

}  // namespace

Result<ChildOutput> run_child(const std::string& path, const std::vector<std::string>& argv,
                              const std::vector<std::string>* environment, milliseconds limit,
                              const ProcessDefaults& defaults) {
  SORTIE_ASSIGN_OR_RETURN(Pipe pipe, make_pipe());
  const auto deadline = Clock::now() + limit;
  const pid_t pid = ::fork();
  if (pid < 0) return std::unexpected(os_error(errno, "fork", ErrorCode::spawn));
  if (pid == 0) become(path, argv, environment, pipe.write.get(), defaults);
  pipe.write.reset();
  ChildOutput output;
  int status = 0;
  const bool ended =
      read_all(pipe.read.get(), deadline, output.text) && reap(pid, deadline, status);
  end_all_children();
  if (!ended)
    return fail(ErrorCode::timeout, fmt::format("{}: no end within {} ms", path, limit.count()));
  output.status = ProcessStatus::from_wait_status(status);
  return output;
}

std::string beginning_of(std::string text) {
  if (text.size() > kMaxSaid) text.resize(kMaxSaid);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

nlohmann::json json_object_in(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (text[at] == '{') {
      nlohmann::json whole = nlohmann::json::parse(text.substr(at), nullptr, false);
      if (whole.is_object()) return whole;
      nlohmann::json line = nlohmann::json::parse(text.substr(at, end - at), nullptr, false);
      if (line.is_object()) return line;
    }
    at = end + 1;
  }
  return nlohmann::json::object();
}

}  // namespace sortie::runner::check
