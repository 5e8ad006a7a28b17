// A real sshd on a loopback port, with keys, config and home folder of its own under a temporary
// folder. Nothing of the user's real ~/.ssh is read or written.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/child.h"

namespace sortie::testing {

struct SshdOptions {
  std::vector<std::string> host_key_types = {"ed25519"};
  std::vector<std::string> config;  // further lines of sshd_config; they win over the defaults
};

class Sshd {
 public:
  /// Generates the host keys in `folder` unless they are there, and returns when the port answers.
  /// Throws std::runtime_error with sshd's log when it does not within 10 s.
  Sshd(std::filesystem::path folder, const std::string& authorized_key, SshdOptions options = {});

  int port() const { return port_; }
  /// "ssh-ed25519 AAAA..." of a host key.
  std::string host_key(const std::string& type = "ed25519") const;
  /// A known_hosts line for 127.0.0.1 at this port.
  std::string known_hosts_line(const std::string& type = "ed25519") const;
  /// HOME of the commands that it starts.
  std::filesystem::path remote_home() const { return folder_ / "home"; }
  std::string log() const;
  /// The processes that serve connections now.
  std::vector<pid_t> sessions() const;
  /// For the processes of connections from now on.
  void limit_open_files(int most);
  void stop() { process_.stop(); }

 private:
  std::filesystem::path folder_;
  int port_ = 0;
  Child process_;
};

/// Generates a key pair without a passphrase (or with one) and returns the public line.
std::string make_key(const std::filesystem::path& file, const std::string& type = "ed25519",
                     const std::string& passphrase = "");

/// A loopback port that nothing listens on (for now).
int free_port();

}  // namespace sortie::testing
