#include "launcher/shell/shell_hosts.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/asio/token.h"
#include "common/base/exit_code.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using EndKind = Outcome::Kind;

namespace {

constexpr std::size_t kPiece = 32u << 10;
constexpr std::chrono::milliseconds kGrace{1000};  // used when the launcher is lost

/// Discards the output of shells at their start.
class NoSink : public ExecSink {
 public:
  void started(std::size_t, const std::string&) override {}
  void output(std::size_t, const std::string&, wire::Stream, std::string_view) override {}
  void finished(std::size_t, const std::string&, const Outcome&) override {}
};

}  // namespace

ShellHosts::ShellHosts(Parts parts, const std::vector<std::string>& hosts,
                       const config::RunnerConfig& runner, std::string run_id)
    : parts_(std::move(parts)),
      runner_(runner),
      run_id_(std::move(run_id)),
      changed_(parts_.executor, Clock::time_point::max()) {
  add(hosts);
}

std::size_t ShellHosts::add(const std::vector<std::string>& hosts) {
  const std::size_t first = hosts_.size();
  for (const std::string& name : hosts) {
    hosts_.push_back(std::make_unique<Host>());
    hosts_.back()->name = name;
  }
  return first;
}

wire::JobSpec ShellHosts::shell_spec(std::size_t index) const {
  wire::JobSpec spec;
  spec.run_id = run_id_;
  spec.host = hosts_[index]->name;
  spec.node_rank = static_cast<std::uint32_t>(index);
  spec.world_size = 1;
  spec.argv = shell_argv();
  spec.ranks.emplace_back();
  spec.ranks.back().env.emplace_back("SORTIE_HOST", hosts_[index]->name);
  spec.grace_ms = static_cast<std::uint32_t>(kGrace.count());
  spec.heartbeat_interval_ms = static_cast<std::uint32_t>(runner_.heartbeat_interval.count());
  spec.heartbeat_timeout_ms = static_cast<std::uint32_t>(runner_.heartbeat_timeout.count());
  spec.output_window = kOutputWindow;
  spec.autostart = 1;
  spec.input_window = kInputWindow;
  return spec;
}

asio::awaitable<void> ShellHosts::connect() {
  std::vector<std::size_t> added;
  tasks_ = std::make_unique<TaskGroup>(parts_.executor);
  for (; connected_ < hosts_.size(); ++connected_) {
    added.push_back(connected_);
    tasks_->spawn(reach(connected_));
  }
  co_await tasks_->wait();
  // The first line checks that the shells work, and discards their start output.
  NoSink nobody;
  co_await run(":", added, nobody);
  for (const std::size_t index : added) hosts_[index]->opened = true;
}

asio::awaitable<void> ShellHosts::reach(std::size_t index) {
  Host& host = *hosts_[index];
  host.session = std::make_shared<HostSession>(parts_.executor, host.name, runner_);
  const auto session = host.session;
  auto connected = co_await session->connect(parts_.transport, parts_.binary);
  if (host.phase == Phase::gone) co_return;
  if (!connected) co_return give_up(index, std::move(connected).error());
  wire::JobSpec spec = shell_spec(index);
  auto ready = co_await session->prepare(std::move(spec), parts_.binary.sha256());
  if (host.phase == Phase::gone) co_return;
  if (!ready) co_return give_up(index, std::move(ready).error());
  host.phase = Phase::ready;
  host.room = kInputWindow;
  session->start({[this, index](wire::Message message) { on_message(index, std::move(message)); },
                  [this, index](Error error) {
                    Host& lost = *hosts_[index];
                    lost.ended = true;
                    changed_.cancel();
                    if (lost.phase != Phase::gone) give_up(index, std::move(error));
                  },
                  {},
                  "its shell ends by itself"});
  write(host, opening_order());
}

std::vector<std::string> ShellHosts::living() const {
  std::vector<std::string> names;
  for (const auto& host : hosts_)
    if (host->phase != Phase::gone) names.push_back(host->name);
  return names;
}

std::vector<std::string> ShellHosts::running() const {
  std::vector<std::string> names;
  for (const auto& host : hosts_)
    if (host->busy) names.push_back(host->name);
  return names;
}

asio::awaitable<std::vector<HostOutcome>> ShellHosts::run(std::string line,
                                                          std::vector<std::size_t> which,
                                                          ExecSink& sink) {
  sink_ = &sink;
  order_ = 0;
  interrupts_ = 0;
  std::erase_if(which, [this](std::size_t index) { return hosts_[index]->phase != Phase::ready; });
  which_ = std::move(which);
  outcomes_.clear();
  for (const std::size_t index : which_) outcomes_.push_back({hosts_[index]->name, {}});
  running_ = which_.size();
  for (const std::size_t index : which_) {
    hosts_[index]->busy = true;
    sink.started(index, hosts_[index]->name);
  }
  const std::vector<std::size_t> begun = which_;
  for (const std::size_t index : begun) start_line(index, line);
  while (running_ > 0) co_await changed_.async_wait(kToken);
  sink_ = nullptr;
  co_return std::exchange(outcomes_, {});
}

void ShellHosts::start_line(std::size_t index, const std::string& line) {
  Host& host = *hosts_[index];
  if (!host.busy) return;
  const LineMark mark = LineMark::make();
  for (MarkReader& reader : host.readers) reader.expect(mark);
  host.done = {false, false};
  host.begun = false;
  host.wish = {};
  write(host, line_order(mark, line, std::exchange(host.status, 0)));
}

void ShellHosts::order(Host& host, std::string_view order) {
  if (host.begun)
    write(host, order);
  else
    host.wish = order;  // the shell may not have read the line yet
}

/// Sends bytes to the shell's stdin. Bytes beyond the window are queued.
void ShellHosts::write(Host& host, std::string_view bytes) {
  host.pending += bytes;
  while (!host.pending.empty() && host.room > 0) {
    const std::size_t size = std::min<std::uint64_t>({host.pending.size(), host.room, kPiece});
    host.session->send(wire::Input{host.pending.substr(0, size), 0});
    host.pending.erase(0, size);
    host.room -= size;
  }
}

void ShellHosts::interrupt() {
  if (running_ == 0) return;
  ++interrupts_;
  for (std::size_t index = 0; index < hosts_.size(); ++index) {
    Host& host = *hosts_[index];
    if (!host.busy) continue;
    if (interrupts_ < 3) {
      order(host, interrupts_ == 1 ? kInterruptOrder : kTerminateOrder);
      continue;
    }
    Outcome outcome;
    outcome.kind = EndKind::stopped;
    outcome.exit_code = kExitInterrupted;
    outcome.reason = "its line did not end after INT and TERM; its shell was ended";
    host.session->send(wire::Stop{0, "interrupted"});
    leave_out(index, std::move(outcome));
  }
}

void ShellHosts::abandon() {
  for (std::size_t index = 0; index < hosts_.size(); ++index) {
    Host& host = *hosts_[index];
    if (host.phase != Phase::connecting && !host.busy) continue;
    Outcome outcome;
    outcome.kind = EndKind::stopped;
    outcome.exit_code = kExitInterrupted;
    outcome.reason = "interrupted";
    if (host.session) host.session->close();
    leave_out(index, std::move(outcome));
  }
  if (tasks_) tasks_->stop_waiting();
}

asio::awaitable<void> ShellHosts::leave() {
  leaving_ = true;
  const std::string closing = closing_order();
  for (const auto& host : hosts_) {
    if (host->phase != Phase::ready) continue;
    // Not while older input waits for room: nothing may follow the end of input.
    if (!host->busy && host->room >= closing.size()) write(*host, closing);
    host->session->send(wire::Input{"", 1});
  }
  const auto wait_for = [this](Clock::time_point until) -> asio::awaitable<void> {
    while (Clock::now() < until && std::ranges::any_of(hosts_, [](const auto& host) {
             return host->session && !host->ended && !host->session->closed();
           })) {
      changed_.expires_at(until);
      co_await changed_.async_wait(kToken);
    }
  };
  co_await wait_for(Clock::now() + std::chrono::milliseconds(500));
  for (const auto& host : hosts_)
    if (host->phase == Phase::ready) host->session->send(wire::Stop{0, "the prompt was left"});
  co_await wait_for(Clock::now() + std::chrono::seconds(2));
  for (const auto& host : hosts_)
    if (host->session) host->session->close();
}

}  // namespace sortie::launcher
