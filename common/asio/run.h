// run_to_end: the main coroutine of a command, and everything that it starts.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

namespace sortie {

/// Runs `io` until `work` has ended, or io.stop(); what else is still at work then is left where it
/// is. Throws what leaves `work` or a spawned coroutine.
void run_to_end(boost::asio::io_context& io, boost::asio::awaitable<void> work);

}  // namespace sortie
