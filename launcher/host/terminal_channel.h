// TerminalChannel: a person's session on a host, as `sortie ssh` has it: a terminal there, or a
// command with stdin, stdout and stderr apart. Commands of ours go over Channel (transport.h).
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
  /// For the user's login shell there, as ssh hands it over; empty = the login shell itself.
  std::string command;
  bool terminal = true;  // with one there; its output is then all on `out`
  std::string term;      // TERM of it
  WindowSize size;
};

/// Used on the I/O thread. Destroying it closes it: the host hangs up what runs in its terminal.
class TerminalChannel {
 public:
  enum class Output { out, err };
  virtual ~TerminalChannel() = default;
  /// At least one byte of an output; 0 at its end. ErrorCode::lost when the connection broke. One
  /// read of each output at a time.
  virtual boost::asio::awaitable<Result<std::size_t>> read_some(Output output,
                                                                std::span<char> buffer) = 0;
  /// All of `bytes` to stdin. One write at a time (may overlap reads).
  virtual boost::asio::awaitable<Result<>> write(std::string_view bytes) = 0;
  /// Nothing more comes on stdin.
  virtual void end_input() = 0;
  /// The window here has another size now.
  virtual void resize(WindowSize size) = 0;
  /// After the ends of both outputs: how it ended.
  virtual boost::asio::awaitable<Result<ProcessStatus>> wait() = 0;
  virtual void close() = 0;
};

/// What a Connection is, too, where its way to the host carries such sessions.
class TerminalWay {
 public:
  virtual ~TerminalWay() = default;
  /// ErrorCode::channel when refused.
  virtual boost::asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_terminal(
      TerminalRequest request) = 0;
};

class Connection;

/// ErrorCode::config where the way carries none. `connection` must outlive the call.
boost::asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_terminal(
    Connection& connection, TerminalRequest request);

}  // namespace sortie::launcher
