#include "launcher/run/ask_trainer.h"

#include <fmt/core.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/c_strings.h"
#include "common/base/fd.h"
#include "common/base/pipe.h"
#include "common/base/process_status.h"

namespace sortie::launcher {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMostOutput = std::size_t{4} << 20;  // with thousands of stages

/// Returns an anonymous file with the content `text`. Unlike a pipe it needs no reader: the child
/// may read slowly or not at all.
Result<Fd> file_of(std::string_view text) {
  Fd file(::memfd_create("sortie-plan", MFD_CLOEXEC));
  if (!file) return std::unexpected(os_error(errno, "memfd_create"));
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return std::unexpected(os_error(errno, "memfd"));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

/// A child process in a separate process group, with stdout and stderr in pipes. Killed by the
/// destructor.
class TrainerProcess {
 public:
  TrainerProcess() = default;
  TrainerProcess(const TrainerProcess&) = delete;
  TrainerProcess& operator=(const TrainerProcess&) = delete;
  ~TrainerProcess() {
    if (pid_ < 0) return;
    ::kill(-pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }

  Result<> start(const std::vector<std::string>& arguments, const Fd& input) {
    SORTIE_ASSIGN_OR_RETURN(Pipe out, make_pipe(ErrorCode::io));
    SORTIE_ASSIGN_OR_RETURN(Pipe error, make_pipe(ErrorCode::io));
    output_ = std::move(out.read);
    errors_ = std::move(error.read);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_adddup2(&actions, input.get(), 0);
    ::posix_spawn_file_actions_adddup2(&actions, out.write.get(), 1);
    ::posix_spawn_file_actions_adddup2(&actions, error.write.get(), 2);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int failed = ::posix_spawn(&pid_, arguments.front().c_str(), &actions, &attributes,
                                     c_strings(arguments).data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (failed == 0) return {};
    pid_ = -1;
    return std::unexpected(os_error(failed, arguments.front()));
  }

  /// Reads both pipes to their end. ErrorCode::timeout after `end`, ErrorCode::protocol for too
  /// much output.
  Result<> read_all(Clock::time_point end, std::string& output, std::string& errors) {
    struct Stream {
      Fd& fd;
      std::string& text;
    };
    Stream streams[] = {{output_, output}, {errors_, errors}};
    while (output_ || errors_) {
      pollfd waiting[2] = {{output_.get(), POLLIN, 0}, {errors_.get(), POLLIN, 0}};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (left.count() <= 0) return fail(ErrorCode::timeout, "has not answered in time");
      const int ready = ::poll(waiting, 2, static_cast<int>(left.count()));
      if (ready < 0 && errno != EINTR) return std::unexpected(os_error(errno, "poll"));
      if (ready <= 0) continue;
      for (std::size_t i = 0; i < 2; ++i) {
        if (waiting[i].revents == 0) continue;
        char bytes[4096];
        const ssize_t got = ::read(streams[i].fd.get(), bytes, sizeof bytes);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
          streams[i].fd.reset();
          continue;
        }
        streams[i].text.append(bytes, static_cast<std::size_t>(got));
        if (streams[i].text.size() > kMostOutput)
          return fail(ErrorCode::protocol, "wrote more than 4 MiB");
      }
    }
    return {};
  }

  /// Waits for the exit of the process after its pipes were closed. Kills it after `end`.
  ProcessStatus wait(Clock::time_point end) {
    int status = 0;
    for (;;) {
      const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
      if (ended == pid_) break;
      if (ended < 0 && errno != EINTR) return {.kind = ProcessStatus::Kind::lost};
      if (Clock::now() > end) ::kill(-pid_, SIGKILL);
      ::usleep(500);
    }
    pid_ = -1;
    return ProcessStatus::from_wait_status(status);
  }

 private:
  pid_t pid_ = -1;
  Fd output_, errors_;
};

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

Result<training::ModelCost> read_answer(const std::filesystem::path& trainer,
                                        const ProcessStatus& status, const std::string& output,
                                        const std::string& errors) {
  const std::string name = trainer.string();
  const auto json = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  const std::string version =
      json.is_object() && json.contains("version") && json["version"].is_string()
          ? json["version"].get<std::string>()
          : std::string();
  if (!version.empty() && version != SORTIE_VERSION)
    return fail(ErrorCode::unsupported,
                fmt::format("{} is version {}, this is {}; install both from "
                            "one build",
                            name, version, SORTIE_VERSION));
  if (!version.empty() && json.contains("error") && json["error"].is_string())
    return fail(ErrorCode::config, json["error"].get<std::string>());
  // Lost: the parent process of sortie ignored SIGCHLD, so the status is unknown. The answer
  // decides.
  if (!status.success() && status.kind != ProcessStatus::Kind::lost)
    return fail(
        ErrorCode::unsupported,
        fmt::format("{} plan: {}{}{}; install the sortie-train of this build, or raise the "
                    "limit of this shell that stops it (`ulimit -a`)",
                    name, status.to_string(), errors.empty() ? "" : ": ", first_line(errors)));
  Result<training::ModelCost> cost = training::parse_model_cost(output);
  if (!cost) return std::unexpected(with_context(std::move(cost).error(), name + " plan"));
  if (cost->version != SORTIE_VERSION)
    return fail(ErrorCode::unsupported,
                fmt::format("{} does not state its version; install the sortie-train of this "
                            "build",
                            name));
  return cost;
}

}  // namespace

Result<training::ModelCost> ask_trainer(const std::filesystem::path& trainer,
                                        const CostQuestion& question,
                                        std::chrono::milliseconds limit) {
  std::error_code ignored;
  if (!std::filesystem::exists(trainer, ignored))
    return fail(ErrorCode::not_found,
                fmt::format("there is no {}; install sortie-train in the folder of sortie",
                            trainer.string()));
  const auto end = Clock::now() + limit;
  SORTIE_ASSIGN_OR_RETURN(const Fd input, file_of(question.config_toml));
  TrainerProcess process;
  SORTIE_TRY(process.start({trainer.string(), "plan", "--config", "-", "--json", "--world",
                            fmt::format("{}", question.world_size), "--micro-batch",
                            fmt::format("{}", question.micro_batch_size), "--threads",
                            fmt::format("{}", question.threads)},
                           input));
  std::string output, errors;
  if (Result<> read = process.read_all(end, output, errors); !read)
    return std::unexpected(with_context(std::move(read).error(), trainer.string() + " plan"));
  return read_answer(trainer, process.wait(end), output, errors);
}

}  // namespace sortie::launcher
