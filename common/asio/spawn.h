// spawn: starts a detached coroutine. asio::detached would swallow its exceptions: the coroutine
// would be gone, and code that waits for its effects would wait forever.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>

namespace sortie {

/// Starts `task`. An exception that leaves it also leaves io_context::run() on that thread. Errors
/// are values, so such an exception is a bug or out of memory; the program ends with its message.
void spawn(const boost::asio::any_io_executor& executor, boost::asio::awaitable<void> task);
void spawn(boost::asio::io_context& io, boost::asio::awaitable<void> task);
/// The same for a coroutine lambda with captures: `task` is kept alive until the coroutine ends.
void spawn(const boost::asio::any_io_executor& executor,
           std::function<boost::asio::awaitable<void>()> task);

}  // namespace sortie
