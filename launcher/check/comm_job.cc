#include "launcher/check/comm_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/base/c_strings.h"
#include "common/base/elapsed.h"
#include "common/base/fd.h"
#include "common/base/printable.h"
#include "common/base/process_status.h"
#include "common/config/hostlist.h"
#include "common/config/load.h"
#include "common/config/stage.h"

namespace sortie::launcher::check {
namespace {

namespace fs = std::filesystem;
using CommClock = std::chrono::steady_clock;

constexpr const char* kTrainer = "sortie-train";
constexpr std::size_t kMaxShownLines = 6;
constexpr std::size_t kMaxReport = 256u << 20;

/// Temporary folder for config, run and output; removed by the destructor.
class WorkFolder {
 public:
  static Result<WorkFolder> make() {
    std::error_code error;
    std::string pattern = (fs::temp_directory_path(error) / "sortie-comm-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) return std::unexpected(os_error(errno, pattern));
    return WorkFolder(pattern);
  }
  WorkFolder(WorkFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  WorkFolder& operator=(WorkFolder&&) = delete;
  ~WorkFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  explicit WorkFolder(fs::path path) : path_(std::move(path)) {}
  fs::path path_;
};

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

/// Blocks SIGTERM, SIGINT, SIGHUP and SIGCHLD during its lifetime; next() takes them one by one.
class HeldSignals {
 public:
  HeldSignals() {
    ::sigemptyset(&set_);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) ::sigaddset(&set_, number);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~HeldSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  const sigset_t& before() const { return before_; }
  /// Waits up to `limit` for the next signal; returns 0 if none arrived.
  int next(std::chrono::milliseconds limit) const {
    const timespec wait{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
    const int number = ::sigtimedwait(&set_, nullptr, &wait);
    return number > 0 ? number : 0;
  }

 private:
  sigset_t set_, before_;
};

Result<pid_t> start(const std::vector<std::string>& argv, const fs::path& state,
                    const fs::path& output, const sigset_t& mask) {
  const Fd out(::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const Fd in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!out || !in) return std::unexpected(os_error(errno, output.string()));
  // A separate state folder: `sortie ps` does not show this run.
  std::vector<std::string> variables = {fmt::format("XDG_STATE_HOME={}", state.string())};
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (!std::string_view(*entry).starts_with("XDG_STATE_HOME=")) variables.emplace_back(*entry);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, in.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, out.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, out.get(), 2);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  // A separate process group: Ctrl-C does not reach the child directly, only via this process.
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, argv.front().c_str(), &actions, &attributes,
                                   c_strings(argv).data(), c_strings(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) return std::unexpected(os_error(failed, argv.front()));
  return pid;
}

struct Ended {
  ProcessStatus status;
  bool late = false;
  int interrupted = 0;
};

/// Waits until the child has exited. Passes signals on to it, which make it end its run; sends
/// SIGTERM at the limit, and SIGKILL if it does not exit then.
Ended wait_for(pid_t pid, const HeldSignals& signals, std::chrono::seconds limit) {
  constexpr std::chrono::seconds kToEnd{20};
  Ended ended;
  auto deadline = CommClock::now() + limit;
  bool told = false;
  for (;;) {
    int status = 0;
    const pid_t gone = ::waitpid(pid, &status, WNOHANG);
    if (gone == pid) ended.status = ProcessStatus::from_wait_status(status);
    // SIGCHLD is ignored (inherited from the parent process), so there is no exit status: only the
    // report shows how it went.
    if (gone < 0 && errno == ECHILD) ended.status = {.kind = ProcessStatus::Kind::lost};
    if (gone == pid || (gone < 0 && errno == ECHILD)) return ended;
    const int number = signals.next(std::chrono::milliseconds(200));
    if (number != 0 && number != SIGCHLD) {
      ended.interrupted = number;
      ::kill(pid, number);  // the first signal grants the grace, the next one does not
      deadline = CommClock::now() + kToEnd;
      told = true;
    }
    if (CommClock::now() < deadline) continue;
    if (told) ::kill(pid, SIGKILL);
    if (!told) ::kill(pid, SIGTERM);
    ended.late = ended.late || ended.interrupted == 0;
    told = true;
    deadline = CommClock::now() + kToEnd;
  }
}

/// The last lines of the output of a failed run.
std::string said(const fs::path& output) {
  std::vector<std::string> lines;
  std::istringstream text(content_of(output));
  for (std::string line; std::getline(text, line);)
    if (!line.empty()) lines.push_back(printable(line));
  if (lines.size() > kMaxShownLines) lines.erase(lines.begin(), lines.end() - kMaxShownLines);
  return fmt::format("{}", fmt::join(lines, "\n       "));
}

Result<CommReport> measure(const config::JobConfig& job, const CommOptions& options,
                           const fs::path& sortie, int& interrupted) {
  SORTIE_ASSIGN_OR_RETURN(const WorkFolder folder, WorkFolder::make());
  const fs::path config = folder / "comm.toml", output = folder / "output";
  std::ofstream(config) << config::to_toml(job);
  const HeldSignals signals;
  SORTIE_ASSIGN_OR_RETURN(const pid_t pid,
                          start({sortie.string(), "run", config.string(), "--name", "check --comm"},
                                folder / "state", output, signals.before()));
  const Ended ended = wait_for(pid, signals, options.limit);
  interrupted = ended.interrupted;
  if (ended.interrupted != 0) return fail(ErrorCode::interrupted, "interrupted");
  if (ended.late)
    return fail(ErrorCode::timeout,
                fmt::format("not measured: not done within {} s; a --comm-timeout of more seconds "
                            "or less --comm-bytes, or fewer hosts",
                            options.limit.count()));
  if (!ended.status.success() && ended.status.kind != ProcessStatus::Kind::lost)
    return fail(ErrorCode::rank_failed,
                fmt::format("not measured: the job that measures ended with {}:\n       {}",
                            ended.status.to_string(), said(output)));
  const fs::path log = folder / "state" / "sortie" / "runs" / "latest" / "logs" / "rank-0.out";
  std::error_code error;
  if (const auto size = fs::file_size(log, error); error || size > kMaxReport)
    return fail(ErrorCode::protocol, error ? fmt::format("{}: {}", log.string(), error.message())
                                           : "the report of rank 0 is too large");
  return parse_comm_report(content_of(log));
}

}  // namespace

config::JobConfig comm_job(const PlannedJob& job, const CommOptions& options,
                           const std::string& trainer) {
  config::JobConfig out;
  out.runner = job.loaded.job.runner;
  config::RunnerConfig& runner = out.runner;
  std::vector<config::HostSlots> hosts;
  for (const HostPlan& host : job.plan.hosts) {
    config::HostSlots slots{host.name, {}};
    for (const RankPlan& rank : host.ranks) slots.slots.push_back(rank.slot);
    if (!options.all_ranks) slots.slots.resize(1);
    hosts.push_back(std::move(slots));
  }
  runner.hosts = config::host_lines(hosts);
  runner.hosts_file.clear();
  // The trainer that the job uses: staged, or in an image.
  const bool of_trainer = job.loaded.job.runner.program.empty();
  runner.program = {of_trainer ? job.plan.argv.front() : trainer,
                    "bench",
                    "comm",
                    "--links",
                    "--json",
                    "--link-repeats",
                    "3",
                    "--link-bytes",
                    fmt::format("{}", options.bytes)};
  if (options.all_ranks) runner.program.insert(runner.program.end(), {"--link-ranks", "all"});
  std::erase_if(runner.stage, [&](const std::string& item) {
    return !of_trainer || config::parse_stage_item(item).name != kTrainer;
  });
  if (runner.mpi == "off") runner.mpi = "auto";
  runner.on_launcher_loss = "kill";
  runner.grace = std::min<config::Milliseconds>(runner.grace, std::chrono::seconds(2));
  out.logger.tensorboard = false;
  out.watchdog.hangs = false;
  return out;
}

CommEnd run_comm_job(const config::JobConfig& job, const CommOptions& options,
                     const fs::path& sortie) {
  const auto begin = CommClock::now();
  CommEnd end;
  auto report = measure(job, options, sortie, end.interrupted);
  end.outcome.seconds = seconds_since(begin);
  if (!report) {
    end.outcome.error = std::move(report).error();
    return end;
  }
  end.outcome.report = std::move(*report);
  end.outcome.judgement = judge_comm(end.outcome.report, options.floor_gbit_s);
  return end;
}

}  // namespace sortie::launcher::check
