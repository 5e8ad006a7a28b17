// spawn: starts a coroutine that nobody waits for. asio::detached would swallow what it throws: the
// coroutine would be gone, and whoever waits for its effects would wait for ever.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>

namespace sortie {

/// Starts `task`. An exception that leaves it leaves io_context::run(), on that thread: our errors
/// are values, so it is a bug or a lack of memory, and the program ends with its message.
void spawn(const boost::asio::any_io_executor& executor, boost::asio::awaitable<void> task);
void spawn(boost::asio::io_context& io, boost::asio::awaitable<void> task);
/// The same for a coroutine that uses what `task` has captured: `task` lives as long as it does.
void spawn(const boost::asio::any_io_executor& executor,
           std::function<boost::asio::awaitable<void>()> task);

}  // namespace sortie
