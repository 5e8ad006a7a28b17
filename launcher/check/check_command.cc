#include "launcher/check/check_command.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "common/asio/run.h"
#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "launcher/check/pass.h"
#include "launcher/check/present.h"
#include "launcher/check/requests.h"
#include "launcher/check/sites.h"
#include "launcher/cli/verb.h"
#include "launcher/console/console.h"
#include "launcher/console/output_options.h"
#include "launcher/console/terminal_signals.h"
#include "launcher/run/run_folder.h"
#include "launcher/warm/warm_transport.h"

namespace sortie::launcher::check {
namespace asio = boost::asio;
namespace {

using Clock = std::chrono::steady_clock;

/// Shows progress on the terminal, from one second on.
asio::awaitable<void> show_progress(const Pass& pass, std::size_t hosts) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  for (timer.expires_after(std::chrono::seconds(1));;
       timer.expires_after(std::chrono::milliseconds(200))) {
    const auto [error] = co_await timer.async_wait(kToken);
    if (error) co_return;
    print_stderr("\r\x1b[K{}: {} of {} hosts", pass.step(), pass.done(), hosts);
    std::fflush(stderr);
  }
}

/// Ctrl-C ends the check. Ctrl-Z does not suspend it, because answers of hosts would then count as
/// late.
asio::awaitable<void> watch_signals(asio::signal_set& signals, asio::io_context& io, bool progress,
                                    int& interrupted) {
  for (;;) {
    const auto [error, number] = co_await signals.async_wait(kToken);
    if (error) co_return;
    if (number == SIGTSTP) {
      print_stderr("{}sortie: {}\n", progress ? "\r\x1b[K" : "", ctrl_z_refusal(""));
      continue;
    }
    interrupted = number;
    io.stop();
    co_return;
  }
}

/// Bounds each stage of a connection by --timeout.
config::RunnerConfig hasty(config::RunnerConfig runner, const CheckOptions& options) {
  config::SshConfig& ssh = runner.ssh;
  for (auto* timeout :
       {&ssh.resolve_timeout, &ssh.connect_timeout, &ssh.handshake_timeout, &ssh.auth_timeout})
    *timeout = std::min(*timeout, options.host_limit);
  return runner;
}

/// False if a check failed without which no job can start.
bool fit_to_measure(const std::vector<std::vector<Finding>>& findings) {
  constexpr std::string_view kNeeded[] = {"ssh",    "program", "mpi",   "staged",
                                          "engine", "image",   "mounts"};
  for (const auto& host : findings)
    for (const Finding& finding : host)
      if (finding.verdict == Verdict::fail &&
          std::ranges::find(kNeeded, finding.check) != std::end(kNeeded))
        return false;
  return true;
}

CommEnd measure_links(const PlannedJob& job, const CommOptions& options,
                      const std::vector<std::vector<Finding>>& findings, bool progress) {
  CommEnd end;
  if (!fit_to_measure(findings)) {
    end.outcome.error = {ErrorCode::rank_failed,
                         "not measured: no job can start on these hosts: the failures above say "
                         "why; correct them first"};
  } else {
    if (progress)
      print_stderr("links of {} hosts: a job measures them, within {} s\r", job.plan.hosts.size(),
                   options.limit.count());
    const std::string trainer = program_beside("sortie-train").string();
    end = run_comm_job(comm_job(job, options, trainer), options, program_beside("sortie"));
    if (progress) print_stderr("\r\x1b[K");
  }
  return end;
}

/// 3 if a link is slow (like a host that lacks what the job needs), 2 if nothing was measured.
int exit_code_with(const CommOutcome& comm, Verdict verdict) {
  if (comm.error) return check_exit_code(Verdict::fail);
  return comm.judgement.slow.empty() ? check_exit_code(verdict) : kExitPreflight;
}

/// Stores the links for `sortie plan`. A state folder that is not writable does not fail the check.
void keep_links(const std::vector<SiteLink>& links) {
  const auto file = site_links_file();
  const Result<> kept =
      file ? keep_site_links(*file, links) : Result<>(std::unexpected(file.error()));
  if (!kept)
    print_stderr("sortie: warning: the rates measured between sites were not saved: {}\n",
                 kept.error().message);
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
  const auto transport =
      make_fleet_transport(io.get_executor(), hasty(job.loaded.job.runner, options), *binary);
  Pass pass({io.get_executor(), *transport, *binary}, job, expect, options);
  int interrupted = 0;
  asio::signal_set signals(io);
  add_terminal_signals(signals);
  const bool progress = !options.json && !output_options().quiet && Console::detect().terminal;
  spawn(io, watch_signals(signals, io, progress, interrupted));
  if (progress) spawn(io, show_progress(pass, job.plan.hosts.size()));
  run_to_end(io, pass.run());
  signals.clear();  // from here on Ctrl-C and Ctrl-Z have their default effect
  if (progress) print_stderr("\r\x1b[K");
  if (interrupted != 0) return 128 + interrupted;

  const std::vector<HostResult> results = pass.results();
  const auto findings = evaluate(results, expect);
  std::optional<CommEnd> comm;
  if (options.comm) {
    comm = measure_links(job, *options.comm, findings, progress);
    if (comm->interrupted != 0) return 128 + comm->interrupted;
  }
  const std::vector<SiteLink> links =
      expect.sites ? site_links(results, unix_time()) : std::vector<SiteLink>();
  if (!links.empty()) keep_links(links);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  PresentOptions look;
  look.color = Console::detect().color_out;
  look.verbose = output_options().verbose;
  look.width = terminal_width();
  std::string text;
  if (options.json) {
    const auto measured = comm ? comm_json(comm->outcome) : nlohmann::ordered_json();
    const auto between = site_links_json(links);
    text = check_json_text(results, findings, seconds, comm ? &measured : nullptr,
                           expect.sites ? &between : nullptr);
  } else {
    text = check_text(results, findings, look) + site_links_text(links);
    if (comm) text += comm_text(comm->outcome, {look.color, look.verbose});
  }
  if (const int code = print_text(text); code != kExitOk) return code;
  return comm ? exit_code_with(comm->outcome, worst(findings)) : check_exit_code(worst(findings));
}

}  // namespace sortie::launcher::check
