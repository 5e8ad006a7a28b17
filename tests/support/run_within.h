// Variant of io_context::run_for for tests that bound the duration of something.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>

#include "tests/support/patience.h"

namespace sortie::test {

/// Runs `io` until it is stopped or has no more work, for at most `limit` of time in which this
/// process ran: a machine that stalled for seconds says nothing about the tested code. With a
/// sanitizer, `limit` is scaled by patient(). Returns the time used.
inline std::chrono::milliseconds run_within(boost::asio::io_context& io,
                                            std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kSlice{50};
  limit = patient(limit);
  auto left = limit;
  for (; left.count() > 0 && !io.stopped(); left -= kSlice) io.run_for(std::min(left, kSlice));
  return limit - left;
}

}  // namespace sortie::test
