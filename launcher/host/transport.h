// How the launcher reaches a host: connect, then run a command whose stdio is the frame stream of
// the runner. Implemented by ssh/ (libssh or a program), local/ (a child process) and tests (fake);
// transport_router.h chooses between them. Everything runs on the launcher's single I/O thread and
// never blocks it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/process_status.h"
#include "common/base/result.h"

namespace sortie::launcher {

/// stdio of a command on a host. Destroying a channel closes it; the command then sees EOF.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Reads at least one byte of the command's stdout; returns 0 at end of stream. ErrorCode::lost
  /// if the connection broke. One read at a time.
  virtual boost::asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) = 0;
  /// Writes all of `bytes` to the command's stdin. One write at a time (may overlap a read).
  virtual boost::asio::awaitable<Result<>> write(std::string_view bytes) = 0;
  /// What the command has written to stderr so far (last 64 KiB), for error messages.
  virtual std::string stderr_tail() const = 0;
  /// Returns how the command ended (ssh: exit-status or exit-signal; lost if neither was received).
  /// Call after end of stream.
  virtual boost::asio::awaitable<Result<ProcessStatus>> wait() = 0;
  /// Makes reads and writes in flight fail with ErrorCode::lost. Never blocks.
  virtual void close() = 0;
};

/// Duration of a stage of connect(). `stage` is the name of the error code of its failure
/// ("resolve" ...).
struct StageTime {
  std::string_view stage;
  std::chrono::microseconds took{0};
};

/// One authenticated connection to a host. May carry several channels.
class Connection {
 public:
  virtual ~Connection() = default;
  /// Starts `command` with the user's login shell (ssh) or /bin/sh (local). Commands are constants
  /// of Sortie; user input never becomes part of them. ErrorCode::channel if refused.
  virtual boost::asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) = 0;
  /// Returns the stdio of a runner of this build that already runs on the host and waits for Hello.
  /// At most once per connection; nullptr if there is none, start_runner() then starts one with
  /// exec().
  virtual std::unique_ptr<Channel> take_runner() { return nullptr; }
  /// Address at which the host was reached ("10.0.0.7", "127.0.0.1"); empty if unknown (jump host).
  virtual std::string peer_address() const = 0;
  /// The stages of connect(), in order; empty if there are none (local).
  virtual std::vector<StageTime> stages() const { return {}; }
  /// Tells the transport that the command has been started: capacity reserved for starting it may
  /// be used for another host. close() implies it.
  virtual void settled() {}
  /// `true`: no caller waits for this host, so the connection checks less often whether its peer is
  /// alive. `false`, the initial state: a caller waits.
  virtual void rest(bool) {}
  /// Hands the connection back: the owner needs it no more and all its channels have ended
  /// regularly. It may serve the next connect() to this host; otherwise the same as close().
  virtual void release() { close(); }
  virtual void close() = 0;
  /// Socket of the user's OpenSSH master that carries this connection; empty if the connection was
  /// authenticated by Sortie itself.
  virtual std::string through() const { return ""; }
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Resolves, connects, checks the host key and authenticates, each with its own deadline. The
  /// error code names the stage (resolve, connect, handshake, host_key, auth); the message does not
  /// repeat the host. May be called for all hosts at once: the transport limits how many are in
  /// progress, not counting hosts that have stopped answering. An abandoned call may outlive the
  /// transport: it shares ownership of what it uses.
  virtual boost::asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string host) = 0;
};

}  // namespace sortie::launcher
