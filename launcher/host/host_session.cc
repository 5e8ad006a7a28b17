#include "launcher/host/host_session.h"

#include <fmt/core.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "common/base/boot_clock.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {
constexpr auto kToken = asio::as_tuple(asio::use_awaitable);
// Most hosts say little most of the time, and there may be thousands.
constexpr std::size_t kLeastRead = 4u << 10, kMostRead = 64u << 10;

/// Words of a host go into messages and files of ours: no host says more than a person would read.
void limit_texts(wire::Message& message) {
  constexpr std::size_t kMaxWordBytes = 256, kMaxMessageBytes = 4096, kMaxAddresses = 1024;
  const auto limit = [](std::string& text, std::size_t bytes) {
    if (text.size() > bytes) text = text.substr(0, bytes) + "...";
  };
  if (auto* ready = std::get_if<wire::JobReady>(&message)) {
    for (std::string* text : {&ready->hostname, &ready->kernel, &ready->pmix, &ready->binding})
      limit(*text, kMaxWordBytes);
    limit(ready->cgroup, kMaxMessageBytes);  // a path
    if (ready->addresses.size() > kMaxAddresses) ready->addresses.resize(kMaxAddresses);
    for (std::string& text : ready->addresses) limit(text, kMaxWordBytes);
    for (auto& [peer, address] : ready->routes) {
      limit(peer, kMaxWordBytes);
      limit(address, kMaxWordBytes);
    }
    for (std::string& text : ready->cpu_sets) limit(text, kMaxMessageBytes);
  } else if (auto* error = std::get_if<wire::RunnerError>(&message)) {
    limit(error->code, kMaxWordBytes);
    limit(error->message, kMaxMessageBytes);
  } else if (auto* progress = std::get_if<wire::ImageProgress>(&message)) {
    limit(progress->text, kMaxWordBytes);
  } else if (auto* image = std::get_if<wire::ImageReady>(&message)) {
    for (std::string* text : {&image->image_id, &image->engine_version})
      limit(*text, kMaxWordBytes);
    limit(image->repo_digest, kMaxMessageBytes);
  } else if (auto* abort = std::get_if<wire::PmixAbort>(&message)) {
    limit(abort->message, kMaxMessageBytes);
  }
}

/// When it was sent, by the host's boot clock; 0 when it does not say.
std::uint64_t time_in(const wire::Message& message) {
  if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) return beat->time_boot_ms;
  if (const auto* ready = std::get_if<wire::JobReady>(&message)) return ready->time_boot_ms;
  return 0;
}
}  // namespace

ErrorCode runner_error_code(const wire::RunnerError& error) {
  for (const ErrorCode code : {ErrorCode::unsupported, ErrorCode::spawn, ErrorCode::protocol})
    if (error.code == error_code_name(code)) return code;
  return ErrorCode::runner;
}

HostSession::HostSession(asio::any_io_executor executor, std::string host,
                         const config::RunnerConfig& runner)
    : executor_(executor),
      host_(std::move(host)),
      runner_(runner),
      outgoing_ready_(executor, Clock::time_point::max()),
      watch_timer_(executor),
      drained_(executor, Clock::time_point::max()) {}

std::string HostSession::runner_stderr() const {
  return channel_ ? channel_->stderr_tail() : std::string();
}

asio::awaitable<Result<>> HostSession::connect(Transport& transport, const RunnerBinary& binary) {
  const auto self = shared_from_this();
  auto connection = co_await transport.connect(host_);
  if (!connection) co_return std::unexpected(std::move(connection).error());
  if (closed_) co_return fail(ErrorCode::interrupted, "given up");
  connection_ = std::move(*connection);
  address_ = connection_->peer_address();
  std::function<void(bool)> on_push = [self](bool pushing) { self->pushing_ = pushing; };
  auto channel = co_await start_runner(*connection_, binary, runner_.startup_timeout, on_push);
  connection_->settled();
  if (!channel) co_return std::unexpected(std::move(channel).error());
  if (closed_) co_return fail(ErrorCode::interrupted, "given up");
  channel_ = std::move(*channel);
  co_return Result<>{};
}

asio::awaitable<Result<wire::Message>> HostSession::receive() {
  for (;;) {
    auto frame = decoder_.next();
    if (!frame) co_return std::unexpected(with_context(std::move(frame).error(), "runner"));
    if (*frame) {
      auto message = wire::decode(**frame);
      if (!message) co_return std::unexpected(with_context(std::move(message).error(), "runner"));
      limit_texts(*message);
      clock_.heard(time_in(*message), boot_ms());
      co_return std::move(*message);
    }
    if (read_buffer_.empty()) read_buffer_.resize(kLeastRead);
    auto count = co_await channel_->read_some(read_buffer_);
    if (!count) co_return std::unexpected(std::move(count).error());
    if (*count == 0) {
      std::string said = channel_->stderr_tail();
      while (!said.empty() && said.back() == '\n') said.pop_back();
      co_return fail(ErrorCode::lost, said.empty()
                                          ? "the runner ended unexpectedly"
                                          : "the runner ended unexpectedly; it said: " + said);
    }
    last_heard_ = Clock::now();
    decoder_.feed({read_buffer_.data(), *count});
    if (*count == read_buffer_.size() && *count < kMostRead) {
      read_buffer_.resize(4 * *count);
    } else if (*count < kLeastRead && read_buffer_.size() > kLeastRead) {
      read_buffer_.resize(kLeastRead);
      read_buffer_.shrink_to_fit();
    }
  }
}

asio::awaitable<Result<>> HostSession::greet(std::string expected_build) {
  const auto self = shared_from_this();
  const auto late = std::make_shared<bool>(false);
  const auto done = std::make_shared<bool>(false);
  asio::steady_timer deadline(executor_, runner_.startup_timeout);
  deadline.async_wait([this, self, late, done](boost::system::error_code error) {
    if (error || *done) return;
    *late = true;
    if (channel_) channel_->close();
  });
  const std::string bytes = wire::encode(wire::Hello{wire::kProtocolVersion, expected_build});
  Result<wire::Message> answer = fail(ErrorCode::lost, "");
  auto written = co_await channel_->write(bytes);
  if (written)
    answer = co_await receive();
  else
    answer = std::unexpected(written.error());
  *done = true;
  if (*late)
    co_return fail(ErrorCode::timeout,
                   fmt::format("runner: no answer within {} s (runner.startup_timeout)",
                               runner_.startup_timeout.count() / 1000));
  if (!answer) co_return std::unexpected(std::move(answer).error());
  if (const auto* error = std::get_if<wire::RunnerError>(&*answer))
    co_return fail(runner_error_code(*error), error->message);
  const auto* hello = std::get_if<wire::Hello>(&*answer);
  if (!hello || hello->protocol_version != wire::kProtocolVersion)
    co_return fail(ErrorCode::protocol, "the runner speaks another protocol than this sortie");
  greeted_ = true;
  last_heard_ = Clock::now();
  keep_alive();
  co_return Result<>();
}

asio::awaitable<Result<wire::Message>> HostSession::next() {
  const auto self = shared_from_this();
  for (;;) {
    if (closed_ && lost_early_) co_return std::unexpected(*lost_early_);
    if (closed_) co_return fail(ErrorCode::interrupted, "given up");
    last_heard_ = Clock::now();
    reading_ = true;
    auto message = co_await receive();
    reading_ = false;
    if (!message && lost_early_) co_return std::unexpected(*lost_early_);  // silence has a reason
    if (message && std::holds_alternative<wire::Heartbeat>(*message)) continue;
    co_return message;
  }
}

asio::awaitable<void> HostSession::drained(std::size_t bytes) {
  const auto self = shared_from_this();
  while (!closed_ && outgoing_bytes_ > bytes) {
    drained_.expires_at(Clock::time_point::max());
    co_await drained_.async_wait(kToken);
  }
}

asio::awaitable<Result<>> HostSession::hand_over(wire::Message order, std::string expected_build) {
  if (greeted_) {
    send(order);
    co_return Result<>();
  }
  // Hello and job go out together: one round trip less.
  const std::string bytes =
      wire::encode(wire::Hello{wire::kProtocolVersion, expected_build}) + wire::encode(order);
  co_return co_await channel_->write(bytes);
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
    co_return fail(ErrorCode::protocol, "runner answered an adoption out of turn");
  events_taken_ = adopted->events;
  co_return Result<>{};
}

asio::awaitable<Result<wire::Message>> HostSession::open(wire::Message order,
                                                         std::string expected_build) {
  const auto self = shared_from_this();
  // Shared with the timer: it may have fired when this frame is gone. Done: it does nothing more.
  enum class Wait { on, late, done };
  const auto wait = std::make_shared<Wait>(Wait::on);
  asio::steady_timer deadline(executor_, runner_.startup_timeout);
  deadline.async_wait([this, self, wait](boost::system::error_code error) {
    if (error || *wait == Wait::done) return;
    *wait = Wait::late;
    if (channel_) channel_->close();
  });
  const auto outcome = [&](Error error) -> Result<wire::Message> {
    if (std::exchange(*wait, Wait::done) == Wait::late)
      return fail(ErrorCode::timeout,
                  fmt::format("runner: not ready within {} s (runner.startup_timeout)",
                              runner_.startup_timeout.count() / 1000));
    return std::unexpected(std::move(error));
  };
  auto handed = co_await hand_over(std::move(order), std::move(expected_build));
  if (!handed) co_return outcome(std::move(handed).error());
  for (;;) {
    auto message = co_await receive();
    if (!message) co_return outcome(std::move(message).error());
    if (const auto* hello = std::get_if<wire::Hello>(&*message)) {
      if (hello->protocol_version != wire::kProtocolVersion)
        co_return outcome(
            {ErrorCode::protocol, fmt::format("runner speaks protocol {}, this sortie {}",
                                              hello->protocol_version, wire::kProtocolVersion)});
    } else if (std::holds_alternative<wire::JobReady>(*message) ||
               std::holds_alternative<wire::Adopted>(*message)) {
      *wait = Wait::done;
      if (!greeted_) keep_alive();
      co_return std::move(*message);
    } else if (const auto* error = std::get_if<wire::RunnerError>(&*message)) {
      refusal_ = *error;
      co_return outcome({runner_error_code(*error), error->message});
    } else if (!std::holds_alternative<wire::Heartbeat>(*message)) {
      co_return outcome({ErrorCode::protocol, fmt::format("runner sent {} before JobReady",
                                                          wire::message_name(*message))});
    }
  }
}

}  // namespace sortie::launcher
