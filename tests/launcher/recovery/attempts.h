// Made-up ends of attempts, for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/recovery/decide.h"

namespace sortie::test {

using launcher::AttemptEnd;
using launcher::Decision;
using launcher::FailureClass;
using launcher::HostPool;

using History = std::vector<AttemptEnd>;

/// Appends an attempt that lasted `lasted` seconds and whose ranks ran.
inline AttemptEnd& add_end(History& history, FailureClass failure, double lasted = 60) {
  AttemptEnd end;
  end.attempt = static_cast<std::uint32_t>(history.size() + 1);
  end.exit_code = 1;
  end.failure = failure;
  end.cause = "cause " + std::to_string(end.attempt);
  end.started = true;
  end.begun = history.empty() ? 1e9 : history.back().ended + 5;
  end.ended = end.begun + lasted;
  history.push_back(end);
  return history.back();
}

inline config::RecoveryConfig restarts(std::int64_t most) {
  config::RecoveryConfig recovery;
  recovery.max_restarts = most;
  return recovery;
}

inline HostPool pool_of(std::vector<std::string> hosts, std::vector<std::string> spares = {}) {
  HostPool pool;
  pool.hosts = std::move(hosts);
  pool.spares = std::move(spares);
  return pool;
}

inline bool goes_on(const Decision& decision) {
  return decision.action == Decision::Action::restart;
}

}  // namespace sortie::test
