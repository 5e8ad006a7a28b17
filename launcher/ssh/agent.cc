#include "launcher/ssh/agent.h"

#include <fmt/core.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <optional>

#include "common/asio/token.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
namespace {

using LocalSocket = asio::local::stream_protocol::socket;

constexpr char kRequestIdentities = 11;
constexpr char kIdentitiesAnswer = 12;
constexpr std::uint32_t kMaxMessage = 256 * 1024;  // as OpenSSH's
constexpr std::uint32_t kMaxKeys = 2048;

void append_u32(std::string& out, std::uint32_t value) {
  for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(value >> shift & 0xff);
}

std::uint32_t u32_at(std::string_view bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::optional<std::string_view> take_string(std::string_view& rest) {
  if (rest.size() < 4) return std::nullopt;
  const std::uint32_t size = u32_at(rest);
  if (rest.size() - 4 < size) return std::nullopt;
  const std::string_view text = rest.substr(4, size);
  rest.remove_prefix(4 + size);
  return text;
}

Error agent_error(const std::string& path, std::string_view what) {
  return {ErrorCode::auth, fmt::format("ssh-agent at {}: {}", path, what)};
}

}  // namespace

std::string with_length(std::string_view message) {
  std::string framed;
  append_u32(framed, static_cast<std::uint32_t>(message.size()));
  framed += message;
  return framed;
}

std::string make_identities_answer(const AgentKey& key) {
  std::string message(1, kIdentitiesAnswer);
  append_u32(message, 1);
  message += with_length(key.blob);
  message += with_length(key.comment);
  return with_length(message);
}

asio::awaitable<Result<std::string>> ask_agent(std::string socket_path, std::string request,
                                               std::chrono::steady_clock::time_point deadline) {
  const auto socket = std::make_shared<LocalSocket>(co_await asio::this_coro::executor);
  asio::steady_timer timer(socket->get_executor(), deadline);
  timer.async_wait([socket](const boost::system::error_code& cancelled) {
    boost::system::error_code ignored;
    if (!cancelled) socket->close(ignored);
  });
  const auto failed = [&](const boost::system::error_code& error) {
    const bool late = std::chrono::steady_clock::now() >= deadline;
    return std::unexpected(agent_error(socket_path, late ? "no answer in time" : error.message()));
  };
  if (socket_path.size() >= 108)
    co_return std::unexpected(agent_error(socket_path, "path too long"));
  const asio::local::stream_protocol::endpoint endpoint(socket_path);
  auto [connect_error] = co_await socket->async_connect(endpoint, kToken);
  if (connect_error) co_return failed(connect_error);
  const std::string framed = with_length(request);
  auto [write_error, written] = co_await asio::async_write(*socket, asio::buffer(framed), kToken);
  if (write_error) co_return failed(write_error);
  std::string header(4, '\0');
  auto [header_error, header_size] =
      co_await asio::async_read(*socket, asio::buffer(header), kToken);
  if (header_error) co_return failed(header_error);
  const std::uint32_t size = u32_at(header);
  if (size == 0 || size > kMaxMessage)
    co_return std::unexpected(agent_error(socket_path, fmt::format("answer of {} bytes", size)));
  std::string answer(size, '\0');
  auto [read_error, read_size] = co_await asio::async_read(*socket, asio::buffer(answer), kToken);
  if (read_error) co_return failed(read_error);
  co_return answer;
}

asio::awaitable<Result<std::vector<AgentKey>>> list_agent_keys(
    std::string socket_path, std::chrono::steady_clock::time_point deadline) {
  auto answer = co_await ask_agent(socket_path, std::string(1, kRequestIdentities), deadline);
  if (!answer) co_return std::unexpected(std::move(answer).error());
  std::string_view rest = *answer;
  if (rest.front() != kIdentitiesAnswer || rest.size() < 5)
    co_return std::unexpected(agent_error(socket_path, "does not list its keys"));
  const std::uint32_t count = u32_at(rest.substr(1));
  rest.remove_prefix(5);
  std::vector<AgentKey> keys;
  for (std::uint32_t i = 0; i < count && i < kMaxKeys; ++i) {
    const auto blob = take_string(rest);
    const auto comment = blob ? take_string(rest) : std::nullopt;
    if (!comment) co_return std::unexpected(agent_error(socket_path, "garbled list of keys"));
    keys.push_back({std::string(*blob), std::string(*comment)});
  }
  co_return keys;
}

}  // namespace sortie::launcher::ssh
