// UserFiles: ssh_config, known_hosts and private keys, read on a thread of their own. Home folders
// are often on NFS: while its server is down, a read blocks, but the connections that exist must go
// on.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/asio/file_calls.h"
#include "common/base/result.h"
#include "common/config/schema.h"
#include "launcher/ssh/control_settings.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/keys.h"
#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/user_environment.h"

namespace sortie::launcher::ssh {

/// Shared by all hosts of a transport. Used on the I/O thread only. Every call returns
/// ErrorCode::timeout if the disk has not answered within the limit.
class UserFiles {
 public:
  /// What reads the files. Used on the thread only.
  struct Reader;

  UserFiles(boost::asio::any_io_executor executor, const config::SshConfig& ssh,
            const UserEnvironment& environment,
            FileCalls::Clock::duration limit = FileCalls::kLimit);

  /// Returns the settings of a host that is to be reached. ErrorCode::config also for a ProxyJump
  /// that leads back to itself and for a missing runner.ssh.identity_file.
  boost::asio::awaitable<Result<HostSettings>> settings(HostSpec spec);
  /// The same for a jump host, whose own ProxyJump is not followed.
  boost::asio::awaitable<Result<HostSettings>> jump_settings(HostSpec spec);
  /// Returns what ssh_config says about the OpenSSH master of a host.
  boost::asio::awaitable<Result<ControlSettings>> control_settings(HostSpec spec, bool is_jump);

  /// Returns the result of `use` for the entries of known_hosts files as they are now. `use` may
  /// block on the disk and must own what it uses. Calls do not overlap, so it may record a key.
  template <typename Value>
  boost::asio::awaitable<Result<Value>> with_known_hosts(
      std::vector<std::filesystem::path> files,
      std::function<Result<Value>(const KnownHosts&)> use) {
    const std::function<Result<Value>()> work = [reader = reader_, files = std::move(files),
                                                 use = std::move(use)]() -> Result<Value> {
      SORTIE_ASSIGN_OR_RETURN(const KnownHosts* const known, load_known_hosts(*reader, files));
      return use(*known);
    };
    return call(work);
  }
  /// Reads key files, each once. The identities exist as long as this object.
  boost::asio::awaitable<Result<std::vector<const Identity*>>> identities(
      std::vector<std::filesystem::path> files);
  /// Returns the result of `work`, which may block on the disk and must own what it uses.
  template <typename Value>
  boost::asio::awaitable<Result<Value>> call(std::function<Result<Value>()> work) {
    auto answer = co_await calls_.call(std::move(work), nullptr);
    if (!answer) co_return fail(ErrorCode::timeout, stalled_);
    co_return std::move(*answer);
  }

  /// Gives up calls that have not returned. Must be called before the executor's context is
  /// destroyed.
  void stop() { calls_.abandon(); }

 private:
  static Result<const KnownHosts*> load_known_hosts(
      Reader& reader, const std::vector<std::filesystem::path>& files);

  FileCalls calls_;
  const std::string stalled_;  // message of ErrorCode::timeout
  const std::shared_ptr<Reader> reader_;
};

}  // namespace sortie::launcher::ssh
