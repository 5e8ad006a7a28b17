#include "launcher/supervise/sweep.h"

#include <fmt/core.h>

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <optional>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/wire/codec.h"
#include "launcher/host/runner_client.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kBetweenAttempts{500};
constexpr std::chrono::seconds kAnswerMargin{15};

/// Shared by sweep_host() and its tries, which may hang in a connect and outlive it.
struct State {
  State(asio::any_io_executor executor, Transport& to, const RunnerBinary& with,
        const config::RunnerConfig& settings, SweepOrder what)
      : transport(to), binary(with), runner(settings), order(std::move(what)), changed(executor) {}
  Transport& transport;
  const RunnerBinary& binary;
  const config::RunnerConfig& runner;
  const SweepOrder order;
  asio::steady_timer changed;
  std::optional<Result<wire::Swept>> outcome;
  std::string trouble;  // of the last attempt
  bool reached = false, given_up = false;
  RunnerClient* runner_there = nullptr;  // while its answer is awaited
};

std::string order_bytes(const State& state) {
  const auto patience = static_cast<std::uint32_t>(state.order.patience.count());
  return hello_frame(state.binary.sha256()) +
         wire::encode(
             wire::Sweep{state.order.run_id, patience, state.order.cgroup, state.order.engine});
}

asio::awaitable<Result<wire::Swept>> converse(const State& state, RunnerClient& runner) {
  const std::string bytes = order_bytes(state);
  auto written = co_await runner.write(bytes);
  if (!written) co_return std::unexpected(std::move(written).error());
  auto answer = co_await runner.answer();
  if (!answer) co_return std::unexpected(std::move(answer).error());
  if (auto* swept = std::get_if<wire::Swept>(&*answer)) co_return std::move(*swept);
  co_return fail(ErrorCode::protocol,
                 fmt::format("runner sent {} before Swept", wire::message_name(*answer)));
}

/// One try to reach and sweep the host. Returns false if it should be retried.
asio::awaitable<bool> attempt(std::shared_ptr<State> state) {
  auto connection = co_await state->transport.connect(state->order.host);
  if (state->given_up) co_return true;
  if (!connection) {
    state->trouble = connection.error().message;
    co_return false;
  }
  auto channel = co_await start_runner(**connection, state->binary, state->runner.startup_timeout);
  if (state->given_up) co_return true;
  if (!channel) {
    state->trouble = channel.error().message;
    co_return false;
  }
  state->reached = true;
  RunnerClient runner(std::move(*channel));
  state->runner_there = &runner;
  state->changed.cancel();
  auto answer = co_await converse(*state, runner);
  state->runner_there = nullptr;
  runner.close();
  (*connection)->close();
  if (!state->given_up) state->outcome = std::move(answer);
  state->changed.cancel();
  co_return true;
}

asio::awaitable<void> attempts(std::shared_ptr<State> state) {
  while (!state->given_up) {
    const bool over = co_await attempt(state);
    if (over || state->given_up) break;
    asio::steady_timer pause(state->changed.get_executor(), kBetweenAttempts);
    co_await pause.async_wait(kToken);
  }
}

}  // namespace

asio::awaitable<Result<wire::Swept>> sweep_host(asio::any_io_executor executor,
                                                Transport& transport, const RunnerBinary& binary,
                                                const config::RunnerConfig& runner,
                                                SweepOrder order) {
  const auto state = std::make_shared<State>(executor, transport, binary, runner, std::move(order));
  spawn(executor, attempts(state));
  const auto begin = Clock::now();
  while (!state->outcome) {
    const auto deadline =
        begin + state->order.reach +
        (state->reached ? state->order.patience + kAnswerMargin : milliseconds(0));
    if (Clock::now() >= deadline) break;
    state->changed.expires_at(deadline);
    co_await state->changed.async_wait(kToken);
  }
  if (state->outcome) co_return std::move(*state->outcome);
  state->given_up = true;
  if (state->runner_there) state->runner_there->close();
  if (state->reached) co_return fail(ErrorCode::timeout, "no answer from a fresh runner there");
  co_return fail(ErrorCode::connect,
                 state->trouble.empty() ? "not reached again" : std::move(state->trouble));
}

}  // namespace sortie::launcher
