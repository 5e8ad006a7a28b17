// How the launcher reaches a host: connect, then run one command whose stdio is the runner's frame
// stream. Implemented by ssh/ (libssh), local/ (a child process) and tests (fake);
// transport_router.h chooses between them. All of it runs on the launcher's one I/O thread; nothing
// here blocks that thread.
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

/// stdio of a command on a host. Destroying it closes it; the command then sees EOF.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Reads at least one byte of the command's stdout; 0 at end of stream. ErrorCode::lost when the
  /// connection broke. One read at a time.
  virtual boost::asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) = 0;
  /// Writes all of `bytes` to the command's stdin. One write at a time (may overlap a read).
  virtual boost::asio::awaitable<Result<>> write(std::string_view bytes) = 0;
  /// What the command has written to its stderr so far (last 64 KiB), for error messages.
  virtual std::string stderr_tail() const = 0;
  /// After end of stream: how the command ended (ssh: exit-status or exit-signal; lost if neither
  /// came).
  virtual boost::asio::awaitable<Result<ProcessStatus>> wait() = 0;
  /// Ends reads and writes in flight with ErrorCode::lost. Never blocks.
  virtual void close() = 0;
};

/// How long a stage of connect() took; named as the error code of its failure ("resolve" ...).
struct StageTime {
  std::string_view stage;
  std::chrono::microseconds took{0};
};

/// One authenticated connection to a host; may carry several channels.
class Connection {
 public:
  virtual ~Connection() = default;
  /// Starts `command` through the user's login shell (ssh) or /bin/sh (local). Commands are
  /// constants of ours: nothing of a user's ever goes here. ErrorCode::channel when refused.
  virtual boost::asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) = 0;
  /// stdio of a runner of this build that is there already and waits for Hello, once; none:
  /// start_runner() starts one with exec().
  virtual std::unique_ptr<Channel> take_runner() { return nullptr; }
  /// The address that this host was reached at ("10.0.0.7", "127.0.0.1"); empty when unknown (jump
  /// host).
  virtual std::string peer_address() const = 0;
  /// The stages that it went through, in order; empty where there are none (local).
  virtual std::vector<StageTime> stages() const { return {}; }
  /// What the connection was made for has begun: what the transport had set aside for starting it
  /// may go to another host. Closing does that too.
  virtual void settled() {}
  /// Nobody waits for this host now, or (false) somebody does again: a connection that rests asks
  /// its peer for signs of life less often. At first it does not rest.
  virtual void rest(bool) {}
  /// Its owner has no more use for it and all its channels have ended in good order: it may serve
  /// the next connect() to this host. Else the same as close().
  virtual void release() { close(); }
  virtual void close() = 0;
  /// What of the user's carries it in place of a sign-in of its own: the socket of an OpenSSH
  /// master. Empty = nothing.
  virtual std::string through() const { return ""; }
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// Resolves, connects, checks the host key and authenticates, each with its own deadline. The
  /// error's code names the stage (resolve, connect, handshake, host_key, auth); its message does
  /// not repeat the host. Call it for all hosts at once: the transport bounds what they may cost at
  /// the same time, and knows which of them merely wait. A call that nobody waits for any more may
  /// go on when the transport has gone: it shares what it needs.
  virtual boost::asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string host) = 0;
};

}  // namespace sortie::launcher
