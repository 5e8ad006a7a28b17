// run_to_end: runs the main coroutine of a command and everything that it starts.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

namespace sortie {

/// Runs `io` until `work` has ended or io.stop() is called. Other coroutines that have not ended
/// then stay suspended. Throws any exception that leaves `work` or a spawned coroutine.
void run_to_end(boost::asio::io_context& io, boost::asio::awaitable<void> work);

}  // namespace sortie
