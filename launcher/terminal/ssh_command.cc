#include "launcher/terminal/ssh_command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "common/asio/run.h"
#include "common/base/c_strings.h"
#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/base/printable.h"
#include "launcher/console/output_options.h"
#include "launcher/host/terminal_channel.h"
#include "launcher/host/transport_router.h"
#include "launcher/run/run_command.h"
#include "launcher/ssh/argv_transport.h"
#include "launcher/ssh/system_ssh.h"
#include "launcher/terminal/terminal_client.h"
#include "launcher/warm/warm_terminal.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

/// Whether `host` is a host expression. An address in brackets is none.
bool is_expression(const std::string& host) {
  if (host.starts_with('[')) return !host.contains(':');
  return host.starts_with('@') || host.find_first_of("[,!") != host.npos;
}

Result<std::string> one_host(const std::string& host, const config::RunnerConfig& runner) {
  if (host.starts_with('-'))
    return fail(ErrorCode::usage, fmt::format("sortie ssh: {}: is no host; options stand before "
                                              "the host",
                                              host));
  if (!is_expression(host)) return host;
  SORTIE_ASSIGN_OR_RETURN(const std::vector<std::string> hosts, expand_hosts(host, runner));
  if (hosts.size() != 1)
    return fail(ErrorCode::usage,
                fmt::format("sortie ssh: {}: is {} hosts; name one, or use `sortie shell --hosts "
                            "'{}'`",
                            host, hosts.size(), host));
  return hosts.front();
}

/// Whether a template requests a terminal from its program: -t, -it, --tty, --pty.
bool asks_for_terminal(const std::vector<std::string>& words) {
  return std::ranges::any_of(words, [](const std::string& word) {
    if (word.starts_with("--")) return word.starts_with("--tty") || word.starts_with("--pty");
    return word.size() > 1 && word.size() <= 4 && word.front() == '-' && word.contains('t');
  });
}

/// Returns the argv of the program that reaches the host, for a session with or without a terminal.
Result<std::vector<std::string>> program_words(const SshOptions& options,
                                               const config::RunnerConfig& runner,
                                               const std::string& host, bool terminal) {
  const std::string command = joined(options.command);
  std::vector<std::string> words;
  if (runner.transport.empty()) {
    words = ssh::system_ssh_session_words(runner.ssh, host, terminal);
    if (!command.empty()) words.push_back(command);
    return words;
  }
  words = template_words(runner.transport, host);
  if (terminal && !asks_for_terminal(words))
    return fail(ErrorCode::config,
                fmt::format("sortie ssh: runner.transport: {} gives a command no terminal; add the "
                            "option that does, like \"-t\" of docker and kubectl, or name a "
                            "command and no --terminal",
                            words.front()));
  words.push_back("/bin/sh");
  if (!command.empty()) words.insert(words.end(), {"-c", command});
  return words;
}

/// Replaces this process by the program. Returns only if that fails.
Error become(const std::vector<std::string>& words) {
  ::execvp(words.front().c_str(), c_strings(words).data());
  return os_error(errno, fmt::format("sortie ssh: {}", words.front()));
}

struct Session {
  const SshOptions& options;
  const config::RunnerConfig& runner;
  std::string host;
  bool terminal;
  int exit_code = kExitFailed;
  std::string master =
      {};  // the socket of the user's OpenSSH master that leads there; empty = none
};

void say(std::string_view text) {
  print_stderr("{}\n", printable_lines(text));
}

int code_of(const TerminalClient::Ended& ended, const std::string& host) {
  if (ended.signal) return 128 + *ended.signal;
  if (ended.disconnected) {
    if (!output_options().quiet) say(fmt::format("sortie: connection to {} ended by ~.", host));
    return kExitInterrupted;
  }
  if (ended.error) {
    say(fmt::format("sortie: {}: {}: {}", host, error_code_name(ended.error->code),
                    ended.error->message));
    return exit_code_for(ended.error->code);
  }
  if (ended.status && ended.status->kind != ProcessStatus::Kind::lost)
    return ended.status->shell_code();
  say(fmt::format("sortie: {}: lost: the connection ended before the command did", host));
  return kExitLost;
}

TerminalRequest request_of(const Session& session) {
  TerminalRequest request;
  request.command = joined(session.options.command);
  request.terminal = session.terminal;
  const char* term = std::getenv("TERM");
  request.term = term != nullptr && *term != '\0' ? term : "dumb";
  request.size = window_size().value_or(WindowSize{});
  return request;
}

asio::awaitable<void> join(asio::any_io_executor executor, std::unique_ptr<TerminalChannel> channel,
                           Session& session) {
  const bool here = session.terminal && ::isatty(STDIN_FILENO) == 1;
  RawTerminal raw;
  TerminalClient client(executor, std::move(channel), here ? &raw : nullptr,
                        here && !session.options.no_escapes);
  const TerminalClient::Ended ended = co_await client.run();
  session.exit_code = code_of(ended, session.host);
}

/// Opens a session on a kept connection. nullptr if none is open.
asio::awaitable<std::unique_ptr<TerminalChannel>> kept_terminal(asio::any_io_executor executor,
                                                                const Session& session) {
  if (session.runner.ssh.persist.count() == 0) co_return nullptr;
  const auto binary = open_runner_binary();
  if (!binary) co_return nullptr;
  config::RunnerConfig runner = session.runner;
  TerminalRequest request = request_of(session);
  co_return co_await warm::open_kept_terminal(executor, std::move(runner), binary->sha256(),
                                              session.host, std::move(request));
}

asio::awaitable<void> run_session(asio::any_io_executor executor, Transport& transport,
                                  Session& session) {
  auto kept = co_await kept_terminal(executor, session);
  if (kept) {
    co_await join(executor, std::move(kept), session);
    co_return;
  }
  auto connection = co_await transport.connect(session.host);
  if (connection) session.master = (*connection)->through();
  if (!session.master.empty()) co_return;  // the caller runs ssh, which uses the master
  Result<std::unique_ptr<TerminalChannel>> channel =
      fail(ErrorCode::lost, "the connection is closed");
  TerminalRequest request = request_of(session);
  if (connection) channel = co_await open_terminal(**connection, std::move(request));
  if (!connection || !channel) {
    TerminalClient::Ended ended;
    ended.error = !connection ? std::move(connection).error() : std::move(channel).error();
    session.exit_code = code_of(ended, session.host);
    co_return;
  }
  (*connection)->settled();
  co_await join(executor, std::move(*channel), session);
}

/// Settings that make the system's ssh use the master at `socket`.
config::RunnerConfig through_master(config::RunnerConfig runner, const std::string& socket) {
  std::string path;  // ssh expands it
  for (const char c : socket) path += c == '%' ? std::string("%%") : std::string(1, c);
  runner.ssh.command = {"ssh", "-o", "ControlMaster=no", "-S", path};
  return runner;
}

Result<Session> prepare_session(const SshOptions& options, const config::RunnerConfig& runner) {
  SORTIE_ASSIGN_OR_RETURN(const std::string host, one_host(options.host, runner));
  if (host == "localhost")
    return fail(ErrorCode::usage,
                "sortie ssh: localhost: is this machine, and reached without SSH; run the command "
                "as it is, or name another of its names");
  bool terminal = !options.no_terminal &&
                  (options.terminal || (options.command.empty() && ::isatty(STDIN_FILENO) == 1));
  return Session{options, runner, host, terminal};
}

}  // namespace

int ssh_command(const SshOptions& options) {
  const auto give_up = [](const Error& error) {
    say(error.message);
    return exit_code_for(error.code);
  };
  auto loaded = load_options(options.job);
  if (!loaded) return give_up(loaded.error());
  resolve_job_paths(loaded->job);
  const config::RunnerConfig& runner = loaded->job.runner;
  init_log(loaded->job.logger.log_level);
  auto session = prepare_session(options, runner);
  if (!session) return give_up(session.error());
  if (!runner.transport.empty() || !runner.ssh.command.empty()) {
    const auto words = program_words(options, runner, session->host, session->terminal);
    return give_up(words ? become(*words) : words.error());
  }
  std::signal(SIGPIPE, SIG_IGN);
  asio::io_context io(1);
  const auto transport = make_transport(io.get_executor(), runner);
  run_to_end(io, run_session(io.get_executor(), *transport, *session));
  if (session->master.empty()) return session->exit_code;
  const auto words = program_words(options, through_master(runner, session->master), session->host,
                                   session->terminal);
  return give_up(words ? become(*words) : words.error());
}

}  // namespace sortie::launcher
