#include "launcher/ssh/ssh_transport.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <map>

#include "launcher/ssh/auth.h"
#include "launcher/ssh/channel.h"
#include "launcher/ssh/credentials.h"
#include "launcher/ssh/dial.h"
#include "launcher/ssh/handshake.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/jump.h"
#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/resolver.h"
#include "launcher/ssh/session.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace ssh {
namespace {

// A session and how it was reached.
struct Reached {
  std::shared_ptr<SessionCore> core;
  std::string address;
  std::vector<StageTime> stages;
  Clock::time_point stage_begun = Clock::now();

  // The stage that began where the last one ended is over.
  void passed(ErrorCode stage) {
    const auto now = Clock::now();
    stages.push_back({error_code_name(stage),
                      std::chrono::duration_cast<std::chrono::microseconds>(now - stage_begun)});
    stage_begun = now;
  }
};

// A connection to a jump host, shared by all targets behind it. Lives as long as one of them does.
struct JumpConnection {
  explicit JumpConnection(const asio::any_io_executor& executor) : settled(executor, kNoDeadline) {}
  ~JumpConnection() {
    if (core) core->close();
  }
  asio::steady_timer settled;  // cancelled when done
  bool done = false;
  Error error;
  std::shared_ptr<SessionCore> core;  // null when it failed
};

// Shared by the transport and the coroutines inside connect().
struct TransportState : std::enable_shared_from_this<TransportState> {
  TransportState(asio::any_io_executor e, config::SshConfig s, UserEnvironment env)
      : executor(e),
        ssh(std::move(s)),
        environment(env),
        config_reader(env, ssh.config_file),
        resolver(e) {}

  asio::any_io_executor executor;
  const config::SshConfig ssh;
  const UserEnvironment environment;
  SshConfigReader config_reader;
  Resolver resolver;
  std::shared_ptr<KnownHosts> known_hosts = std::make_shared<KnownHosts>();
  std::shared_ptr<Credentials> credentials = std::make_shared<Credentials>();
  std::map<std::string, std::weak_ptr<JumpConnection>> jump_connections;  // by chain

  Result<HostSettings> settings_for(const HostSpec& spec, bool is_jump) {
    SORTIE_ASSIGN_OR_RETURN(const HostConfig files, config_reader.lookup(spec.host));
    return make_host_settings(spec, ssh, files, environment, is_jump);
  }

  Result<> check_jumps(const HostSettings& settings, std::vector<std::string> path);
  asio::awaitable<Result<std::shared_ptr<JumpConnection>>> reach_jump(
      std::vector<std::string> jumps);
  asio::awaitable<void> settle_jump(std::shared_ptr<JumpConnection> connection, HostSpec spec,
                                    std::vector<std::string> before);
  asio::awaitable<Result<Reached>> reach_with(HostSettings settings);
};

// The first jump host may have a ProxyJump of its own, and so on. A loop is found before anything
// connects: connections in the making wait for each other.
Result<> TransportState::check_jumps(const HostSettings& settings, std::vector<std::string> path) {
  if (settings.jumps.empty()) return {};
  const std::string& jump = settings.jumps.front();
  if (std::ranges::find(path, jump) != path.end())
    return fail(
        ErrorCode::config,
        fmt::format("ProxyJump of {} leads back to itself; give one of them ProxyJump none", jump));
  path.push_back(jump);
  SORTIE_ASSIGN_OR_RETURN(const HostSpec spec, parse_host_spec(jump));
  SORTIE_ASSIGN_OR_RETURN(const HostSettings next, settings_for(spec, true));
  return check_jumps(next, std::move(path));
}

// Over TCP or through the jump hosts: connect, shake hands, sign in.
asio::awaitable<Result<Reached>> TransportState::reach_with(HostSettings settings) {
  const auto self = shared_from_this();
  Fd socket;
  Reached reached;
  std::shared_ptr<void> carrier;
  if (settings.jumps.empty()) {
    auto endpoints =
        co_await resolver.resolve(settings.host_name, settings.port, ssh.resolve_timeout);
    if (!endpoints) co_return std::unexpected(std::move(endpoints).error());
    reached.passed(ErrorCode::resolve);
    auto dialled = co_await dial(std::move(*endpoints), ssh.connect_timeout);
    if (!dialled) co_return std::unexpected(std::move(dialled).error());
    socket = std::move(dialled->socket);
    reached.address = std::move(dialled->address);
  } else {
    auto jump = co_await reach_jump(settings.jumps);
    if (!jump) co_return std::unexpected(std::move(jump).error());
    carrier = *jump;
    auto dialled = co_await dial_through((*jump)->core, settings.host_name, settings.port,
                                         Clock::now() + ssh.connect_timeout);
    if (!dialled)
      co_return std::unexpected(with_context(std::move(dialled).error(),
                                             fmt::format("jump host {}", settings.jumps.back())));
    socket = std::move(*dialled);
  }
  reached.passed(ErrorCode::connect);
  auto core = SessionCore::create(executor, std::move(socket), std::move(carrier));
  if (!core) co_return std::unexpected(std::move(core).error());
  auto shaken = co_await shake_hands(*core, settings, known_hosts, ssh);
  if (!shaken) {
    (*core)->close();
    co_return std::unexpected(std::move(shaken).error());
  }
  reached.passed(ErrorCode::handshake);  // with the host key, which is a part of it
  auto signed_in = co_await authenticate(*core, settings, credentials, ssh.auth_timeout);
  if (!signed_in) {
    (*core)->close();
    co_return std::unexpected(std::move(signed_in).error());
  }
  reached.passed(ErrorCode::auth);
  reached.core = std::move(*core);
  co_return reached;
}

asio::awaitable<void> TransportState::settle_jump(std::shared_ptr<JumpConnection> connection,
                                                  HostSpec spec, std::vector<std::string> before) {
  const auto self = shared_from_this();
  auto settings = settings_for(spec, true);
  if (!settings) {
    connection->error = settings.error();
  } else {
    // In a list, each hop is reached through those before it; only the first has its own ProxyJump.
    if (!before.empty()) settings->jumps = before;
    auto reached = co_await reach_with(*settings);
    if (reached)
      connection->core = reached->core;
    else
      connection->error = reached.error();
  }
  connection->done = true;
  connection->settled.cancel();
}

asio::awaitable<Result<std::shared_ptr<JumpConnection>>> TransportState::reach_jump(
    std::vector<std::string> jumps) {
  const auto self = shared_from_this();
  std::string chain;
  for (const auto& jump : jumps) chain += jump + '>';
  const std::string last = jumps.back();
  auto spec = parse_host_spec(last);
  if (!spec) co_return std::unexpected(std::move(spec).error());

  auto connection = jump_connections[chain].lock();
  const bool usable =
      connection && (!connection->done || (connection->core && !connection->core->closed() &&
                                           !connection->core->broken()));
  if (!usable) {
    connection = std::make_shared<JumpConnection>(executor);
    jump_connections[chain] = connection;
    jumps.pop_back();
    // A coroutine of its own: the target that came first may be given up while others wait.
    asio::co_spawn(executor, settle_jump(connection, *spec, jumps), asio::detached);
  }
  while (!connection->done)
    co_await connection->settled.async_wait(asio::as_tuple(asio::use_awaitable));
  if (!connection->core)
    co_return std::unexpected(with_context(connection->error, fmt::format("jump host {}", last)));
  co_return connection;
}

class SshConnection : public Connection {
 public:
  SshConnection(Reached reached, std::chrono::milliseconds exec_timeout)
      : core_(std::move(reached.core)),
        address_(std::move(reached.address)),
        stages_(std::move(reached.stages)),
        exec_timeout_(exec_timeout) {}
  ~SshConnection() override { core_->close(); }

  asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) override {
    return exec_on(core_, std::move(command), exec_timeout_);
  }
  std::string peer_address() const override { return address_; }
  std::vector<StageTime> stages() const override { return stages_; }
  void close() override { core_->close(); }

 private:
  static asio::awaitable<Result<std::unique_ptr<Channel>>> exec_on(
      std::shared_ptr<SessionCore> core, std::string command, std::chrono::milliseconds timeout) {
    auto state = ChannelState::create(core);
    if (!state) co_return std::unexpected(std::move(state).error());
    auto opened = co_await (*state)->open_exec(std::move(command), Clock::now() + timeout);
    if (!opened) {
      (*state)->close();
      co_return std::unexpected(std::move(opened).error());
    }
    std::unique_ptr<Channel> channel = std::make_unique<SshChannel>(std::move(*state));
    co_return channel;
  }

  std::shared_ptr<SessionCore> core_;
  std::string address_;
  std::vector<StageTime> stages_;
  std::chrono::milliseconds exec_timeout_;
};

class SshTransport : public Transport {
 public:
  explicit SshTransport(std::shared_ptr<TransportState> state) : state_(std::move(state)) {}
  ~SshTransport() override { state_->resolver.stop(); }

  asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string host) override {
    return connect_to(state_, std::move(host));
  }

 private:
  static asio::awaitable<Result<std::unique_ptr<Connection>>> connect_to(
      std::shared_ptr<TransportState> state, std::string host) {
    auto spec = parse_host_spec(host);
    if (!spec) co_return std::unexpected(std::move(spec).error());
    auto settings = state->settings_for(*spec, false);
    if (!settings) co_return std::unexpected(std::move(settings).error());
    auto checked = state->check_jumps(*settings, {});
    if (!checked) co_return std::unexpected(std::move(checked).error());
    auto reached = co_await state->reach_with(std::move(*settings));
    if (!reached) co_return std::unexpected(std::move(reached).error());
    // Starting a command is a part of the handshake in the eyes of a user; it has the same bound.
    std::unique_ptr<Connection> connection =
        std::make_unique<SshConnection>(std::move(*reached), state->ssh.handshake_timeout);
    co_return connection;
  }

  std::shared_ptr<TransportState> state_;
};

}  // namespace
}  // namespace ssh

std::unique_ptr<Transport> make_ssh_transport(asio::any_io_executor executor, config::SshConfig ssh,
                                              ssh::UserEnvironment environment) {
  return std::make_unique<ssh::SshTransport>(std::make_shared<ssh::TransportState>(
      std::move(executor), std::move(ssh), std::move(environment)));
}

}  // namespace sortie::launcher
