// The keeper's side of an interactive session on a kept connection: relays the words of the client
// to the terminal on the host, and its output as records to the client.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>

#include "launcher/host/terminal_channel.h"
#include "launcher/warm/client.h"

namespace sortie::launcher::warm {

/// Traffic of a session so far.
struct Traffic {
  std::uint64_t bytes = 0;  // both directions
  Clock::time_point last = Clock::now();
  void count(std::size_t more) {
    bytes += more;
    last = Clock::now();
  }
};

/// Relays until the session has ended on the host and the client has received all output, or until
/// the client is gone; sshd then sends SIGHUP to the processes in the terminal. `traffic` must
/// outlive the call.
boost::asio::awaitable<void> carry_terminal(boost::asio::any_io_executor executor,
                                            std::shared_ptr<Client> client,
                                            std::shared_ptr<TerminalChannel> channel,
                                            Traffic& traffic);

}  // namespace sortie::launcher::warm
