#include "runner/tunnel/holder_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <utility>
#include <vector>

#include "common/asio/spawn.h"
#include "common/base/c_strings.h"
#include "common/base/fd.h"
#include "common/base/json_member.h"
#include "common/base/json_text.h"
#include "runner/process/process_tree.h"
#include "runner/tunnel/link_device.h"
#include "runner/tunnel/tool.h"

namespace sortie::runner::tunnel {
namespace asio = boost::asio;
using Json = nlohmann::json;
using std::chrono::milliseconds;
namespace {

/// wg may take five seconds, wireguard-go three.
constexpr milliseconds kAnswerLimit{10000}, kEndLimit{4000};
constexpr std::size_t kMaxAnswer = 4u << 20;

std::string own_program() {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return length > 0 ? std::string(path.data(), static_cast<std::size_t>(length)) : std::string();
}

[[noreturn]] void exec_holder(const std::vector<std::string>& argv, int socket,
                              const ProcessDefaults& defaults) {
  ::dup2(socket, 0);
  ::dup2(socket, 1);
  cloexec_all_descriptors();
  if (::chdir("/") != 0) ::_exit(127);
  restore(defaults);
  ::execv(argv.front().c_str(), c_strings(argv).data());
  ::_exit(127);
}

}  // namespace

HolderProcess::HolderProcess(asio::io_context& io, const ProcessDefaults& defaults)
    : io_(io), defaults_(defaults), socket_(io), answered_(io) {}

Result<> HolderProcess::launch(const std::string& name,
                               const std::function<void(pid_t)>& on_child) {
  std::vector<std::string> argv = {own_program(), "tunnel", name};
  if (!may_configure_networks()) {
    const std::string sudo = find_tool("sudo");
    if (sudo.empty())
      return fail(ErrorCode::unsupported,
                  "a tunnel needs root or CAP_NET_ADMIN on this host, or sudo without a password; "
                  "sign in as root (runner.ssh.user), or install sudo");
    by_sudo_ = true;
    argv.insert(argv.begin(), {sudo, "-n", "--"});
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return std::unexpected(os_error(errno, "socketpair", ErrorCode::spawn));
  Fd mine(ends[0]);
  const Fd its(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return std::unexpected(os_error(errno, "fork", ErrorCode::spawn));
  if (pid == 0) exec_holder(argv, its.get(), defaults_);
  on_child(pid);
  boost::system::error_code error;
  socket_.assign(asio::local::stream_protocol(), mine.get(), error);
  if (error) return fail(ErrorCode::io, "epoll: " + error.message());
  mine.release();
  spawn(io_, listen());
  return {};
}

asio::awaitable<void> HolderProcess::listen() {
  const auto self = shared_from_this();
  std::string buffer;
  for (;;) {
    const auto [error, count] = co_await asio::async_read_until(
        socket_, asio::dynamic_buffer(buffer, kMaxAnswer), '\n', kToken);
    if (error) break;
    Json answer = Json::parse(buffer.substr(0, count), nullptr, /*allow_exceptions=*/false);
    buffer.erase(0, count);
    if (const std::string why = json_member::text(answer, "lost"); !why.empty()) {
      if (started_ && !ending_ && on_lost)
        std::exchange(on_lost, nullptr)({ErrorCode::runner, "the tunnel is gone: " + why});
      continue;
    }
    answers_.push_back(std::move(answer));
    answered_.notify();
  }
  gone_ = true;
  answered_.notify();
  if (started_ && !ending_ && on_lost)
    std::exchange(on_lost, nullptr)(
        {ErrorCode::runner, "the tunnel is gone: the process that held it was ended"});
}

asio::awaitable<Result<Json>> HolderProcess::next_answer(milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (answers_.empty() && !gone_) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero())
      co_return fail(ErrorCode::timeout, fmt::format("tunnel: no answer of its holder within {} s",
                                                     limit.count() / 1000));
    co_await answered_.wait(left);
  }
  if (answers_.empty())
    co_return fail(ErrorCode::unsupported,
                   by_sudo_
                       ? "a tunnel needs root or CAP_NET_ADMIN on this host, or sudo without a "
                         "password: `sudo -n` was refused; sign in as root (runner.ssh.user), "
                         "or allow it"
                       : "tunnel: the process that should hold it has ended");
  Json answer = std::move(answers_.front());
  answers_.pop_front();
  if (const std::string why = json_member::text(answer, "error"); !why.empty())
    co_return fail(json_member::text(answer, "code") == error_code_name(ErrorCode::unsupported)
                       ? ErrorCode::unsupported
                       : ErrorCode::runner,
                   "tunnel: " + why);
  if (!answer.is_object()) co_return fail(ErrorCode::runner, "tunnel: its holder speaks no JSON");
  co_return answer;
}

asio::awaitable<Result<Json>> HolderProcess::start(std::string name,
                                                   std::function<void(pid_t)> on_child) {
  const auto self = shared_from_this();
  if (auto launched = launch(name, on_child); !launched)
    co_return std::unexpected(std::move(launched).error());
  auto greeting = co_await next_answer(kAnswerLimit);
  started_ = greeting.has_value();
  co_return greeting;
}

asio::awaitable<Result<Json>> HolderProcess::ask(Json order) {
  const auto self = shared_from_this();
  const std::string line = json_text(order) + "\n";
  const auto [error, count] = co_await asio::async_write(socket_, asio::buffer(line), kToken);
  if (error) co_return fail(ErrorCode::lost, "tunnel: its holder is gone");
  co_return co_await next_answer(kAnswerLimit);
}

asio::awaitable<bool> HolderProcess::end() {
  const auto self = shared_from_this();
  ending_ = true;
  if (!socket_.is_open()) co_return true;
  boost::system::error_code ignored;
  socket_.shutdown(asio::local::stream_protocol::socket::shutdown_send, ignored);
  const auto deadline = std::chrono::steady_clock::now() + kEndLimit;
  while (!gone_ && std::chrono::steady_clock::now() < deadline)
    co_await answered_.wait(deadline - std::chrono::steady_clock::now());
  socket_.close(ignored);
  co_return gone_;
}

}  // namespace sortie::runner::tunnel
