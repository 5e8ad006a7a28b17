#include "launcher/check/check_command.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <cstdlib>

#include "common/asio/run.h"
#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "launcher/check/pass.h"
#include "launcher/check/present.h"
#include "launcher/check/requests.h"
#include "launcher/cli/verb.h"
#include "launcher/console/console.h"
#include "launcher/console/output_options.h"
#include "launcher/console/terminal_signals.h"
#include "launcher/local/local_transport.h"
#include "launcher/ssh/ssh_transport.h"

namespace sortie::launcher::check {
namespace asio = boost::asio;
namespace {

using Clock = std::chrono::steady_clock;

/// From a second on a person at a terminal sees where it is.
asio::awaitable<void> show_progress(const Pass& pass, std::size_t hosts) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  for (timer.expires_after(std::chrono::seconds(1));;
       timer.expires_after(std::chrono::milliseconds(200))) {
    const auto [error] = co_await timer.async_wait(asio::as_tuple(asio::use_awaitable));
    if (error) co_return;
    fmt::print(stderr, "\r\x1b[K{}: {} of {} hosts", pass.step(), pass.done(), hosts);
    std::fflush(stderr);
  }
}

/// Ctrl-C ends the check. Ctrl-Z does not suspend it: the hosts' answers would count as late.
asio::awaitable<void> watch_signals(asio::signal_set& signals, asio::io_context& io, bool progress,
                                    int& interrupted) {
  for (;;) {
    const auto [error, number] = co_await signals.async_wait(kToken);
    if (error) co_return;
    if (number == SIGTSTP) {
      fmt::print(stderr, "{}sortie: {}\n", progress ? "\r\x1b[K" : "", ctrl_z_refusal(""));
      continue;
    }
    interrupted = number;
    io.stop();
    co_return;
  }
}

/// No stage of a connection takes longer than --timeout.
config::SshConfig hasty(config::SshConfig ssh, const CheckOptions& options) {
  for (auto* timeout :
       {&ssh.resolve_timeout, &ssh.connect_timeout, &ssh.handshake_timeout, &ssh.auth_timeout})
    *timeout = std::min(*timeout, options.host_limit);
  return ssh;
}

std::size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40 ? size.ws_col : 100;
}

}  // namespace

int run_check(const PlannedJob& job, const CheckOptions& options) {
  auto binary = open_runner_binary();
  if (!binary) return print_error(binary.error());
  Expectations expect = expectations(job, options.only_hosts);
  expect.bandwidth = options.bandwidth_s > 0;
  const auto begin = Clock::now();
  std::signal(SIGPIPE, SIG_IGN);
  asio::io_context io(1);
  const auto ssh = make_ssh_transport(io.get_executor(), hasty(job.loaded.job.runner.ssh, options));
  const auto local = make_local_transport(io.get_executor());
  Pass pass({io.get_executor(), *ssh, *local, *binary}, job, expect, options);
  int interrupted = 0;
  asio::signal_set signals(io);
  add_terminal_signals(signals);
  const bool progress = !options.json && !output_options().quiet && Console::detect().terminal;
  spawn(io, watch_signals(signals, io, progress, interrupted));
  if (progress) spawn(io, show_progress(pass, job.plan.hosts.size()));
  run_to_end(io, pass.run());
  signals.clear();  // from here on Ctrl-C and Ctrl-Z do what they do to any process
  if (progress) fmt::print(stderr, "\r\x1b[K");
  if (interrupted != 0) return 128 + interrupted;

  const std::vector<HostResult> results = pass.results();
  const auto findings = evaluate(results, expect);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  PresentOptions look;
  look.color = Console::detect().color_out;
  look.verbose = output_options().verbose;
  look.width = terminal_width();
  const std::string text = options.json ? check_json_text(results, findings, seconds)
                                        : check_text(results, findings, look);
  if (const int code = print_text(text); code != kExitOk) return code;
  return check_exit_code(worst(findings));
}

}  // namespace sortie::launcher::check
