#include "launcher/shell/shell_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <utility>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "common/config/hostlist.h"
#include "launcher/console/terminal_signals.h"
#include "launcher/exec/sinks.h"
#include "launcher/run/job_options.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {

constexpr std::size_t kMaxShellBacklog = 1u << 20;
/// If more bytes than this are queued for the terminal, hosts get no credit for output.
constexpr std::size_t kLiveBacklog = 4u << 20;
constexpr std::size_t kLongPrompt = 32;

}  // namespace

ShellSession::ShellSession(Parts parts, const std::vector<std::string>& hosts, std::string run_id)
    : parts_(std::move(parts)),
      hosts_({parts_.executor, parts_.transport, parts_.binary,
              [this](const std::string& host, const Outcome& outcome, bool in_line) {
                on_gone(host, outcome, in_line);
              },
              [this](std::size_t, const std::string& host, std::string_view bytes) {
                say(fmt::format("[{}] {}", host, printable_lines(bytes)));
              },
              [this] { return parts_.console.backlog() > kLiveBacklog; }},
             hosts, parts_.runner, std::move(run_id)),
      prompt_(parts_.executor, parts_.prompt),
      signals_(parts_.executor),
      timer_(parts_.executor) {
  add_terminal_signals(signals_);
  if (parts_.prompt.terminal) signals_.add(SIGWINCH);
  for (std::size_t index = 0; index < hosts.size(); ++index) index_of_[hosts[index]] = index;
  selected_ = all();
}

std::vector<std::size_t> ShellSession::all() const {
  std::vector<std::size_t> out;
  for (std::size_t index = 0; index < hosts_.size(); ++index)
    if (index_of_.at(hosts_.name(index)) == index) out.push_back(index);
  return out;
}

/// Prints a message; above the prompt if one is waiting.
void ShellSession::say(const std::string& text) {
  const std::string_view whole = text.ends_with('\n')
                                     ? std::string_view(text).substr(0, text.size() - 1)
                                     : std::string_view(text);
  if (prompt_.asking() && parts_.prompt.terminal)
    prompt_.show(fmt::format("{}\n", whole));
  else
    parts_.console.error(whole);
}

void ShellSession::on_gone(const std::string& host, const Outcome& outcome, bool in_line) {
  if (!lost_) lost_ = outcome.exit_code != 0 ? outcome.exit_code : kExitFailed;
  if (in_line && connected_) return;  // reported at the end of the line
  say(fmt::format("{}: {}: {}", host, outcome_name(outcome.kind), outcome.reason));
}

int ShellSession::exit_code() const {
  if (ended_by_) return 128 + *ended_by_;
  if (left_with_) return *left_with_;
  if (status_ != 0) return status_;
  return lost_.value_or(kExitOk);
}

asio::awaitable<void> ShellSession::run() {
  spawn(parts_.executor, watch_signals());
  spawn(parts_.executor, show_waiting());
  co_await hosts_.connect();
  parts_.console.status("");
  connected_ = true;
  if (!aborted_) co_await serve();
  leaving_ = true;
  timer_.cancel();
  co_await hosts_.leave();
  signals_.cancel();
}

asio::awaitable<void> ShellSession::serve() {
  while (!aborted_ && !left_with_) {
    if (hosts_.living().empty()) {
      parts_.console.error("no host is left");
      break;
    }
    std::optional<std::string> line = co_await next_line();
    if (!line) break;
    ShellInput input = parse_shell_input(*line);
    if (input.kind == ShellInput::Kind::leave) {
      left_with_ = input.status.value_or(exit_code());
      break;
    }
    co_await act(std::move(input));
  }
}

/// Reads a line with its continuation lines, without the last newline.
asio::awaitable<std::optional<std::string>> ShellSession::next_line() {
  std::string whole;
  for (;;) {
    co_await flushed();
    if (aborted_) co_return std::nullopt;  // a signal arrived while ask() was not active
    std::string text = "> ";
    if (whole.empty()) text = prompt_text();
    Prompt::Answer answer = co_await prompt_.ask(std::move(text));
    using Kind = LineEditor::Read::Kind;
    if (answer.kind == Kind::end) {
      if (whole.empty()) co_return std::nullopt;
      co_return whole;
    }
    if (answer.kind == Kind::interrupted) {
      if (!parts_.prompt.terminal) co_return std::nullopt;
      whole.clear();
      status_ = kExitInterrupted;
      continue;
    }
    whole += answer.text;
    if (!line_goes_on(answer.text)) co_return whole;
    whole += '\n';
  }
}

asio::awaitable<void> ShellSession::act(ShellInput input) {
  using Kind = ShellInput::Kind;
  std::vector<std::size_t> which = selected_;
  if (!input.error.empty()) {
    parts_.console.error(input.error);
    status_ = kExitUsage;
    co_return;
  }
  if (input.kind == Kind::add) co_return co_await add_hosts(input.hosts);
  if (input.kind == Kind::remove) co_return remove_hosts(input.hosts);
  if (!input.hosts.empty()) {
    auto named = chosen(input.hosts);
    if (!named) {
      parts_.console.error(named.error().message);
      status_ = kExitUsage;
      co_return;
    }
    which = std::move(*named);
  }
  if (input.kind == Kind::select) {
    selected_ = input.hosts.empty() ? all() : std::move(which);
  } else if (input.kind == Kind::list) {
    list_hosts();
  } else if (input.kind == Kind::folding) {
    folds_ = !folds_;
    parts_.console.message(folds_ ? "output from here on: folded, when a line is over"
                                  : "output from here on: as it comes, behind the host's name");
  } else if (input.kind == Kind::local) {
    co_await flushed();
    status_ = co_await prompt_.run_here(std::move(input.text));
  } else if (input.kind == Kind::remote) {
    co_await run_remote(std::move(input.text), std::move(which));
  }
}

/// +HOSTS: starts shells on hosts without one. A new shell has no state of earlier lines.
asio::awaitable<void> ShellSession::add_hosts(const std::string& expression) {
  auto hosts = named(expression);
  if (!hosts) {
    parts_.console.error(hosts.error().message);
    status_ = kExitUsage;
    co_return;
  }
  std::vector<std::string> without;
  for (const std::string& name : *hosts) {
    const auto found = index_of_.find(name);
    if (found == index_of_.end() || !hosts_.lives(found->second)) without.push_back(name);
  }
  std::set<std::string> wanted(hosts->begin(), hosts->end());
  for (const std::size_t index : selected_) wanted.insert(hosts_.name(index));
  if (!without.empty()) {
    std::size_t index = hosts_.add(without);
    for (const std::string& name : without) index_of_[name] = index++;
    connected_ = false;
    adding_ = true;
    co_await hosts_.connect();
    adding_ = false;
    connected_ = true;
    parts_.console.status("");
  }
  selected_ = all();
  std::erase_if(selected_, [&](std::size_t index) { return !wanted.contains(hosts_.name(index)); });
  status_ =
      std::ranges::all_of(
          *hosts, [this](const std::string& name) { return hosts_.lives(index_of_.at(name)); })
          ? kExitOk
          : kExitLost;
}

/// -HOSTS: the shells stay and keep their state in case the hosts are selected again.
void ShellSession::remove_hosts(const std::string& expression) {
  status_ = kExitUsage;
  const auto away = chosen(expression);
  if (!away) return parts_.console.error(away.error().message);
  std::vector<std::size_t> left = selected_;
  std::erase_if(left,
                [&](std::size_t index) { return std::ranges::find(*away, index) != away->end(); });
  if (std::ranges::none_of(left, [this](std::size_t index) { return hosts_.lives(index); }))
    return parts_.console.error(
        "no host would be left; exit leaves the prompt, @HOST chooses others");
  selected_ = std::move(left);
  status_ = kExitOk;
}

asio::awaitable<void> ShellSession::run_remote(std::string line, std::vector<std::size_t> which) {
  std::erase_if(which, [this](std::size_t index) { return !hosts_.lives(index); });
  if (which.empty()) {
    parts_.console.error("none of these hosts is left; ? lists them");
    status_ = kExitLost;
    co_return;
  }
  if (folds_)
    co_await run_folded(std::move(line), std::move(which));
  else
    co_await run_live(std::move(line), std::move(which));
}

asio::awaitable<void> ShellSession::run_folded(std::string line, std::vector<std::size_t> which) {
  FoldSink fold(/*only_what_was_said=*/true);
  const std::vector<HostOutcome> outcomes =
      co_await hosts_.run(std::move(line), std::move(which), fold);
  parts_.console.status("");
  co_await show(fold);
  status_ = exec_exit_code(outcomes, std::nullopt);
  name_failures(outcomes);
}

/// Shows output as it arrives. A slow terminal makes the hosts wait.
asio::awaitable<void> ShellSession::run_live(std::string line, std::vector<std::size_t> which) {
  LiveSink live(parts_.console);
  const std::vector<HostOutcome> outcomes =
      co_await hosts_.run(std::move(line), std::move(which), live);
  parts_.console.status("");
  status_ = exec_exit_code(outcomes, std::nullopt);
  // In folded output the report says this.
  std::map<std::string, std::vector<std::string>> failed;
  for (const HostOutcome& host : outcomes)
    if (host.outcome.kind != Outcome::Kind::ok && hosts_.lives(index_of_.at(host.host)))
      failed[host.outcome.reason].push_back(host.host);
  for (const auto& [reason, names] : failed)
    parts_.console.error(fmt::format("{}: {}", folded_with_count(names), printable(reason)));
  name_failures(outcomes);
}

/// Reports the hosts that were dropped during the line.
void ShellSession::name_failures(const std::vector<HostOutcome>& outcomes) {
  for (const HostOutcome& host : outcomes)
    if (const auto found = index_of_.find(host.host);
        found != index_of_.end() && !hosts_.lives(found->second))
      parts_.console.error(fmt::format("{}: {}: {}", host.host, outcome_name(host.outcome.kind),
                                       host.outcome.reason));
}

asio::awaitable<void> ShellSession::show(FoldSink& fold) {
  while (!aborted_ && parts_.console.out_error() == 0) {
    if (parts_.console.backlog() < kMaxShellBacklog) {
      const std::optional<std::string> piece = fold.next_piece();
      if (!piece) break;
      parts_.console.plain(*piece);
      continue;
    }
    timer_.expires_after(milliseconds(1));
    co_await timer_.async_wait(kToken);
  }
  if (const Error* trouble = fold.trouble(); trouble != nullptr)
    parts_.console.error(fmt::format("{}; output is missing from there on", trouble->message));
}

/// Waits until all queued output is on the terminal, so that it precedes the prompt.
asio::awaitable<void> ShellSession::flushed() {
  asio::steady_timer pause(parts_.executor);
  while (!aborted_ && parts_.console.backlog() > 0 && parts_.console.out_error() == 0) {
    pause.expires_after(milliseconds(1));
    co_await pause.async_wait(kToken);
  }
  if (parts_.console.out_error() != 0) aborted_ = true;
}

/// Shows in the status line which hosts a line or the start waits for, after one second.
asio::awaitable<void> ShellSession::show_waiting() {
  asio::steady_timer tick(parts_.executor);
  int ticks = 0;
  std::string shown;
  while (!leaving_) {
    tick.expires_after(milliseconds(200));
    co_await tick.async_wait(kToken);
    const bool waits = hosts_.busy() || !connected_;
    if (hosts_.busy()) hosts_.give_credit();
    ticks = waits ? ticks + 1 : 0;
    if (!waits) shown.clear();
    if (ticks < 5 || !parts_.console.has_status()) continue;
    std::string text = "connecting";
    if (connected_) text = fmt::format("waiting for {}", folded_with_count(hosts_.running()));
    if (text == shown) continue;
    shown = text;
    parts_.console.status(std::move(text));
  }
}

asio::awaitable<void> ShellSession::watch_signals() {
  for (;;) {
    const auto [error, number] = co_await signals_.async_wait(kToken);
    if (error) co_return;
    on_signal(number);
  }
}

void ShellSession::on_signal(int number) {
  if (number == SIGWINCH) return prompt_.resized();
  if (number == SIGTSTP) return say(ctrl_z_refusal("exit leaves the prompt"));
  if (number == SIGINT && adding_) return hosts_.abandon();
  if (number == SIGINT && connected_ && hosts_.busy()) {
    const std::string whom = folded_with_count(hosts_.running());
    static constexpr const char* kSaid[] = {
        "INT sent to the command on {}; press again for TERM",
        "TERM sent to the command on {}; press again to end the shells", "ending the shells of {}"};
    say(fmt::format(fmt::runtime(kSaid[std::min(hosts_.interrupts(), 2)]), whom));
    return hosts_.interrupt();
  }
  if (number == SIGINT && connected_ && parts_.prompt.terminal) return prompt_.interrupt();
  ended_by_ = number;
  aborted_ = true;
  hosts_.abandon();
  prompt_.end();
}

/// Expands an expression. The name of a group has precedence over that of a host.
Result<std::vector<std::string>> ShellSession::named(const std::string& expression) const {
  if (auto group = expand_hosts("@" + expression, parts_.runner)) return group;
  return expand_hosts(expression, parts_.runner);
}

Result<std::vector<std::size_t>> ShellSession::chosen(const std::string& expression) const {
  const auto group = expand_hosts("@" + expression, parts_.runner);
  const bool is_group = group.has_value();
  SORTIE_ASSIGN_OR_RETURN(const std::vector<std::string> named_hosts, named(expression));
  std::vector<std::size_t> out;
  std::vector<std::string> missing;
  for (const std::string& name : named_hosts) {
    const auto found = index_of_.find(name);
    if (found != index_of_.end())
      out.push_back(found->second);
    else
      missing.push_back(name);
  }
  if (!missing.empty() && (out.empty() || !is_group))
    return fail(
        ErrorCode::usage,
        fmt::format("{}: {} {} not among the hosts of this prompt; ? lists them, +{} adds {}",
                    expression, config::fold_host_names(missing),
                    missing.size() == 1 ? "is" : "are", config::fold_host_names(missing),
                    missing.size() == 1 ? "it" : "them"));
  return out;
}

void ShellSession::list_hosts() {
  std::map<std::string, std::vector<std::string>> out;
  for (const std::size_t index : all())
    if (!hosts_.lives(index))
      out[fmt::format("{}: {}", outcome_name(hosts_.end_of(index).kind),
                      hosts_.end_of(index).reason)]
          .push_back(hosts_.name(index));
  const std::vector<std::string> living = hosts_.living();
  std::string text = fmt::format("{}  ready\n", folded_with_count(living));
  for (const auto& [reason, names] : out)
    text += fmt::format("{}  {}\n", folded_with_count(names), printable(reason));
  parts_.console.plain(text);
}

/// "h[01-04] (4) [3]> ": the selected hosts and the last exit status.
std::string ShellSession::prompt_text() const {
  std::vector<std::string> names;
  for (const std::size_t index : selected_)
    if (hosts_.lives(index)) names.push_back(hosts_.name(index));
  const std::string folded = config::fold_host_names(names);
  const std::string whom = folded.size() <= kLongPrompt
                               ? fmt::format("{} ({})", folded, names.size())
                               : fmt::format("{} hosts", names.size());
  const std::string lost =
      names.size() < selected_.size() ? fmt::format(" of {}", selected_.size()) : "";
  return fmt::format("{}{}{}> ", whom, lost, status_ == 0 ? "" : fmt::format(" [{}]", status_));
}

}  // namespace sortie::launcher
