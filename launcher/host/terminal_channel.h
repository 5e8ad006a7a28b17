// TerminalChannel: an interactive session on a host (`sortie ssh`): a terminal, or a command with
// separate stdin, stdout and stderr. Sortie's own commands use Channel (transport.h).
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/base/process_status.h"
#include "common/base/result.h"

namespace sortie::launcher {

struct WindowSize {
  int columns = 80, rows = 24;  // characters
  bool operator==(const WindowSize&) const = default;
};

struct TerminalRequest {
  /// Run by the user's login shell on the host, as ssh does; empty = the login shell itself.
  std::string command;
  bool terminal = true;  // allocate a terminal; all output is then Output::out
  std::string term;      // TERM of the terminal
  WindowSize size;
};

/// Used on the I/O thread. Destroying it closes it: the host sends SIGHUP to the processes of the
/// terminal.
class TerminalChannel {
 public:
  enum class Output { out, err };
  virtual ~TerminalChannel() = default;
  /// Reads at least one byte of an output; returns 0 at its end. ErrorCode::lost if the connection
  /// broke. One read per output at a time.
  virtual boost::asio::awaitable<Result<std::size_t>> read_some(Output output,
                                                                std::span<char> buffer) = 0;
  /// Writes all of `bytes` to stdin. One write at a time (may overlap reads).
  virtual boost::asio::awaitable<Result<>> write(std::string_view bytes) = 0;
  /// Sends EOF on stdin.
  virtual void end_input() = 0;
  /// Tells the host the new size of the local window.
  virtual void resize(WindowSize size) = 0;
  /// Returns how the session ended. Call after the end of both outputs.
  virtual boost::asio::awaitable<Result<ProcessStatus>> wait() = 0;
  virtual void close() = 0;
};

/// Interface of a Connection that supports TerminalChannels.
class TerminalWay {
 public:
  virtual ~TerminalWay() = default;
  /// ErrorCode::channel if refused.
  virtual boost::asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_terminal(
      TerminalRequest request) = 0;
};

class Connection;

/// Opens a TerminalChannel over `connection`, which must outlive the call. ErrorCode::config if the
/// connection does not support them.
boost::asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_terminal(
    Connection& connection, TerminalRequest request);

}  // namespace sortie::launcher
