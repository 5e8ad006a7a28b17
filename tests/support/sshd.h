// A real sshd on a loopback port. Its keys, config and home folder are in a temporary folder. The
// user's ~/.ssh is neither read nor written.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/child.h"

namespace sortie::testing {

struct SshdOptions {
  std::vector<std::string> host_key_types = {"ed25519"};
  std::vector<std::string> config;  // further lines of sshd_config; they override the defaults
};

class Sshd {
 public:
  /// Generates missing host keys in `folder` and returns when the port accepts connections. Tries
  /// up to five ports, 10 s each, then throws std::runtime_error with sshd's log.
  Sshd(std::filesystem::path folder, const std::string& authorized_key, SshdOptions options = {});

  int port() const { return port_; }
  /// "ssh-ed25519 AAAA..." of a host key.
  std::string host_key(const std::string& type = "ed25519") const;
  /// A known_hosts line for 127.0.0.1 at this port.
  std::string known_hosts_line(const std::string& type = "ed25519") const;
  /// HOME of the commands that it runs.
  std::filesystem::path remote_home() const { return folder_ / "home"; }
  std::string log() const;
  /// Pids of the processes that currently serve connections.
  std::vector<pid_t> sessions() const;
  /// Limits the open files of the processes of future connections.
  void limit_open_files(int most);
  void stop() { process_.stop(); }

 private:
  std::filesystem::path folder_;
  int port_ = 0;
  Child process_;
};

/// Generates a key pair and returns the public line. An empty passphrase means none.
std::string make_key(const std::filesystem::path& file, const std::string& type = "ed25519",
                     const std::string& passphrase = "");

/// A loopback port that is currently unused.
int free_port();

}  // namespace sortie::testing
