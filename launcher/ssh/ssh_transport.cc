#include "launcher/ssh/ssh_transport.h"

#include "launcher/local/open_files.h"
#include "launcher/ssh/channel.h"
#include "launcher/ssh/mux_connection.h"
#include "launcher/ssh/reach.h"
#include "launcher/ssh/system_ssh.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace ssh {
namespace {

class SshConnection : public Connection, public TerminalWay {
 public:
  SshConnection(Reached reached, std::chrono::milliseconds exec_timeout)
      : core_(std::move(reached.core)),
        address_(std::move(reached.address)),
        stages_(std::move(reached.stages)),
        slot_(std::move(reached.slot)),
        exec_timeout_(exec_timeout) {}
  ~SshConnection() override { core_->close(); }

  asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) override {
    return exec_on(core_, std::move(command), exec_timeout_);
  }
  asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_terminal(
      TerminalRequest request) override {
    return open_on(core_, std::move(request), exec_timeout_);
  }
  std::string peer_address() const override { return address_; }
  std::vector<StageTime> stages() const override { return stages_; }
  void settled() override { slot_.reset(); }
  void rest(bool resting) override { core_->rest(resting); }
  void close() override {
    slot_.reset();
    core_->close();
  }

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

  static asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_on(
      std::shared_ptr<SessionCore> core, TerminalRequest request,
      std::chrono::milliseconds timeout) {
    auto state = ChannelState::create(core);
    if (!state) co_return std::unexpected(std::move(state).error());
    auto opened = co_await (*state)->open_terminal(std::move(request), Clock::now() + timeout);
    if (!opened) {
      (*state)->close();
      co_return std::unexpected(std::move(opened).error());
    }
    std::unique_ptr<TerminalChannel> channel = std::make_unique<SshTerminal>(std::move(*state));
    co_return channel;
  }

  std::shared_ptr<SessionCore> core_;
  std::string address_;
  std::vector<StageTime> stages_;
  std::shared_ptr<FanOut::Slot> slot_;
  std::chrono::milliseconds exec_timeout_;
};

class SshTransport : public Transport {
 public:
  explicit SshTransport(std::shared_ptr<Reach> reach) : reach_(std::move(reach)) {}
  ~SshTransport() override { reach_->stop(); }

  asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string host) override {
    return connect_to(reach_, std::move(host));
  }

 private:
  static asio::awaitable<Result<std::unique_ptr<Connection>>> connect_to(
      std::shared_ptr<Reach> reach, std::string host) {
    MuxFound found;
    if (auto spec = parse_host_spec(host)) {
      const auto masters = reach->masters();
      const auto begun = Clock::now();
      auto looked = co_await masters->find(std::move(*spec), MuxRole::host);
      if (!looked) co_return std::unexpected(std::move(looked).error());
      found = std::move(*looked);
      if (found.master) {
        const auto took =
            std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begun);
        const std::function<AnewConnection()> anew = [reach, host] { return sign_in(reach, host); };
        std::unique_ptr<Connection> connection =
            std::make_unique<MuxConnection>(reach->executor(), host, std::move(*found.master), took,
                                            reach->ssh().handshake_timeout, anew);
        co_return connection;
      }
    }
    auto connection = co_await sign_in(reach, std::move(host));
    if (!connection && !found.why_not.empty()) connection.error().message += "; " + found.why_not;
    co_return connection;
  }

  static AnewConnection sign_in(std::shared_ptr<Reach> reach, std::string host) {
    auto reached = co_await reach->reach(std::move(host));
    if (!reached) co_return std::unexpected(std::move(reached).error());
    // For the user, starting a command is part of the handshake, so it has the same timeout.
    std::unique_ptr<Connection> connection =
        std::make_unique<SshConnection>(std::move(*reached), reach->ssh().handshake_timeout);
    co_return connection;
  }

  std::shared_ptr<Reach> reach_;
};

}  // namespace
}  // namespace ssh

std::unique_ptr<Transport> make_ssh_transport(asio::any_io_executor executor, config::SshConfig ssh,
                                              ssh::UserEnvironment environment,
                                              std::chrono::milliseconds file_limit) {
  raise_open_file_limit();
  if (!ssh.command.empty())
    return ssh::make_system_ssh_transport(std::move(executor), std::move(ssh), environment);
  return std::make_unique<ssh::SshTransport>(
      std::make_shared<ssh::Reach>(std::move(executor), std::move(ssh), environment, file_limit));
}

}  // namespace sortie::launcher
