// Reach: establishes a libssh connection to a host: settings, name resolution, TCP or jump hosts,
// key exchange, host key check, authentication. Holds the state that all hosts share for this.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/host/transport.h"
#include "launcher/ssh/credentials.h"
#include "launcher/ssh/fan_out.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/jump.h"
#include "launcher/ssh/mux_masters.h"
#include "launcher/ssh/resolver.h"
#include "launcher/ssh/server_gate.h"
#include "launcher/ssh/session.h"
#include "launcher/ssh/user_files.h"

namespace sortie::launcher::ssh {

/// A session and how it was reached.
struct Reached {
  std::shared_ptr<SessionCore> core;
  std::string address;
  std::shared_ptr<FanOut::Slot> slot;  // held until the caller has started its command
  std::vector<StageTime> stages;
  Clock::time_point stage_begun = Clock::now();

  /// Records the end of a stage that began at the end of the previous one.
  void passed(ErrorCode stage) {
    const auto now = Clock::now();
    stages.push_back({error_code_name(stage),
                      std::chrono::duration_cast<std::chrono::microseconds>(now - stage_begun)});
    stage_begun = now;
  }
  /// Excludes the time until now, which was spent in a queue, from the next stage.
  void waited() { stage_begun = Clock::now(); }
};

/// Shared by the transport and the coroutines running in it. Used on the I/O thread only.
class Reach : public std::enable_shared_from_this<Reach> {
 public:
  /// `file_limit`: how long a read of the user's files may take.
  Reach(boost::asio::any_io_executor executor, config::SshConfig ssh,
        const UserEnvironment& environment, std::chrono::milliseconds file_limit);

  /// Connects and authenticates. `host`: [user@]host[:port]. The error's code names the stage.
  boost::asio::awaitable<Result<Reached>> reach(std::string host);
  void stop() {
    resolver_.stop();
    files_->stop();
  }
  const std::shared_ptr<MuxMasters>& masters() const { return masters_; }
  const config::SshConfig& ssh() const { return ssh_; }
  const boost::asio::any_io_executor& executor() const { return executor_; }

 private:
  // One try: its outcome, and whether the server dropped the connection before its banner.
  struct Attempt;

  std::shared_ptr<ServerGate> gate_of(const std::string& server);
  boost::asio::awaitable<Result<Reached>> reach_with(HostSettings settings);
  boost::asio::awaitable<void> try_once(const HostSettings& settings, Attempt& attempt);
  boost::asio::awaitable<Result<>> dial_directly(const HostSettings& settings, Attempt& attempt);
  boost::asio::awaitable<Result<>> dial_by_jump(const HostSettings& settings, Attempt& attempt);
  boost::asio::awaitable<Result<bool>> dial_by_master(const HostSettings& settings,
                                                      Attempt& attempt);
  boost::asio::awaitable<Result<std::shared_ptr<JumpRide>>> reach_jump(
      std::vector<std::string> jumps);
  boost::asio::awaitable<void> settle_jump(std::shared_ptr<JumpConnection> connection,
                                           HostSpec spec, std::vector<std::string> before);

  boost::asio::any_io_executor executor_;
  const config::SshConfig ssh_;
  std::shared_ptr<UserFiles> files_;
  std::shared_ptr<MuxMasters> masters_;
  Resolver resolver_;
  std::shared_ptr<Credentials> credentials_;
  std::shared_ptr<FanOut> dials_;       // limits name lookups and TCP connects
  std::shared_ptr<FanOut> handshakes_;  // runner.ssh.fanout: from connected to the runner's start
  std::map<std::string, std::shared_ptr<ServerGate>> gates_;  // by "address:port" and chain
  std::map<std::string, std::vector<std::weak_ptr<JumpConnection>>> jumps_;  // by chain
};

}  // namespace sortie::launcher::ssh
