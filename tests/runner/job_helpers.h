// Helpers shared by tests of how jobs end.
#pragma once

#include <doctest/doctest.h>

#include <chrono>

#include "tests/support/runner_client.h"

namespace sortie::test {

/// Starts the job and waits until every rank has written its first line.
inline void start_and_wait_up(RunnerClient& client, const wire::JobSpec& job) {
  REQUIRE(client.start(job));
  REQUIRE(client.wait_up(job.ranks.size()));
}

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace sortie::test
