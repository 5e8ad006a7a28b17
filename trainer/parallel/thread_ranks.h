// Ranks as threads of one process: tests with several ranks need no launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

struct ThreadRankOptions {
  /// Maximum of the random delay of a message, which a separate thread delivers while both ranks do
  /// other work. 0 = a message arrives as soon as both sides have posted it.
  std::chrono::microseconds max_delay{0};
  std::uint64_t seed = 0;  // of the delays, and of which sends are buffered
  /// Called for every message, one at a time.
  std::function<void(int from, int to, std::size_t bytes)> on_send{};
};

/// Runs `body` on `size` threads, each with the communicator of its rank, and joins them. A rank
/// whose body has ended is lost to the others: an operation that waits for it throws
/// CommunicatorError with its error. Rethrows the first exception.
void run_thread_ranks(int size, const std::function<void(Communicator&)>& body,
                      const ThreadRankOptions& options = {});

}  // namespace sortie::trainer
