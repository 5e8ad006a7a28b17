// TerminalClient: connects an interactive session on a host with stdin, stdout and stderr of this
// process.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <memory>
#include <optional>
#include <string>

#include "common/asio/task_group.h"
#include "launcher/host/terminal_channel.h"
#include "launcher/terminal/escape.h"
#include "launcher/terminal/raw_terminal.h"

namespace sortie::launcher {

class TerminalClient {
 public:
  struct Ended {
    std::optional<ProcessStatus> status;  // of the remote shell or command
    std::optional<int> signal;            // signal to this process that ended the session
    bool disconnected = false;            // by `~.`
    std::optional<Error> error;
  };

  /// `terminal`: the terminal of this process, which is raw during run(); nullptr if there is none,
  /// or the command has no remote terminal. `escapes`: handle `~.` and other escape sequences.
  TerminalClient(boost::asio::any_io_executor executor, std::unique_ptr<TerminalChannel> channel,
                 RawTerminal* terminal, bool escapes);

  /// Runs until the session ends on either side.
  boost::asio::awaitable<Ended> run();

 private:
  boost::asio::awaitable<void> pump_output(TerminalChannel::Output output, int fd);
  boost::asio::awaitable<void> pump_input();
  boost::asio::awaitable<void> watch_signals();
  boost::asio::awaitable<bool> put(int fd, std::string bytes);
  boost::asio::awaitable<bool> take(std::string typed);
  void suspend();
  /// Closes the session without waiting for a slow reader of the output.
  void drop_outputs();
  void fail_with(Error error);

  boost::asio::any_io_executor executor_;
  std::unique_ptr<TerminalChannel> channel_;
  RawTerminal* terminal_;
  const bool escapes_;
  EscapeFilter filter_;
  boost::asio::signal_set signals_;
  boost::asio::posix::stream_descriptor in_, out_, err_;  // duplicates
  TaskGroup outputs_, others_;
  Ended ended_;
};

}  // namespace sortie::launcher
