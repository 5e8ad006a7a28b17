// Ranks as threads of one process: several ranks in a test, without a launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct ThreadRankOptions {
  /// A message arrives after a random time up to this, carried by a thread of its own while both
  /// ranks do something else; 0 = as soon as both sides have posted it.
  std::chrono::microseconds max_delay{0};
  std::uint64_t seed = 0;  // of the delays, and of which sends are buffered
  /// Sees every message, one at a time.
  std::function<void(int from, int to, std::size_t bytes)> on_send{};
};

/// Runs `body` on `size` threads, each with the communicator of its rank. A rank whose body ends is
/// lost to the others: what waits for it throws CommunicatorError with its error. Rethrows the
/// first exception.
void run_thread_ranks(int size, const std::function<void(Communicator&)>& body,
                      const ThreadRankOptions& options = {});

}  // namespace sortie::trainer
