#include "launcher/exec/exec_command.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <csignal>

#include "common/asio/run.h"
#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/config/hostlist.h"
#include "common/config/text.h"
#include "launcher/console/output_options.h"
#include "launcher/console/terminal_signals.h"
#include "launcher/exec/exec_run.h"
#include "launcher/exec/fold_sink.h"
#include "launcher/exec/sinks.h"
#include "launcher/local/open_files.h"
#include "launcher/warm/warm_transport.h"

namespace sortie::launcher {
namespace asio = boost::asio;

namespace {

constexpr std::size_t kReportBacklog = 1u << 20;

Result<std::chrono::milliseconds> duration_option(const char* name, const std::string& text) {
  auto value = config::parse_duration(text);
  if (!value)
    return fail(ErrorCode::usage,
                fmt::format("sortie: {} {}: {}", name, text, value.error().message));
  if (value->count() > 24ll * 3600 * 1000)
    return fail(ErrorCode::usage, fmt::format("sortie: {} {}: use at most 24h", name, text));
  return value;
}

struct Prepared {
  config::LoadedJob loaded;
  ExecJob job;
};

Result<Prepared> prepare(const ExecOptions& options) {
  Prepared prepared;
  if (options.job.hosts.empty() && options.job.config.empty())
    return fail(ErrorCode::usage,
                "sortie: no hosts: give --hosts or --config; try `sortie exec --help`");
  if (options.job.program.empty())
    return fail(ErrorCode::usage, "sortie: no command was given; write it after --");
  if (options.json && options.fold)
    return fail(ErrorCode::usage, "sortie: --json and --fold exclude each other; use one of them");
  SORTIE_ASSIGN_OR_RETURN(prepared.loaded, load_options(options.job));
  config::RunnerConfig& runner = prepared.loaded.job.runner;
  resolve_job_paths(prepared.loaded.job);
  ExecJob& job = prepared.job;
  SORTIE_ASSIGN_OR_RETURN(const auto slots, config::job_hosts(runner));
  for (const config::HostSlots& host : slots) job.hosts.push_back(host.name);
  job.argv = runner.program;
  job.fanout = static_cast<std::size_t>(options.fanout > 0 ? options.fanout : runner.ssh.fanout);
  job.grace = runner.grace;
  if (!options.grace.empty()) {
    SORTIE_ASSIGN_OR_RETURN(job.grace, duration_option("--grace", options.grace));
  }
  if (!options.timeout.empty()) {
    SORTIE_ASSIGN_OR_RETURN(job.timeout, duration_option("--timeout", options.timeout));
    if (job.timeout.count() == 0)
      return fail(ErrorCode::usage, "sortie: --timeout 0: leave it out for no timeout");
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  job.run_id =
      fmt::format("exec-{:x}-{:x}",
                  std::chrono::duration_cast<std::chrono::microseconds>(now).count(), ::getpid());
  return prepared;
}

/// Handles signals until the commands are done; then show_rest() does.
asio::awaitable<void> watch_signals(asio::signal_set& signals, ExecRun& run, Console& console) {
  for (;;) {
    const auto [error, number] = co_await signals.async_wait(kToken);
    if (error) co_return;
    if (number == SIGTSTP)
      console.message(ctrl_z_refusal(""));
    else
      run.interrupt(number);
  }
}

/// Prints the remaining output as fast as stdout accepts it; stops after Ctrl-C or if stdout fails.
asio::awaitable<void> show_rest(asio::any_io_executor executor, Console& console, FoldSink* fold,
                                asio::signal_set& signals) {
  asio::steady_timer pause(executor);
  const auto given_up = std::make_shared<bool>(false);
  signals.cancel();
  signals.async_wait([given_up](const boost::system::error_code& error, int) {
    if (!error) *given_up = true;
  });
  bool more = fold != nullptr;
  while (!*given_up && console.out_error() == 0 && (more || console.backlog() > 0)) {
    if (more && console.backlog() < kReportBacklog) {
      const std::optional<std::string> piece = fold->next_piece();
      more = piece.has_value();
      if (more) console.plain(*piece);
      continue;
    }
    pause.expires_after(std::chrono::milliseconds(1));
    co_await pause.async_wait(kToken);
  }
  signals.cancel();
}

asio::awaitable<void> run_and_show(ExecRun& run, asio::any_io_executor executor, Console& console,
                                   FoldSink* fold, asio::signal_set& signals) {
  co_await run.run();
  signals.remove(SIGTSTP);  // no command runs any more
  co_await show_rest(executor, console, fold, signals);
}

/// Detects a forgotten --stdin: "cat x | sortie exec -- tee y" would write an empty y on all hosts.
bool has_unread_pipe() {
  struct stat info {};
  int bytes = 0;
  return ::fstat(0, &info) == 0 && S_ISFIFO(info.st_mode) && ::ioctl(0, FIONREAD, &bytes) == 0 &&
         bytes > 0;
}

}  // namespace

int exec_command(const ExecOptions& options) {
  auto prepared = prepare(options);
  if (!prepared) {
    print_stderr("{}\n", printable_lines(prepared.error().message));
    return exit_code_for(prepared.error().code);
  }
  const config::JobConfig& config = prepared->loaded.job;
  const ExecJob& job = prepared->job;
  init_log(config.logger.log_level);
  raise_open_file_limit();
  std::signal(SIGPIPE, SIG_IGN);

  asio::io_context io(1);
  Console::Style style = Console::detect();
  style.prefix = options.no_prefix ? Console::Prefix::none : Console::Prefix::host;
  style.queue_bytes = std::size_t{1} << 30;  // nothing is dropped: hosts wait for credit instead
  Console console(style);
  const auto give_up = [&](const Error& error) {
    console.error(error.message);
    return exit_code_for(error.code);
  };
  auto binary = open_runner_binary();
  if (!binary) return give_up(binary.error());

  std::vector<std::unique_ptr<ExecSink>> sinks;
  std::unique_ptr<FoldSink> fold;
  std::unique_ptr<JsonSink> json;
  if (!options.output_dir.empty()) {
    auto folder = FolderSink::open(options.output_dir);
    if (!folder) return give_up(folder.error());
    sinks.push_back(std::move(*folder));
  }
  if (options.fold) {
    fold = std::make_unique<FoldSink>();
  } else if (options.json) {
    json = std::make_unique<JsonSink>(console, job.hosts.size(), job.argv);
  } else {
    sinks.push_back(std::make_unique<LiveSink>(console));
  }
  std::shared_ptr<InputSource> input;
  if (options.send_stdin) {
    auto opened = InputSource::open(io.get_executor(), 0);
    if (!opened) return give_up(opened.error());
    input = std::move(*opened);
  }

  const auto transport = make_fleet_transport(io.get_executor(), config.runner, *binary);
  ExecRun::Parts parts{io.get_executor(), *transport, *binary, console, {}, input};
  for (const auto& sink : sinks) parts.sinks.push_back(sink.get());
  if (fold) parts.sinks.push_back(fold.get());
  if (json) parts.sinks.push_back(json.get());
  const std::vector<ExecSink*> all_sinks = parts.sinks;
  ExecRun run(std::move(parts), job, config.runner);
  asio::signal_set signals(io);
  add_terminal_signals(signals);
  spawn(io, watch_signals(signals, run, console));
  run_to_end(io, run_and_show(run, io.get_executor(), console, fold.get(), signals));

  int exit_code = exec_exit_code(run.outcomes(), run.interrupted());
  if (run.input_error()) exit_code = exit_code_for(run.input_error()->code);
  if (json) json->end(run.outcomes(), exit_code);
  if (const std::string table = failure_table(run.outcomes()); !table.empty()) console.error(table);
  if (!run.cleaned().empty())
    console.message(fmt::format("processes that the command had left running were ended: {}",
                                folded_with_count(run.cleaned())));
  if (const int error = console.out_error(); error != 0 && error != EPIPE) {
    console.error(os_error(error, "sortie: write to stdout").message);
    exit_code = kExitData;
  }
  for (const ExecSink* sink : all_sinks) {
    const Error* trouble = sink->trouble();
    if (trouble == nullptr) continue;
    console.error(fmt::format("{}; output is missing from there on", trouble->message));
    if (exit_code == kExitOk) exit_code = exit_code_for(trouble->code);
  }
  if (!options.send_stdin && has_unread_pipe())
    console.message("stdin was not sent to the hosts; --stdin does that");
  return exit_code;
}

}  // namespace sortie::launcher
