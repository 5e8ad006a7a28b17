// Shared by tests of the SSH transport: a user with a separate home folder, and a function that
// runs a coroutine to its end within a bounded time.
#pragma once

#include <pwd.h>
#include <unistd.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "launcher/ssh/ssh_transport.h"
#include "tests/support/run_within.h"
#include "tests/support/sshd.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher::testing {

using namespace sortie::testing;
using namespace std::chrono_literals;

template <class T>
T finish(boost::asio::io_context& io, boost::asio::awaitable<T> work,
         std::chrono::seconds limit = 60s) {
  std::optional<T> result;
  std::exception_ptr thrown;
  boost::asio::co_spawn(io, std::move(work), [&](std::exception_ptr error, T value) {
    thrown = error;
    result.emplace(std::move(value));
    io.stop();
  });
  io.restart();
  test::run_within(io, limit);
  if (thrown) std::rethrow_exception(thrown);
  if (!result) throw std::runtime_error("the coroutine did not end in time");
  return std::move(*result);
}

/// A port of this machine, as a host.
inline std::string at(int port) {
  return "127.0.0.1:" + std::to_string(port);
}

/// A user with a temporary home, an ed25519 key, and no agent.
struct World {
  World() {
    std::filesystem::create_directories(home());
    std::filesystem::permissions(home(), std::filesystem::perms::owner_all);
    public_key = make_key(home() / "id_ed25519");
    environment.home = folder / "user";
    environment.user = ::getpwuid(::getuid())->pw_name;
    environment.variables = ssh::UserEnvironment::from_process().variables;
  }

  std::filesystem::path home() const { return folder / "user/.ssh"; }
  void know(const std::string& lines) { write_text(home() / "known_hosts", lines); }
  std::string known() const { return read_text(home() / "known_hosts"); }
  void configure(const std::string& text) { write_text(home() / "config", text); }

  /// Runs the I/O context for `time`, even if it has no work.
  void spend(std::chrono::milliseconds time) {
    const auto until = std::chrono::steady_clock::now() + time;
    io.restart();
    io.run_until(until);
    std::this_thread::sleep_until(until);
  }

  /// Runs it until `condition` is true; false after half a minute.
  bool until(const std::function<bool()>& condition) {
    for (int i = 0; i < 1500 && !condition(); ++i) spend(20ms);
    return condition();
  }

  std::unique_ptr<Transport> transport(config::SshConfig ssh = {}) {
    return make_ssh_transport(io.get_executor(), ssh, environment);
  }
  Result<std::unique_ptr<Connection>> connect(const std::string& host, config::SshConfig ssh = {}) {
    auto transport_now = transport(ssh);
    return finish(io, transport_now->connect(host));
  }
  /// Connects to a server that is expected to accept. Throws if it does not.
  std::unique_ptr<Connection> connect_to(const Sshd& server) {
    auto connection = connect("127.0.0.1:" + std::to_string(server.port()));
    if (!connection) throw std::runtime_error(connection.error().message + "\n" + server.log());
    return std::move(*connection);
  }
  std::unique_ptr<Channel> start(Connection& connection, const std::string& command) {
    auto channel = finish(io, connection.exec(command));
    if (!channel) throw std::runtime_error(channel.error().message);
    return std::move(*channel);
  }

  struct Ran {
    std::string output;
    ProcessStatus status;
  };
  Result<Ran> run_command(Connection& connection, const std::string& command) {
    auto channel = start(connection, command);
    return finish(io, read_all(*channel));
  }
  static boost::asio::awaitable<Result<Ran>> read_all(Channel& channel) {
    Ran ran;
    char buffer[65536];
    for (;;) {
      auto count = co_await channel.read_some(buffer);
      if (!count) co_return std::unexpected(count.error());
      if (*count == 0) break;
      ran.output.append(buffer, *count);
    }
    auto status = co_await channel.wait();
    if (!status) co_return std::unexpected(status.error());
    ran.status = *status;
    co_return ran;
  }

  TempDir folder;
  std::string public_key;
  ssh::UserEnvironment environment;
  boost::asio::io_context io;
};

}  // namespace sortie::launcher::testing
