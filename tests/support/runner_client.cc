#include "tests/support/runner_client.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "common/base/atomic_file.h"

namespace sortie::test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

const std::string& public_helper() {
  static const std::string path = public_copy(kHelper);
  return path;
}

std::optional<pid_t> parent_if_alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(stat)), {});
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  return std::stoi(text.substr(name_end + 4));  // skips the state; the parent follows
}

pid_t parent_of(pid_t pid) {
  if (const auto parent = parent_if_alive(pid)) return *parent;
  throw std::runtime_error("process " + std::to_string(pid) + " is gone");
}

std::vector<pid_t> children_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  return {std::istream_iterator<pid_t>(file), {}};
}

wire::JobSpec make_job(std::vector<std::string> argv, std::uint32_t ranks) {
  static int counter = 0;
  wire::JobSpec job;
  job.run_id = "test-" + std::to_string(::getpid()) + "-" + std::to_string(++counter);
  job.host = "here";
  job.world_size = ranks;
  job.argv = std::move(argv);
  job.work_dir = "/";
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    job.ranks.push_back({rank, rank, rank, {{"RANK", std::to_string(rank)}}});
  job.grace_ms = 1000;
  job.heartbeat_interval_ms = 200;
  job.heartbeat_timeout_ms = 20000;  // a test sends nothing while it checks something else
  job.nodes = {{"here", 0, 0, "", 1, 1}};
  return job;
}

namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

struct PublicFolder {
  fs::path path = "/tmp/sortie-test-bin-" + std::to_string(::getpid());
  PublicFolder() {
    fs::create_directory(path);
    fs::permissions(path, static_cast<fs::perms>(0755));
  }
  ~PublicFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

}  // namespace

std::string public_copy(const std::string& path) {
  static const PublicFolder folder;
  const fs::path copy = folder.path / fs::path(path).filename();
  if (!fs::exists(copy)) {
    fs::copy_file(path, copy);
    fs::permissions(copy, static_cast<fs::perms>(0755));
  }
  return copy;
}

RunnerClient::RunnerClient(std::string binary, std::vector<std::string> environment,
                           bool unprivileged) {
  ::signal(SIGPIPE, SIG_IGN);
  if (unprivileged) binary = public_copy(binary);
  int input[2], output[2], errors_pipe[2];
  if (::pipe2(input, O_CLOEXEC) != 0 || ::pipe2(output, O_CLOEXEC) != 0 ||
      ::pipe2(errors_pipe, O_CLOEXEC) != 0)
    std::abort();
  std::vector<char*> env;
  for (std::string& line : environment) env.push_back(line.data());
  env.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(input[0], 0);
    ::dup2(output[1], 1);
    ::dup2(errors_pipe[1], 2);
    ::signal(SIGPIPE, SIG_DFL);
    ::signal(SIGCHLD, SIG_IGN);  // the runner must cope with a careless parent
    ::signal(SIGHUP, SIG_IGN);
    if (unprivileged && ::geteuid() == 0 &&
        (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0 || ::chdir("/") != 0))
      ::_exit(126);
    const char* argv[] = {binary.c_str(), "--stdio", nullptr};
    ::execve(binary.c_str(), const_cast<char**>(argv), environment.empty() ? environ : env.data());
    ::_exit(127);
  }
  ::close(input[0]);
  ::close(output[1]);
  ::close(errors_pipe[1]);
  to_runner_.reset(input[1]);
  from_runner_.reset(output[0]);
  diagnostics_.reset(errors_pipe[0]);
  ::fcntl(diagnostics_.get(), F_SETFL, O_NONBLOCK);
}

RunnerClient::~RunnerClient() {
  to_runner_.reset();
  if (!status_ && !wait_exit(milliseconds(10000))) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void RunnerClient::send_bytes(const std::string& bytes) {
  std::string_view left = bytes;
  while (!left.empty() && to_runner_) {
    const ssize_t count = ::write(to_runner_.get(), left.data(), left.size());
    if (count < 0) return;
    left.remove_prefix(static_cast<std::size_t>(count));
  }
}

/// Reads input until the deadline, sending heartbeats meanwhile. Returns false if nothing arrived.
bool RunnerClient::read_once(Clock::time_point deadline) {
  for (;;) {
    const auto now = Clock::now();
    if (send_heartbeats && now - last_heartbeat_ > milliseconds(100)) {
      last_heartbeat_ = now;
      send(wire::Heartbeat{});
    }
    if (end_of_stream || !from_runner_) return false;
    pollfd polled = {from_runner_.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<milliseconds>(deadline - now).count();
    if (::poll(&polled, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 50))) > 0) break;
    if (Clock::now() >= deadline) return false;
  }
  char buffer[1 << 16];
  const ssize_t count = ::read(from_runner_.get(), buffer, sizeof buffer);
  if (count <= 0) {
    end_of_stream = true;
    return false;
  }
  decoder_.feed(std::string_view(buffer, static_cast<std::size_t>(count)));
  for (;;) {
    auto frame = decoder_.next();
    if (!frame) std::abort();
    if (!*frame) return true;
    auto message = wire::decode(**frame);
    if (!message) std::abort();
    take(std::move(*message));
  }
}

void RunnerClient::take(wire::Message message) {
  if (auto* beat = std::get_if<wire::Heartbeat>(&message)) {
    last_beat = std::move(*beat);
    ++beats;
    return;
  }
  if (auto* output = std::get_if<wire::Output>(&message)) {
    (output->stream == wire::Stream::out ? out : err)[output->rank] += output->bytes;
    output_bytes += output->bytes.size();
    first_output.try_emplace(output->rank, Clock::now());
    if (exited.contains(output->rank)) output_after_exit += output->bytes.size();
    if (send_credit) send(wire::OutputCredit{output->bytes.size()});
    return;
  }
  if (auto* event = std::get_if<wire::RankEvent>(&message)) {
    events[event->rank].push_back(event->json);
    return;
  }
  if (auto* exit = std::get_if<wire::RankExited>(&message)) {
    if (exited.contains(exit->rank)) std::abort();  // exactly one per rank
    exited[exit->rank] = *exit;
    beats_before_exit[exit->rank] = beats;
    exit_order.push_back(exit->rank);
  }
  if (auto* started = std::get_if<wire::RankStarted>(&message))
    pids[started->rank] = static_cast<pid_t>(started->pid);
  if (auto* error = std::get_if<wire::RunnerError>(&message)) errors.push_back(*error);
  if (std::holds_alternative<wire::Finished>(message)) finished = true;
  pending_.push_back(std::move(message));
}

std::optional<wire::Message> RunnerClient::next(Duration limit) {
  const auto deadline = Clock::now() + limit;
  while (pending_.empty())
    if (!read_once(deadline)) return std::nullopt;
  wire::Message message = std::move(pending_.front());
  pending_.pop_front();
  return message;
}

std::optional<wire::JobReady> RunnerClient::prepare(const wire::JobSpec& job) {
  send(wire::Hello{wire::kProtocolVersion, "build"});
  if (!expect<wire::Hello>()) return std::nullopt;
  send(job);
  return expect<wire::JobReady>();
}

bool RunnerClient::start(const wire::JobSpec& job) {
  if (!prepare(job)) return false;
  send(wire::Start{});
  return true;
}

bool RunnerClient::wait_finished(Duration limit) {
  const auto deadline = Clock::now() + limit;
  while (!finished)
    if (!read_once(deadline)) return false;
  return true;
}

void RunnerClient::pump(Duration time) {
  const auto deadline = Clock::now() + time;
  while (Clock::now() < deadline)
    if (!read_once(deadline) && end_of_stream) std::this_thread::sleep_until(deadline);
}

bool RunnerClient::wait_up(std::size_t ranks, Duration limit) {
  const auto deadline = Clock::now() + limit;
  while ((out.size() < ranks || pids.size() < ranks) && Clock::now() < deadline) pump(Duration(20));
  return out.size() >= ranks && pids.size() >= ranks;
}

bool RunnerClient::wait_until(const std::function<bool()>& good, Duration limit) {
  const auto deadline = Clock::now() + limit;
  while (!good()) {
    if (Clock::now() >= deadline) return false;
    pump(Duration(10));
  }
  return true;
}

bool RunnerClient::run(const wire::JobSpec& job, Duration limit) {
  if (!start(job) || !wait_finished(limit)) return false;
  send(wire::Goodbye{});
  const std::optional<ProcessStatus> status = wait_exit();
  return status && status->success();
}

std::size_t RunnerClient::unread() const {
  int bytes = 0;
  ::ioctl(from_runner_.get(), FIONREAD, &bytes);
  return static_cast<std::size_t>(bytes);
}

void RunnerClient::signal(int number) const {
  ::kill(pid_, number);
}

std::optional<ProcessStatus> RunnerClient::wait_exit(Duration limit) {
  const auto deadline = Clock::now() + limit;
  while (!status_) {
    int status = 0;
    if (::waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = ProcessStatus::from_wait_status(status);
      while (read_once(Clock::now() + milliseconds(100))) {
      }
      break;
    }
    if (Clock::now() >= deadline) return std::nullopt;
    read_once(std::min(deadline, Clock::now() + milliseconds(5)));
    if (end_of_stream || !from_runner_) std::this_thread::sleep_for(milliseconds(2));
  }
  return status_;
}

std::string RunnerClient::diagnostics() {
  char buffer[4096];
  ssize_t count = 0;
  while ((count = ::read(diagnostics_.get(), buffer, sizeof buffer)) > 0)
    diagnostics_text_.append(buffer, static_cast<std::size_t>(count));
  return diagnostics_text_;
}

std::vector<pid_t> processes_with(const std::string& marker) {
  std::vector<pid_t> found;
  DIR* dir = ::opendir("/proc");
  while (const dirent* entry = dir ? ::readdir(dir) : nullptr) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    const auto environment = read_file("/proc/" + std::to_string(pid) + "/environ", 8u << 20);
    if (!environment || environment->find(marker) == std::string::npos) continue;
    const std::size_t at = environment->find(marker);
    if (at > 0 && (*environment)[at - 1] != '\0') continue;
    found.push_back(pid);  // a zombie's environ is empty
  }
  if (dir) ::closedir(dir);
  return found;
}

bool all_gone(const std::string& marker, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::vector<pid_t> left;
  do {
    left = processes_with(marker);
    if (left.empty()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  } while (Clock::now() < deadline);
  for (pid_t pid : left) ::kill(pid, SIGKILL);
  return false;
}

std::string remains(const wire::JobSpec& job, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::string text;
  if (!all_gone("SORTIE_RUN_ID=" + job.run_id, limit)) text += "processes ";
  const std::string name = job.run_id + "-" + std::to_string(job.attempt) + "-0";
  for (const uid_t user : {::geteuid(), kNobody}) {
    const fs::path folder = fs::path("/tmp/sortie-" + std::to_string(user)) / name;
    while (fs::exists(folder) && Clock::now() < deadline)
      std::this_thread::sleep_for(milliseconds(10));
    if (fs::exists(folder)) text += folder.string() + " ";
  }
  // Memory folders that no holder of a test has removed.
  for (const uid_t user : {::geteuid(), kNobody}) {
    std::error_code none;
    const std::string prefix = "memory-" + job.run_id + "-";
    for (const auto& entry :
         fs::directory_iterator("/dev/shm/sortie-" + std::to_string(user), none))
      if (entry.path().filename().string().starts_with(prefix)) text += entry.path().string() + " ";
  }
  for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    const fs::path group = fs::path(root) / ("sortie-" + name);
    while (fs::exists(group) && Clock::now() < deadline)
      std::this_thread::sleep_for(milliseconds(10));
    if (fs::exists(group)) text += group.string() + " ";
  }
  return text;
}

std::map<std::string, std::string> shown_environment(const std::string& shown) {
  std::map<std::string, std::string> variables;
  for (std::size_t at = 0; at < shown.size();) {
    const std::size_t end = shown.find('\0', at);
    const std::string entry = shown.substr(at, end - at);
    const std::size_t equals = entry.find('=');
    if (entry.starts_with("env ") && equals != std::string::npos)
      variables[entry.substr(4, equals - 4)] = entry.substr(equals + 1);
    if (end == std::string::npos) break;
    at = end + 1;
  }
  return variables;
}

}  // namespace sortie::test
