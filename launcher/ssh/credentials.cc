#include "launcher/ssh/credentials.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>

#include "common/asio/token.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
namespace {

constexpr std::chrono::seconds kListingAge{10};  // after that the agent is asked again

std::string settings_key(const HostSettings& settings) {
  std::string key = settings.user + '\n' + settings.agent_socket;
  for (const auto& file : settings.identity_files) key += '\n' + file.string();
  return key;
}

}  // namespace

struct Credentials::AgentListing {
  AgentListing(const asio::any_io_executor& executor, Clock::time_point deadline)
      : ready(executor, deadline) {}
  asio::steady_timer ready;
  bool done = false;
  Result<std::vector<AgentKey>> keys = std::vector<AgentKey>{};
  Clock::time_point asked = Clock::now();
};

asio::awaitable<std::shared_ptr<Credentials::AgentListing>> Credentials::listing(
    std::string socket_path, Clock::time_point deadline) {
  auto& slot = agents_[socket_path];
  if (slot && Clock::now() - slot->asked < kListingAge) {
    const auto shared = slot;
    // Another coroutine is asking the agent already.
    if (!shared->done) co_await shared->ready.async_wait(kToken);
    if (!shared->done)
      shared->keys =
          fail(ErrorCode::auth, fmt::format("ssh-agent at {}: no answer in time", socket_path));
    co_return shared;
  }
  const auto fresh = std::make_shared<AgentListing>(co_await asio::this_coro::executor, deadline);
  slot = fresh;
  fresh->keys = co_await list_agent_keys(socket_path, deadline);
  fresh->done = true;
  fresh->ready.cancel();
  co_return fresh;
}

asio::awaitable<Result<Candidates>> Credentials::candidates(HostSettings settings,
                                                            Clock::time_point deadline) {
  Candidates result;
  std::vector<AgentKey> agent_keys;
  if (!settings.agent_socket.empty()) {
    const auto listed = co_await listing(settings.agent_socket, deadline);
    if (listed->keys)
      agent_keys = *listed->keys;
    else
      result.problems.push_back(listed->keys.error().message);
  }

  std::vector<const Identity*> identities;
  const auto read = co_await files_->identities(settings.identity_files);
  if (!read) co_return std::unexpected(read.error());
  for (const Identity* const identity : *read) {
    // The default files need not exist.
    if (identity->missing && !settings.identities_named) continue;
    identities.push_back(identity);
  }
  const auto add_agent_key = [&](const AgentKey& key, const Identity* identity) {
    const std::string name =
        identity ? fmt::format("{} (agent)", identity->file.string())
                 : fmt::format("agent key {}", key.comment.empty() ? "without name" : key.comment);
    result.keys.push_back({name, key.blob, true, key, identity});
  };
  for (const Identity* identity : identities)
    for (const AgentKey& key : agent_keys)
      if (!identity->public_blob.empty() && key.blob == identity->public_blob)
        add_agent_key(key, identity);
  const std::size_t named = result.keys.size();
  const auto is_named = [&](const std::string& blob) {
    return std::any_of(result.keys.begin(), result.keys.begin() + static_cast<long>(named),
                       [&](const Candidate& candidate) { return candidate.blob == blob; });
  };
  if (!settings.identities_only)
    for (const AgentKey& key : agent_keys)
      if (!is_named(key.blob)) add_agent_key(key, nullptr);
  for (const Identity* identity : identities) {
    if (is_named(identity->public_blob)) continue;
    if (identity->private_key)
      result.keys.push_back({identity->file.string(), identity->public_blob, false, {}, identity});
    else
      result.problems.push_back(fmt::format("{} {}", identity->file.string(), identity->problem));
  }
  if (const auto worked = worked_.find(settings_key(settings)); worked != worked_.end()) {
    const auto first = std::ranges::find(result.keys, worked->second, &Candidate::blob);
    if (first != result.keys.end()) std::rotate(result.keys.begin(), first, first + 1);
  }
  co_return result;
}

void Credentials::remember(const HostSettings& settings, const Candidate& worked) {
  worked_[settings_key(settings)] = worked.blob;
}

}  // namespace sortie::launcher::ssh
