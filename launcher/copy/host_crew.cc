#include "launcher/copy/host_crew.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>

#include "common/asio/run.h"
#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "common/base/heap.h"
#include "common/base/print_stderr.h"
#include "common/base/printable.h"
#include "launcher/console/console.h"
#include "launcher/console/terminal_signals.h"
#include "launcher/host/host_errors.h"
#include "launcher/run/run_command.h"
#include "launcher/warm/warm_transport.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kGoodbye = std::chrono::seconds(2);
constexpr auto kTick = std::chrono::milliseconds(200);

}  // namespace

struct HostCrew::Reach {
  std::unique_ptr<Transport> transport;
  RunnerBinary binary;
};

HostCrew::HostCrew(const config::RunnerConfig& runner, std::vector<std::string> hosts)
    : runner_(runner),
      connecting_(io_.get_executor(), static_cast<std::size_t>(runner.ssh.fanout)),
      hosts_(io_.get_executor()) {
  keep_freed_memory();
  for (std::string& host : hosts) {
    sessions_.push_back(std::make_shared<HostSession>(io_.get_executor(), host, runner_));
    results_.push_back({std::move(host), std::nullopt, {}});
  }
}

HostCrew::~HostCrew() = default;

Result<> HostCrew::run(std::function<asio::awaitable<Result<>>()> first, Work work,
                       std::function<void()> tick) {
  SORTIE_ASSIGN_OR_RETURN(RunnerBinary binary, open_runner_binary());
  auto transport = make_fleet_transport(io_.get_executor(), runner_, binary);
  reach_ = std::make_unique<Reach>(Reach{std::move(transport), std::move(binary)});
  std::signal(SIGPIPE, SIG_IGN);
  spawn(io_, watch_signals());
  spawn(io_, tick_loop(std::move(tick)));
  run_to_end(io_, conduct(std::move(first), std::move(work)));
  if (failure_) return std::unexpected(*failure_);
  return {};
}

asio::awaitable<void> HostCrew::conduct(std::function<asio::awaitable<Result<>>()> first,
                                        Work work) {
  const Result<> prepared = co_await first();
  if (!prepared) {
    failure_ = prepared.error();
    co_return;
  }
  serving_ = true;
  for (std::size_t index = 0; index < sessions_.size(); ++index) hosts_.spawn(serve(index, work));
  co_await hosts_.wait();
  co_await say_goodbye();
}

asio::awaitable<void> HostCrew::serve(std::size_t index, Work& work) {
  auto done = co_await attempt(index, work);
  HostResult& result = results_[index];
  result.given_up = !done && interrupted_;
  if (done)
    result.done = std::move(*done);
  else if (result.given_up)
    result.error = Error{ErrorCode::interrupted, "interrupted"};
  else
    result.error = std::move(done).error();
  // A failed session is closed at once; a finished one stays open, because others may fetch from
  // its host.
  if (result.error) sessions_[index]->close();
}

asio::awaitable<Result<wire::FilesDone>> HostCrew::attempt(std::size_t index, Work& work) {
  const auto session = sessions_[index];
  co_await connecting_.acquire();
  Result<> reached = fail(ErrorCode::interrupted, "interrupted");
  if (!interrupted_) reached = co_await session->connect(*reach_->transport, reach_->binary);
  if (reached) reached = co_await session->greet(reach_->binary.sha256());
  connecting_.release();
  if (!reached) co_return std::unexpected(std::move(reached).error());
  session->expect_progress(work_patience(runner_));
  co_return co_await work(index, session);
}

asio::awaitable<void> HostCrew::say_goodbye() {
  for (const auto& session : sessions_) session->send(wire::Goodbye{});
  const auto limit = Clock::now() + kGoodbye;
  // Waits until the runners have exited, so that they leave nothing behind, but at most kGoodbye.
  for (const auto& session : sessions_) {
    if (session->closed()) continue;
    asio::steady_timer timer(io_, limit);
    timer.async_wait([session](boost::system::error_code error) {
      if (!error) session->close();
    });
    for (bool open = true; open;) {
      const auto message = co_await session->next();
      open = message.has_value();
    }
    timer.cancel();
    session->close();
  }
}

asio::awaitable<void> HostCrew::watch_signals() {
  asio::signal_set signals(io_);
  add_terminal_signals(signals);
  for (;;) {
    const int number = co_await signals.async_wait(asio::use_awaitable);
    if (number == SIGTSTP) {
      print_stderr("\nsortie: {}\n", ctrl_z_refusal(""));
      continue;
    }
    if (interrupted_) std::_Exit(128 + number);
    for (const auto& session : sessions_) session->close();
    // All hosts are done: it only shortens the goodbye.
    if (serving_ && hosts_.running() == 0) continue;
    interrupted_ = 128 + number;
    if (!serving_) {
      failure_ = Error{ErrorCode::interrupted, "interrupted"};
      io_.stop();
    }
  }
}

asio::awaitable<void> HostCrew::tick_loop(std::function<void()> tick) {
  asio::steady_timer timer(io_);
  for (;;) {
    timer.expires_after(kTick);
    co_await timer.async_wait(kToken);
    tick();
  }
}

int print_host_errors(const std::vector<HostResult>& results) {
  std::vector<std::pair<std::string, Error>> errors;
  for (const HostResult& result : results)
    if (result.error && !result.given_up) errors.emplace_back(result.host, *result.error);
  if (errors.empty()) return kExitOk;
  print_stderr("{}\n", sortie::printable_lines(fold_errors(errors)));
  return exit_code_for(errors.front().second.code);
}

}  // namespace sortie::launcher
