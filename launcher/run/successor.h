// Whether another supervisor has adopted the run, by the disk.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <optional>

namespace sortie::launcher {

class RunFolder;

/// Somebody must listen to the folder (RunFolder::listen). Nothing when the disk does not answer
/// within seconds.
boost::asio::awaitable<std::optional<bool>> has_successor(boost::asio::any_io_executor executor,
                                                          RunFolder& folder);

}  // namespace sortie::launcher
