// io_context::run_for for tests that bound how long something may take.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>

#include "tests/support/patience.h"

namespace sortie::test {

/// Runs until `io` is stopped or has no more to do, for `limit` of the time in which this process
/// ran: where a machine stood still for seconds, nothing is known of the code under test. With a
/// sanitizer as much longer as patient() says. Returns how much of it that took.
inline std::chrono::milliseconds run_within(boost::asio::io_context& io,
                                            std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kSlice{50};
  limit = patient(limit);
  auto left = limit;
  for (; left.count() > 0 && !io.stopped(); left -= kSlice) io.run_for(std::min(left, kSlice));
  return limit - left;
}

}  // namespace sortie::test
