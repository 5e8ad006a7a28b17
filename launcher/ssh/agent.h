// The parts of the ssh-agent protocol that authentication needs: list the keys, sign. Uses Asio
// only. libssh's own agent code blocks, so it gets prepared answers instead (auth.cc).
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher::ssh {

struct AgentKey {
  std::string blob;  // public key in wire form
  std::string comment;
};

/// Sends one message (type byte and body, without the length) and returns the answer in the same
/// form. Opens a connection per request: agents are local, and a shared connection would need a
/// queue. ErrorCode::auth.
boost::asio::awaitable<Result<std::string>> ask_agent(
    std::string socket_path, std::string request, std::chrono::steady_clock::time_point deadline);

/// Returns the keys that the agent holds, in its order. ErrorCode::auth.
boost::asio::awaitable<Result<std::vector<AgentKey>>> list_agent_keys(
    std::string socket_path, std::chrono::steady_clock::time_point deadline);

/// Builds an agent's answer that lists exactly this key, with its length prefix. libssh reads it.
std::string make_identities_answer(const AgentKey& key);
/// Returns `message` with its length prefix.
std::string with_length(std::string_view message);

inline constexpr char kAgentSignResponse = 14;

}  // namespace sortie::launcher::ssh
