#include "runner/helper/health_helper.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "common/base/c_strings.h"
#include "common/base/fd.h"
#include "common/base/pipe.h"
#include "common/base/process_status.h"
#include "common/health/finding.h"
#include "runner/helper/health_binary.h"
#include "runner/process/carried_program.h"
#include "runner/process/process_tree.h"
#include "runner/streams/event_socket.h"

namespace sortie::runner {
namespace {

/// Runs in the child, a direct child of the runner that dies with it.
[[noreturn]] void become_helper(const std::string& path, const std::vector<std::string>& argv,
                                const std::vector<std::string>& env, int output, pid_t runner,
                                const ProcessDefaults& defaults) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != runner) ::_exit(127);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(null, 0);
  ::dup2(output, 1);
  cloexec_all_descriptors();
  if (::chdir("/") != 0) ::_exit(127);
  restore(defaults);
  ::execve(path.c_str(), c_strings(argv).data(), c_strings(env).data());
  ::_exit(126);
}

}  // namespace

HealthHelper::HealthHelper(boost::asio::io_context& io, const ProcessDefaults& defaults,
                           Parts parts)
    : defaults_(defaults),
      parts_(std::move(parts)),
      output_(io),
      restart_(io.get_executor()),
      gone_(io) {}

void HealthHelper::start() {
  if (stopped_) return;
  if (const Result<> launched = launch(); !launched) lost(launched.error().message);
}

Result<> HealthHelper::launch() {
  SORTIE_ASSIGN_OR_RETURN(Pipe pipe, make_pipe());
  Fd mine = std::move(pipe.read), its = std::move(pipe.write);
  if (::fcntl(mine.get(), F_SETFL, O_NONBLOCK) != 0)
    return std::unexpected(os_error(errno, "O_NONBLOCK"));
  Fd program;
  SORTIE_ASSIGN_OR_RETURN(const std::string path,
                          unpack_program("sortie-health", health_binary(), parts_.folder, program));
  const std::vector<std::string> argv = health_argv(parts_.folders, environ);
  boost::system::error_code error;
  output_.assign(mine.get(), error);
  if (error) return fail(ErrorCode::io, "epoll: " + error.message());
  mine.release();
  const pid_t runner = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    Error why = os_error(errno, "fork");
    output_.close();
    return std::unexpected(std::move(why));
  }
  if (pid == 0) become_helper(path, argv, parts_.env, its.get(), runner, defaults_);
  pid_ = pid;
  parts_.on_pid(pid);
  line_.clear();
  skipping_ = false;
  await_lines();
  return {};
}

void HealthHelper::await_lines() {
  output_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this](const boost::system::error_code& error) {
                       if (error || stopped_) return;
                       if (read_lines()) return await_lines();
                       output_.close();  // it has exited, or will soon be reaped
                     });
}

/// Returns false at the end of the stream.
bool HealthHelper::read_lines() {
  std::array<char, 16 << 10> bytes;
  const ssize_t count = ::read(output_.native_handle(), bytes.data(), bytes.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  for (const char c : std::string_view(bytes.data(), static_cast<std::size_t>(count))) {
    if (c != '\n') {
      skipping_ = skipping_ || line_.size() >= kMaxLineBytes;
      if (!skipping_) line_ += c;
      continue;
    }
    if (!skipping_ && is_event_line(line_)) parts_.on_line(std::move(line_));
    line_.clear();
    skipping_ = false;
  }
  return true;
}

void HealthHelper::reaped(pid_t pid, int wait_status) {
  if (pid != pid_) return;
  pid_ = -1;
  gone_.notify();
  if (stopped_) return;
  // First pass on what it wrote before its exit.
  for (int pieces = 0; pieces < 16 && output_.is_open() && read_lines(); ++pieces) {
  }
  if (output_.is_open()) output_.close();
  lost("it ended with " + ProcessStatus::from_wait_status(wait_status).to_string());
}

void HealthHelper::lost(const std::string& why) {
  health::Finding finding{.kind = health::Kind::helper_lost, .source = "runner"};
  const bool again = restarts_++ < kMostRestarts;
  finding.text = why;
  if (again) finding.text += fmt::format("; it is started again in {} s", kRestartPause.count());
  parts_.on_line(health::to_line(finding));
  if (!again) return;
  restart_.set(kRestartPause, [this] { start(); });
}

void HealthHelper::stop() {
  stopped_ = true;
  restart_.cancel();
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

boost::asio::awaitable<void> HealthHelper::wait_gone(std::chrono::steady_clock::duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (running() && std::chrono::steady_clock::now() < deadline)
    co_await gone_.wait(deadline - std::chrono::steady_clock::now());
}

std::vector<std::string> health_argv(const std::vector<std::string>& folders,
                                     char* const* environment) {
  std::vector<std::string> argv = {"sortie-health"};
  for (const std::string& folder : folders) {
    argv.emplace_back("--folder");
    argv.push_back(folder);
  }
  constexpr std::array<std::pair<std::string_view, const char*>, 4> kOverrides = {{
      {"SORTIE_HEALTH_KMSG=", "--kmsg"},
      {"SORTIE_HEALTH_NVML=", "--nvml"},
      {"SORTIE_HEALTH_ROOT=", "--root"},
      {"SORTIE_HEALTH_TICK_MS=", "--tick-ms"},
  }};
  for (char* const* entry = environment; entry && *entry; ++entry)
    for (const auto& [name, option] : kOverrides)
      if (const std::string_view line = *entry; line.starts_with(name)) {
        argv.emplace_back(option);
        argv.emplace_back(line.substr(name.size()));
      }
  return argv;
}

}  // namespace sortie::runner
