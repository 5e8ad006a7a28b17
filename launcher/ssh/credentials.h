// Credentials of the user, loaded once and shared by all hosts: private keys, the agent's list of
// keys, and which key last worked.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "launcher/ssh/agent.h"
#include "launcher/ssh/host_settings.h"
#include "launcher/ssh/keys.h"
#include "launcher/ssh/user_files.h"

namespace sortie::launcher::ssh {

/// One key that may be offered to a server.
struct Candidate {
  std::string name;                    // for messages: the file name, or the agent's comment
  std::string blob;                    // public key in wire form
  bool in_agent = false;               // true: the agent signs; false: the file's private key
  AgentKey agent_key;                  // valid if in_agent
  const Identity* identity = nullptr;  // nullptr for a key that only the agent has
};

struct Candidates {
  std::vector<Candidate> keys;        // in the order to try them
  std::vector<std::string> problems;  // unusable files and agents
};

class Credentials {
 public:
  explicit Credentials(std::shared_ptr<UserFiles> files) : files_(std::move(files)) {}

  /// Returns the keys to try, in OpenSSH's order: named keys that the agent holds, the agent's
  /// other keys (unless IdentitiesOnly), then key files. A key that worked for the same settings
  /// comes first. ErrorCode::timeout: see UserFiles.
  boost::asio::awaitable<Result<Candidates>> candidates(
      HostSettings settings, std::chrono::steady_clock::time_point deadline);
  /// Records that `worked` was accepted for these settings.
  void remember(const HostSettings& settings, const Candidate& worked);

 private:
  struct AgentListing;
  boost::asio::awaitable<std::shared_ptr<AgentListing>> listing(
      std::string socket_path, std::chrono::steady_clock::time_point deadline);

  const std::shared_ptr<UserFiles> files_;
  std::map<std::string, std::shared_ptr<AgentListing>> agents_;  // by socket path
  std::map<std::string, std::string> worked_;                    // settings -> blob
};

}  // namespace sortie::launcher::ssh
