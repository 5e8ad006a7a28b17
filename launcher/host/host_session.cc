#include "launcher/host/host_session.h"

#include <fmt/core.h>

#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "common/asio/token.h"
#include "common/base/boot_clock.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

HostSession::HostSession(asio::any_io_executor executor, std::string host,
                         const config::RunnerConfig& runner)
    : executor_(executor),
      host_(std::move(host)),
      runner_(runner),
      outgoing_ready_(executor, Clock::time_point::max()),
      watch_timer_(executor),
      drained_(executor, Clock::time_point::max()) {}

Clock::time_point HostSession::last_heard() const {
  return client_ ? client_->last_heard() : Clock::time_point();
}

asio::awaitable<Result<>> HostSession::connect(Transport& transport, const RunnerBinary& binary) {
  const auto self = shared_from_this();
  auto connection = co_await transport.connect(host_);
  if (!connection) co_return std::unexpected(std::move(connection).error());
  if (closed_) co_return fail(ErrorCode::interrupted, "given up");
  connection_ = std::move(*connection);
  std::function<void(bool)> on_push = [self](bool pushing) { self->pushing_ = pushing; };
  auto channel = co_await start_runner(*connection_, binary, runner_.startup_timeout, on_push);
  connection_->settled();
  if (!channel) co_return std::unexpected(std::move(channel).error());
  if (closed_) co_return fail(ErrorCode::interrupted, "given up");
  address_ = connection_->peer_address();  // a kept connection may have been replaced
  client_ = std::make_unique<RunnerClient>(std::move(*channel), known_clock_);
  co_return Result<>{};
}

asio::awaitable<Result<>> HostSession::greet(std::string expected_build) {
  const auto self = shared_from_this();
  const auto late = std::make_shared<bool>(false);
  const auto done = std::make_shared<bool>(false);
  asio::steady_timer deadline(executor_, runner_.startup_timeout);
  deadline.async_wait([this, self, late, done](boost::system::error_code error) {
    if (error || *done) return;
    *late = true;
    if (client_) client_->close();
  });
  Result<> greeted = co_await client_->greet(expected_build);
  *done = true;
  if (*late)
    co_return fail(ErrorCode::timeout,
                   fmt::format("runner: no answer within {} s (runner.startup_timeout)",
                               runner_.startup_timeout.count() / 1000));
  if (!greeted) co_return greeted;
  greeted_ = true;
  client_->touch();
  keep_alive();
  co_return Result<>();
}

asio::awaitable<Result<wire::Message>> HostSession::next() {
  const auto self = shared_from_this();
  for (;;) {
    if (closed_ && lost_early_) co_return std::unexpected(*lost_early_);
    if (closed_) co_return fail(ErrorCode::interrupted, "given up");
    client_->touch();
    reading_ = true;
    auto message = co_await client_->receive();
    reading_ = false;
    if (!message && lost_early_) co_return std::unexpected(*lost_early_);  // the actual reason
    if (message && std::holds_alternative<wire::Heartbeat>(*message)) continue;
    last_progress_ = Clock::now();
    co_return message;
  }
}

void HostSession::expect_progress(std::chrono::milliseconds limit) {
  patience_ = limit;
  last_progress_ = Clock::now();
}

bool HostSession::lost_patience() const {
  return patience_.count() > 0 && (reading_ || draining_) &&
         Clock::now() - last_progress_ > patience_;
}

asio::awaitable<void> HostSession::drained(std::size_t bytes) {
  const auto self = shared_from_this();
  draining_ = true;
  while (!closed_ && outgoing_bytes_ > bytes) {
    drained_.expires_at(Clock::time_point::max());
    co_await drained_.async_wait(kToken);
  }
  draining_ = false;
}

asio::awaitable<Result<>> HostSession::hand_over(wire::Message order, std::string expected_build) {
  if (greeted_) {
    send(order);
    co_return Result<>();
  }
  // Hello and job are sent together: one round trip less.
  const std::string bytes = hello_frame(expected_build) + wire::encode(order);
  co_return co_await client_->write(bytes);
}

asio::awaitable<Result<wire::JobReady>> HostSession::prepare(wire::JobSpec job,
                                                             std::string expected_build) {
  wire::Message order(std::move(job));
  auto answer = co_await open(std::move(order), std::move(expected_build));
  if (!answer) co_return std::unexpected(std::move(answer).error());
  if (auto* ready = std::get_if<wire::JobReady>(&*answer)) co_return std::move(*ready);
  co_return fail(ErrorCode::protocol, "runner sent Adopted before JobReady");
}

asio::awaitable<Result<>> HostSession::adopt(wire::Adopt order, std::string expected_build) {
  const std::uint32_t epoch = order.epoch, link = order.link;
  wire::Message message(std::move(order));
  auto answer = co_await open(std::move(message), std::move(expected_build));
  if (!answer) co_return std::unexpected(std::move(answer).error());
  const auto* adopted = std::get_if<wire::Adopted>(&*answer);
  if (!adopted || adopted->epoch != epoch || adopted->link != link)
    co_return fail(ErrorCode::protocol, "runner sent an unexpected answer to Adopt");
  events_taken_ = adopted->events;
  co_return co_await hear_clock();
}

/// Reads the first message after Adopted: a heartbeat, or what an older runner sends before one.
/// The clock is set by the time at which a heartbeat arrives, and start() may come many seconds
/// later, when all other hosts have been adopted, too.
asio::awaitable<Result<>> HostSession::hear_clock() {
  const auto self = shared_from_this();
  client_->touch();
  reading_ = true;  // limited by runner.heartbeat_timeout
  auto message = co_await client_->receive();
  reading_ = false;
  if (!message && lost_early_) co_return std::unexpected(*lost_early_);  // the actual reason
  if (!message) co_return std::unexpected(std::move(message).error());
  early_ = std::move(*message);
  co_return Result<>{};
}

asio::awaitable<Result<wire::Message>> HostSession::receive() {
  if (early_) co_return *std::exchange(early_, std::nullopt);
  co_return co_await client_->receive();
}

asio::awaitable<Result<wire::Message>> HostSession::open(wire::Message order,
                                                         std::string expected_build) {
  const auto self = shared_from_this();
  // Shared with the timer, which may fire after this coroutine has ended. done: the timer is a
  // no-op.
  enum class Wait { on, late, done };
  const auto wait = std::make_shared<Wait>(Wait::on);
  asio::steady_timer deadline(executor_, runner_.startup_timeout);
  deadline.async_wait([this, self, wait](boost::system::error_code error) {
    if (error || *wait == Wait::done) return;
    *wait = Wait::late;
    if (client_) client_->close();
  });
  const auto outcome = [&](Error error) -> Result<wire::Message> {
    if (std::exchange(*wait, Wait::done) == Wait::late)
      return fail(ErrorCode::timeout,
                  fmt::format("runner: not ready within {} s (runner.startup_timeout)",
                              runner_.startup_timeout.count() / 1000));
    return std::unexpected(std::move(error));
  };
  const bool prepares = std::holds_alternative<wire::JobSpec>(order);
  auto handed = co_await hand_over(std::move(order), std::move(expected_build));
  if (!handed) co_return outcome(std::move(handed).error());
  // A runner expects heartbeats while it prepares the job. What follows Adopt is for the holder.
  if (!greeted_ && prepares) keep_alive();
  auto message = co_await client_->answer();
  if (!message) {
    refusal_ = client_->refusal();
    co_return outcome(std::move(message).error());
  }
  if (!std::holds_alternative<wire::JobReady>(*message) &&
      !std::holds_alternative<wire::Adopted>(*message))
    co_return outcome({ErrorCode::protocol, fmt::format("runner sent {} before JobReady",
                                                        wire::message_name(*message))});
  *wait = Wait::done;
  if (!greeted_ && !prepares) keep_alive();
  co_return message;
}

}  // namespace sortie::launcher
