// MuxMasters: which OpenSSH master, if any, a host is reached through. One that lives is used;
// where ssh_config asks for one that stays (ControlMaster, ControlPersist) and none lives, it is
// made.
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
#include "launcher/ssh/ssh_config.h"

namespace sortie::launcher::ssh {

/// A master that has just said that it lives.
struct MuxMaster {
  std::filesystem::path socket;
  std::shared_ptr<MuxClient> client;   // for one session
  std::shared_ptr<FanOut::Slot> slot;  // until whoever asked has begun what it came for
};

/// What a host is wanted for. A jump host behind others of a list is looked for a master, but none
/// is made: ssh_config has no such way to it.
enum class MuxRole { host, jump, jump_behind_others };

struct MuxFound {
  std::optional<MuxMaster> master;
  std::string why_not;  // a master was to be had and was not; empty = none was
};

/// Shared by the transport and the coroutines inside it; on the I/O thread only.
class MuxMasters : public std::enable_shared_from_this<MuxMasters> {
 public:
  MuxMasters(boost::asio::any_io_executor executor, config::SshConfig ssh,
             UserEnvironment environment);

  /// Without a master the host is to be signed in to. Errors: what ssh_config says can not be;
  /// resolve and connect, where the ssh that was to make one has found that out.
  boost::asio::awaitable<Result<MuxFound>> find(HostSpec spec, MuxRole role);

 private:
  struct Making;

  boost::asio::awaitable<void> look(const ControlSettings& control, const std::string& host,
                                    MuxFound& found, bool& taken);
  boost::asio::awaitable<Result<>> make(MasterOrder order, const ControlSettings& control,
                                        MuxFound& found);
  boost::asio::awaitable<void> run_maker(MasterOrder order, std::shared_ptr<Making> making);
  MasterOrder order_for(const HostSpec& spec, const ControlSettings& control, bool is_jump) const;
  std::string server_of(const MasterOrder& order);
  void say_once(const std::string& text);

  boost::asio::any_io_executor executor_;
  const config::SshConfig ssh_;
  const UserEnvironment environment_;
  const std::string this_host_;
  SshConfigReader config_reader_;
  std::shared_ptr<FanOut> sessions_;  // runner.ssh.fanout: from the socket to the runner's start
  std::shared_ptr<FanOut> makers_;    // the same for programs that make masters
  std::map<std::string, std::shared_ptr<ServerGate>> gates_;
  std::map<std::filesystem::path, std::shared_ptr<Making>> makings_;
  std::set<std::string> said_;
};

}  // namespace sortie::launcher::ssh
