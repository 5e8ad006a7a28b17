// ChannelState: one libssh channel and the state set by its callbacks. SshChannel (stdio of a
// command), SshTerminal and the jump pump (a forwarded TCP stream) are built on it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "launcher/host/owned_channel.h"
#include "launcher/host/stderr_tail.h"
#include "launcher/host/terminal_channel.h"
#include "launcher/ssh/session.h"

struct ssh_channel_struct;
struct ssh_channel_callbacks_struct;

namespace sortie::launcher::ssh {

/// Shared by its owner and the coroutines running in it. close() ends these with ErrorCode::lost.
class ChannelState : public std::enable_shared_from_this<ChannelState> {
 public:
  static Result<std::shared_ptr<ChannelState>> create(std::shared_ptr<SessionCore> core);
  ~ChannelState();
  ChannelState(const ChannelState&) = delete;
  ChannelState& operator=(const ChannelState&) = delete;

  boost::asio::awaitable<Result<>> open_exec(std::string command, Clock::time_point deadline);
  /// Opens a direct-tcpip channel from the server to `host`:`port`.
  boost::asio::awaitable<Result<>> open_forward(std::string host, int port,
                                                Clock::time_point deadline);
  /// Opens an interactive session, or a command without a terminal. stderr is then read with
  /// read_stream() instead of being kept for stderr_tail().
  boost::asio::awaitable<Result<>> open_terminal(TerminalRequest request,
                                                 Clock::time_point deadline);
  boost::asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer);
  boost::asio::awaitable<Result<std::size_t>> read_stream(bool from_stderr, std::span<char> buffer);
  void end_input();
  void resize(WindowSize size);
  boost::asio::awaitable<Result<>> write(std::string_view bytes);
  boost::asio::awaitable<Result<ProcessStatus>> wait();
  void close();
  std::string stderr_tail() const;

 private:
  explicit ChannelState(std::shared_ptr<SessionCore> core);
  bool closed() const { return closed_ || core_->closed(); }
  Error lost(std::string_view what) const;
  Error open_error(std::string_view what, const std::optional<int>& status, ErrorCode refused,
                   Clock::time_point deadline) const;
  void keep_stderr(std::string_view bytes);

  std::shared_ptr<SessionCore> core_;
  ssh_channel_struct* channel_ = nullptr;
  std::unique_ptr<ssh_channel_callbacks_struct> callbacks_;  // libssh holds a pointer to it
  std::optional<ProcessStatus> ended_;
  StderrTail stderr_tail_;
  bool keeps_stderr_ = true;
  bool opened_ = false;  // before that the server has no channel to close
  bool remote_closed_ = false;
  bool closed_ = false;
};

using SshChannel = OwnedChannel<ChannelState>;

/// TerminalChannel over a ChannelState, which it closes on destruction.
class SshTerminal : public TerminalChannel {
 public:
  explicit SshTerminal(std::shared_ptr<ChannelState> state) : state_(std::move(state)) {}
  ~SshTerminal() override { state_->close(); }
  boost::asio::awaitable<Result<std::size_t>> read_some(Output output,
                                                        std::span<char> buffer) override {
    return state_->read_stream(output == Output::err, buffer);
  }
  boost::asio::awaitable<Result<>> write(std::string_view bytes) override {
    return state_->write(bytes);
  }
  void end_input() override { state_->end_input(); }
  void resize(WindowSize size) override { state_->resize(size); }
  boost::asio::awaitable<Result<ProcessStatus>> wait() override { return state_->wait(); }
  void close() override { state_->close(); }

 private:
  std::shared_ptr<ChannelState> state_;
};

}  // namespace sortie::launcher::ssh
