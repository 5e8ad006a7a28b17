#include "runner/tunnel/tool.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "common/base/c_strings.h"
#include "common/base/pipe.h"
#include "common/base/printable.h"
#include "common/base/process_status.h"
#include "runner/process/process_tree.h"

namespace sortie::runner::tunnel {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLimit{5000};
constexpr std::size_t kMaxOutput = 4u << 20;
constexpr std::size_t kMaxComplaint = 300;
constexpr useconds_t kReapPause = 1000;
constexpr std::string_view kFolders =
    "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

[[noreturn]] void become(const std::vector<std::string>& argv,
                         const std::vector<std::string>& variables, int in, int out, int error,
                         pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(in >= 0 ? in : null, 0);
  ::dup2(out, 1);
  ::dup2(error, 2);
  cloexec_all_descriptors();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  for (const std::string& entry : variables) ::putenv(const_cast<char*>(entry.c_str()));
  ::execv(argv.front().c_str(), c_strings(argv).data());
  ::_exit(127);
}

/// Writes stdin and reads both outputs to their end. Returns false at the deadline.
bool exchange(Fd in, std::string_view input, const Fd& out, const Fd& error, Clock::time_point end,
              std::string& output, std::string& complaint) {
  ::fcntl(in.get(), F_SETFL, O_NONBLOCK);
  pollfd waiting[3] = {{in.get(), POLLOUT, 0}, {out.get(), POLLIN, 0}, {error.get(), POLLIN, 0}};
  std::string* texts[3] = {nullptr, &output, &complaint};
  while (waiting[1].fd >= 0 || waiting[2].fd >= 0) {
    const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    const int ready = ::poll(waiting, 3, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    if (waiting[0].revents != 0) {
      const ssize_t count = ::write(in.get(), input.data(), input.size());
      if (count > 0) input.remove_prefix(static_cast<std::size_t>(count));
      if (input.empty() || (count < 0 && errno != EAGAIN && errno != EINTR)) {
        in.reset();
        waiting[0].fd = -1;
      }
    }
    for (int i = 1; i < 3; ++i) {
      if (waiting[i].fd < 0 || waiting[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = ::read(waiting[i].fd, buffer, sizeof buffer);
      if (count == 0 || (count < 0 && errno != EINTR)) waiting[i].fd = -1;
      if (count > 0 && texts[i]->size() < kMaxOutput)
        texts[i]->append(buffer, static_cast<std::size_t>(count));
    }
  }
  return true;
}

bool reap(pid_t pid, Clock::time_point deadline, int& status) {
  for (;;) {
    if (::waitpid(pid, &status, WNOHANG) != 0) return true;
    if (Clock::now() >= deadline) return false;
    ::usleep(kReapPause);
  }
}

}  // namespace

std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\t') c = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return printable(text);
}

std::string find_tool(const std::string& name) {
  const char* path = ::getenv("PATH");
  std::string folders = fmt::format("{}:{}", path ? path : "", kFolders);
  std::string_view left = folders;
  while (!left.empty()) {
    const std::string_view folder = left.substr(0, left.find(':'));
    left.remove_prefix(std::min(left.size(), folder.size() + 1));
    if (!folder.starts_with('/')) continue;
    std::string file = fmt::format("{}/{}", folder, name);
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

Result<std::string> run_tool(const std::vector<std::string>& argv, const std::string& input) {
  SORTIE_ASSIGN_OR_RETURN(Pipe in, make_pipe());
  SORTIE_ASSIGN_OR_RETURN(Pipe out, make_pipe());
  SORTIE_ASSIGN_OR_RETURN(Pipe error, make_pipe());
  const auto deadline = Clock::now() + kLimit;
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return std::unexpected(os_error(errno, "fork", ErrorCode::spawn));
  if (pid == 0) become(argv, {}, in.read.get(), out.write.get(), error.write.get(), parent);
  in.read.reset();
  out.write.reset();
  error.write.reset();
  std::string output, complaint;
  int status = 0;
  if (!exchange(std::move(in.write), input, out.read, error.read, deadline, output, complaint) ||
      !reap(pid, deadline, status)) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
    return fail(ErrorCode::timeout,
                fmt::format("{}: no end within {} s", argv[0], kLimit.count() / 1000));
  }
  if (const ProcessStatus ended = ProcessStatus::from_wait_status(status); !ended.success())
    return fail(ErrorCode::io,
                fmt::format("{} {}: {}", argv[0], argv.size() > 1 ? argv[1] : "",
                            complaint.empty() ? ended.to_string()
                                              : one_line(complaint.substr(0, kMaxComplaint))));
  return output;
}

Result<Service> start_service(const std::vector<std::string>& argv,
                              const std::vector<std::string>& variables) {
  SORTIE_ASSIGN_OR_RETURN(Pipe out, make_pipe());
  const pid_t parent = ::getpid();
  Service service;
  service.pid = ::fork();
  if (service.pid < 0) return std::unexpected(os_error(errno, "fork", ErrorCode::spawn));
  if (service.pid == 0) become(argv, variables, -1, out.write.get(), out.write.get(), parent);
  service.output = std::move(out.read);
  ::fcntl(service.output.get(), F_SETFL, O_NONBLOCK);
  return service;
}

std::optional<ProcessStatus> ended(Service& service) {
  // With pid -1, waitpid() would report any child.
  if (service.pid <= 0) return std::nullopt;
  int status = 0;
  if (::waitpid(service.pid, &status, WNOHANG) != service.pid) return std::nullopt;
  service.pid = -1;
  return ProcessStatus::from_wait_status(status);
}

void end_service(Service& service) {
  if (service.pid <= 0) return;
  int status = 0;
  ::kill(service.pid, SIGKILL);
  ::waitpid(service.pid, &status, 0);
  service.pid = -1;
}

}  // namespace sortie::runner::tunnel
