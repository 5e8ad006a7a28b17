// The background process's part of a person's session on a connection that it keeps: the client's
// words go to the host's terminal, and what that says comes back as records.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>

#include "launcher/host/terminal_channel.h"
#include "launcher/warm/client.h"

namespace sortie::launcher::warm {

/// What has gone over a session so far.
struct Traffic {
  std::uint64_t bytes = 0;  // both ways
  Clock::time_point last = Clock::now();
  void count(std::size_t more) {
    bytes += more;
    last = Clock::now();
  }
};

/// Until the session has ended there and the client has all of it, or the client is gone: the host
/// hangs up what runs in its terminal then. `traffic` must outlive it.
boost::asio::awaitable<void> carry_terminal(boost::asio::any_io_executor executor,
                                            std::shared_ptr<Client> client,
                                            std::shared_ptr<TerminalChannel> channel,
                                            Traffic& traffic);

}  // namespace sortie::launcher::warm
