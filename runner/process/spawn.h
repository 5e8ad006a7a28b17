// spawn: starts a coroutine on the I/O thread. What it throws leaves io_context::run(): the runner
// then ends, and the keepers end the ranks.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <exception>
#include <utility>

namespace sortie::runner {

inline void spawn(boost::asio::io_context& io, boost::asio::awaitable<void> task) {
  boost::asio::co_spawn(io, std::move(task), [](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
  });
}

}  // namespace sortie::runner
