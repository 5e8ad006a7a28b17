// Launches that restart after a failure.
#pragma once

#include <chrono>
#include <initializer_list>

#include "tests/launcher/launch.h"

namespace sortie::test {

struct Restarting : Launch {
  explicit Restarting(std::initializer_list<config::HostSlots> hosts) : Launch(hosts) {
    job.recovery.max_restarts = 2;
    job.recovery.backoff = std::chrono::milliseconds(1);
  }
};

inline void first_rank_exits_1(FakeRunner& runner) {
  runner.exit_rank(runner.job.ranks[0].rank, 1);
}

}  // namespace sortie::test
