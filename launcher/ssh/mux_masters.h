// MuxMasters: finds the OpenSSH master, if any, through which a host is reached. A running master
// is used. If ssh_config asks for a persistent master (ControlMaster, ControlPersist) and none
// runs, it is started.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/ssh/control_settings.h"
#include "launcher/ssh/fan_out.h"
#include "launcher/ssh/mux_client.h"
#include "launcher/ssh/mux_start.h"
#include "launcher/ssh/server_gate.h"
#include "launcher/ssh/user_files.h"

namespace sortie::launcher::ssh {

/// A master that has just answered an alive check.
struct MuxMaster {
  std::filesystem::path socket;
  std::shared_ptr<MuxClient> client;   // connection for one session
  std::shared_ptr<FanOut::Slot> slot;  // held until the caller has started its command
};

/// Role of a host. For a jump host behind others of a list a running master is used, but none is
/// started, because ssh_config has no such route to it.
enum class MuxRole { host, jump, jump_behind_others };

struct MuxFound {
  std::optional<MuxMaster> master;
  std::string why_not;  // why an expected master is not used; empty = none was expected
};

/// Shared by the transport and the coroutines running in it. Used on the I/O thread only.
class MuxMasters : public std::enable_shared_from_this<MuxMasters> {
 public:
  MuxMasters(boost::asio::any_io_executor executor, config::SshConfig ssh,
             UserEnvironment environment, std::shared_ptr<UserFiles> files);

  /// Finds or starts a master. If the result has none, the caller must connect and authenticate
  /// itself. Errors: an invalid ssh_config value; resolve or connect, if the ssh that should start
  /// the master failed this way.
  boost::asio::awaitable<Result<MuxFound>> find(HostSpec spec, MuxRole role);

 private:
  struct Making;

  boost::asio::awaitable<void> look(const ControlSettings& control, const std::string& host,
                                    MuxFound& found, bool& taken);
  boost::asio::awaitable<Result<>> make(MasterOrder order, const ControlSettings& control,
                                        MuxFound& found);
  boost::asio::awaitable<void> run_maker(MasterOrder order, std::shared_ptr<Making> making);
  boost::asio::awaitable<std::string> server_of(const MasterOrder& order);
  void say_once(const std::string& text);

  boost::asio::any_io_executor executor_;
  const config::SshConfig ssh_;
  const UserEnvironment environment_;
  const std::shared_ptr<UserFiles> files_;
  std::shared_ptr<FanOut> sessions_;  // runner.ssh.fanout: from the socket to the runner's start
  std::shared_ptr<FanOut> makers_;    // the same for programs that start masters
  std::map<std::string, std::shared_ptr<ServerGate>> gates_;
  std::map<std::filesystem::path, std::shared_ptr<Making>> makings_;
  std::set<std::string> said_;
};

}  // namespace sortie::launcher::ssh
