// Checks on disk whether another supervisor has adopted the run.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <optional>

namespace sortie::launcher {

class RunFolder;

/// Returns whether another supervisor has adopted the run; nullopt if the disk does not answer
/// within five seconds. The folder must have a listener (RunFolder::listen).
boost::asio::awaitable<std::optional<bool>> has_successor(boost::asio::any_io_executor executor,
                                                          RunFolder& folder);

}  // namespace sortie::launcher
