// ChannelState: interactive sessions with a pseudo terminal on the host, or a command with separate
// stdout and stderr.
#include <libssh/libssh.h>

#include "launcher/ssh/channel.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;

asio::awaitable<Result<>> ChannelState::open_terminal(TerminalRequest request,
                                                      Clock::time_point deadline) {
  const auto self = shared_from_this();
  const auto channel = channel_;
  keeps_stderr_ = false;
  const auto opened =
      co_await core_->drive([&] { return ssh_channel_open_session(channel); }, deadline);
  if (!opened || *opened != SSH_OK)
    co_return std::unexpected(open_error("open a channel", opened, ErrorCode::channel, deadline));
  opened_ = true;
  if (request.terminal) {
    const char* term = request.term.c_str();
    const auto got = co_await core_->drive(
        [&] {
          return ssh_channel_request_pty_size(channel, term, request.size.columns,
                                              request.size.rows);
        },
        deadline);
    if (!got || *got != SSH_OK)
      co_return std::unexpected(
          open_error("get a terminal there", got, ErrorCode::channel, deadline));
  }
  const char* command = request.command.c_str();
  const bool shell = request.command.empty();
  const auto started = co_await core_->drive(
      [&] {
        return shell ? ssh_channel_request_shell(channel)
                     : ssh_channel_request_exec(channel, command);
      },
      deadline);
  if (!started || *started != SSH_OK)
    co_return std::unexpected(open_error("start a command", started, ErrorCode::channel, deadline));
  co_return Result<>{};
}

void ChannelState::end_input() {
  if (closed() || !opened_) return;
  ssh_channel_send_eof(channel_);
  core_->flush();
}

void ChannelState::resize(WindowSize size) {
  if (closed() || !opened_) return;
  ssh_channel_change_pty_size(channel_, size.columns, size.rows);
  core_->flush();
}

}  // namespace sortie::launcher::ssh
