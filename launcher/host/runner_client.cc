#include "launcher/host/runner_client.h"

#include <fmt/core.h>

#include <boost/asio/use_awaitable.hpp>

#include "common/base/boot_clock.h"
#include "launcher/host/host_texts.h"

namespace sortie::launcher {
namespace asio = boost::asio;

namespace {

// Most hosts send little most of the time, and there may be thousands.
constexpr std::size_t kLeastRead = 4u << 10, kMostRead = 64u << 10;

Error ended(const Channel& channel) {
  const std::string said = last_words(channel.stderr_tail());
  return {ErrorCode::lost, said.empty() ? "the runner ended unexpectedly"
                                        : "the runner ended unexpectedly; it said: " + said};
}

}  // namespace

std::string hello_frame(const std::string& build) {
  return wire::encode(wire::Hello{wire::kProtocolVersion, build});
}

Result<> check_hello(const wire::Hello& hello) {
  if (hello.protocol_version == wire::kProtocolVersion) return {};
  return fail(ErrorCode::protocol, fmt::format("runner speaks protocol {}, this sortie {}",
                                               hello.protocol_version, wire::kProtocolVersion));
}

void RunnerClient::grow_or_shrink(std::size_t count) {
  if (count == buffer_.size() && count < kMostRead) {
    buffer_.resize(4 * count);
  } else if (count < kLeastRead && buffer_.size() > kLeastRead) {
    buffer_.resize(kLeastRead);
    buffer_.shrink_to_fit();
  }
}

asio::awaitable<Result<wire::Message>> RunnerClient::receive() {
  for (;;) {
    auto frame = decoder_.next();
    if (!frame) co_return std::unexpected(with_context(std::move(frame).error(), "runner"));
    if (*frame) {
      auto message = wire::decode(**frame);
      if (!message) co_return std::unexpected(with_context(std::move(message).error(), "runner"));
      bound_texts(*message);
      clock_.heard(time_in(*message), boot_ms());
      co_return std::move(*message);
    }
    if (buffer_.empty()) buffer_.resize(kLeastRead);
    auto count = co_await channel_->read_some(buffer_);
    if (!count) co_return std::unexpected(std::move(count).error());
    if (*count == 0) {
      at_end_ = true;
      co_return std::unexpected(ended(*channel_));
    }
    touch();
    decoder_.feed(std::string_view(buffer_).substr(0, *count));
    grow_or_shrink(*count);
  }
}

asio::awaitable<Result<wire::Message>> RunnerClient::answer() {
  for (;;) {
    auto message = co_await receive();
    if (!message) co_return message;
    if (const auto* error = std::get_if<wire::RunnerError>(&*message)) {
      refusal_ = *error;
      co_return fail(runner_error_code(*error), error->message);
    }
    if (std::holds_alternative<wire::Heartbeat>(*message)) continue;
    const auto* hello = std::get_if<wire::Hello>(&*message);
    if (!hello) co_return message;
    const auto checked = check_hello(*hello);
    if (!checked) co_return std::unexpected(checked.error());
  }
}

asio::awaitable<Result<>> RunnerClient::greet(const std::string& build) {
  const std::string frame = hello_frame(build);
  auto written = co_await write(frame);
  if (!written) co_return std::unexpected(std::move(written).error());
  auto message = co_await receive();
  if (!message) co_return std::unexpected(std::move(message).error());
  if (const auto* error = std::get_if<wire::RunnerError>(&*message))
    co_return fail(runner_error_code(*error), error->message);
  const auto* hello = std::get_if<wire::Hello>(&*message);
  if (!hello)
    co_return fail(ErrorCode::protocol,
                   fmt::format("runner sent {} before Hello", wire::message_name(*message)));
  co_return check_hello(*hello);
}

}  // namespace sortie::launcher
