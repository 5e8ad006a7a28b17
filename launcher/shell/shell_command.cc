#include "launcher/shell/shell_command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "common/asio/run.h"
#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/config/hostgroups.h"
#include "common/config/hostlist.h"
#include "launcher/console/output_options.h"
#include "launcher/run/run_command.h"
#include "launcher/run/run_folder.h"
#include "launcher/shell/shell_history.h"
#include "launcher/shell/shell_session.h"
#include "launcher/warm/warm_transport.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::size_t kMostWords = 5000;

/// Completions after '@'.
std::vector<std::string> words_to_complete(const std::vector<std::string>& hosts,
                                           const config::RunnerConfig& runner) {
  std::vector<std::string> words;
  if (const auto groups = config::HostGroups::load(runner.groups_file))
    for (const std::string& name : groups->names()) words.push_back("@" + name);
  for (const std::string& host : hosts)
    if (words.size() < kMostWords) words.push_back("@" + host);
  return words;
}

/// Sets the path of the history file and loads its lines.
Result<> open_history(const std::string& log_dir, Prompt::Options& prompt) {
  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path state, state_folder(log_dir));
  const std::filesystem::path file = state / "shell_history";
  SORTIE_ASSIGN_OR_RETURN(prompt.before, load_history(file));
  std::error_code error;
  std::filesystem::create_directories(state, error);
  if (error) return std::unexpected(os_error(error.value(), state.string()));
  prompt.history = file;
  return {};
}

}  // namespace

int shell_command(const ShellOptions& options) {
  const auto give_up = [](const Error& error) {
    print_stderr("{}\n", printable_lines(error.message));
    return exit_code_for(error.code);
  };
  if (options.job.hosts.empty() && options.job.config.empty())
    return give_up({ErrorCode::usage,
                    "sortie: no hosts: give --hosts or --config; try `sortie shell --help`"});
  auto loaded = load_options(options.job);
  if (!loaded) return give_up(loaded.error());
  resolve_job_paths(loaded->job);
  const config::RunnerConfig& runner = loaded->job.runner;
  init_log(loaded->job.logger.log_level);
  const auto slots = config::job_hosts(runner);
  if (!slots) return give_up(slots.error());
  std::vector<std::string> hosts;
  for (const config::HostSlots& host : *slots) hosts.push_back(host.name);
  auto binary = open_runner_binary();
  if (!binary) return give_up(binary.error());
  std::signal(SIGPIPE, SIG_IGN);

  Console::Style style = Console::detect();
  style.prefix = Console::Prefix::host;
  // Large enough to drop nothing: the session waits instead.
  style.queue_bytes = std::size_t{1} << 30;
  Console console(style);
  Prompt::Options prompt;
  prompt.terminal = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  if (prompt.terminal) {
    prompt.words = words_to_complete(hosts, runner);
    if (!options.no_history)
      if (auto opened = open_history(loaded->job.logger.log_dir, prompt); !opened)
        console.error(fmt::format("{}; lines are not kept", opened.error().message));
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string run_id =
      fmt::format("shell-{:x}-{:x}",
                  std::chrono::duration_cast<std::chrono::microseconds>(now).count(), ::getpid());
  asio::io_context io(1);
  const auto transport = make_fleet_transport(io.get_executor(), runner, *binary);
  ShellSession session({io.get_executor(), *transport, *binary, console, runner, prompt}, hosts,
                       run_id);
  run_to_end(io, session.run());
  return session.exit_code();
}

}  // namespace sortie::launcher
