// The ssh-agent protocol, as far as signing in needs it: list the keys, sign. Asio only; libssh's
// own agent code blocks and is fed prepared answers instead (auth.cc).
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

/// Sends one message (type byte and body, without the length) and returns the answer's. A
/// connection per request: agents are local, and a shared one would need its own queue.
boost::asio::awaitable<Result<std::string>> ask_agent(
    std::string socket_path, std::string request, std::chrono::steady_clock::time_point deadline);

/// The keys that the agent holds, in its order.
boost::asio::awaitable<Result<std::vector<AgentKey>>> list_agent_keys(
    std::string socket_path, std::chrono::steady_clock::time_point deadline);

/// An agent's answer that lists exactly this key, with its length: what libssh is given to read.
std::string make_identities_answer(const AgentKey& key);
/// `message` with its length before it.
std::string with_length(std::string_view message);

inline constexpr char kAgentSignResponse = 14;

}  // namespace sortie::launcher::ssh
