#include "launcher/ssh/channel.h"

#include <fmt/core.h>
#include <libssh/callbacks.h>
#include <libssh/libssh.h>

#include <algorithm>
#include <csignal>
#include <cstring>

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
namespace {

// Maximum passed to libssh at a time. libssh frames it and copies it to buffers that never shrink,
// so a cached connection keeps that memory.
constexpr std::size_t kWriteChunk = 32 * 1024;

// "KILL" -> 9; the names of RFC 4254 are the system's without "SIG".
int signal_number(const char* name) {
  for (int number = 1; number < NSIG; ++number) {
    const char* known = sigabbrev_np(number);
    if (known && std::strcmp(known, name) == 0) return number;
  }
  return 0;
}

}  // namespace

ChannelState::ChannelState(std::shared_ptr<SessionCore> core)
    : core_(std::move(core)), callbacks_(std::make_unique<ssh_channel_callbacks_struct>()) {}

Result<std::shared_ptr<ChannelState>> ChannelState::create(std::shared_ptr<SessionCore> core) {
  if (core->closed()) return fail(ErrorCode::lost, "the connection is closed");
  std::shared_ptr<ChannelState> state(new ChannelState(std::move(core)));
  state->channel_ = ssh_channel_new(state->core_->session());
  if (!state->channel_) return fail(ErrorCode::internal, "ssh_channel_new: out of memory");
  auto& callbacks = *state->callbacks_;
  std::memset(&callbacks, 0, sizeof callbacks);
  ssh_callbacks_init(&callbacks);
  callbacks.userdata = state.get();
  callbacks.channel_data_function = [](ssh_session, ssh_channel, void* data, std::uint32_t size,
                                       int is_stderr, void* self) -> int {
    auto* owner = static_cast<ChannelState*>(self);
    // Data stays in libssh's buffer, and so counts in its window, until it is read.
    if (!is_stderr || !owner->keeps_stderr_) return 0;
    owner->keep_stderr({static_cast<const char*>(data), size});
    return static_cast<int>(size);
  };
  callbacks.channel_exit_status_function = [](ssh_session, ssh_channel, int code, void* self) {
    static_cast<ChannelState*>(self)->ended_ = {ProcessStatus::Kind::exited, code, false};
  };
  callbacks.channel_exit_signal_function = [](ssh_session, ssh_channel, const char* name,
                                              int dumped, const char*, const char*, void* self) {
    static_cast<ChannelState*>(self)->ended_ = {ProcessStatus::Kind::signaled, signal_number(name),
                                                dumped != 0};
  };
  callbacks.channel_close_function = [](ssh_session, ssh_channel, void* self) {
    static_cast<ChannelState*>(self)->remote_closed_ = true;
  };
  ssh_set_channel_callbacks(state->channel_, &callbacks);
  return state;
}

ChannelState::~ChannelState() {
  if (!channel_) return;
  // libssh may keep the channel until the server has closed it, too. It must not call back then.
  ssh_remove_channel_callbacks(channel_, callbacks_.get());
  ssh_channel_free(channel_);
  core_->flush();
}

void ChannelState::keep_stderr(std::string_view bytes) {
  stderr_tail_.add(bytes);
}

std::string ChannelState::stderr_tail() const {
  return stderr_tail_.text();
}

Error ChannelState::lost(std::string_view what) const {
  if (core_->silent())
    return {ErrorCode::lost, fmt::format("{}: no heartbeat from the host for 10 s", what)};
  if (closed()) return {ErrorCode::lost, fmt::format("{}: the connection was closed here", what)};
  return {ErrorCode::lost, fmt::format("{}: {}", what, core_->last_error())};
}

Error ChannelState::open_error(std::string_view what, const std::optional<int>& status,
                               ErrorCode refused, Clock::time_point deadline) const {
  if (!status && !closed() && Clock::now() >= deadline)
    return {refused, fmt::format("{}: no answer in time; see the host's sshd log", what)};
  if (!status || closed() || core_->broken()) return lost(what);
  return {refused, fmt::format("{}: {}", what, core_->last_error())};
}

asio::awaitable<Result<>> ChannelState::open_exec(std::string command, Clock::time_point deadline) {
  const auto self = shared_from_this();
  const auto channel = channel_;
  const auto opened =
      co_await core_->drive([&] { return ssh_channel_open_session(channel); }, deadline);
  if (!opened || *opened != SSH_OK)
    co_return std::unexpected(open_error("open a channel", opened, ErrorCode::channel, deadline));
  opened_ = true;
  const char* text = command.c_str();
  const auto started =
      co_await core_->drive([&] { return ssh_channel_request_exec(channel, text); }, deadline);
  if (!started || *started != SSH_OK)
    co_return std::unexpected(open_error("start a command", started, ErrorCode::channel, deadline));
  co_return Result<>{};
}

asio::awaitable<Result<>> ChannelState::open_forward(std::string host, int port,
                                                     Clock::time_point deadline) {
  const auto self = shared_from_this();
  const auto channel = channel_;
  const char* name = host.c_str();
  const auto opened = co_await core_->drive(
      [&] { return ssh_channel_open_forward(channel, name, port, "127.0.0.1", 0); }, deadline);
  if (!opened || *opened != SSH_OK)
    co_return std::unexpected(
        open_error("connect from the jump host", opened, ErrorCode::connect, deadline));
  opened_ = true;
  co_return Result<>{};
}

asio::awaitable<Result<std::size_t>> ChannelState::read_some(std::span<char> buffer) {
  return read_stream(false, buffer);
}

asio::awaitable<Result<std::size_t>> ChannelState::read_stream(bool from_stderr,
                                                               std::span<char> buffer) {
  const auto self = shared_from_this();
  const int stream = from_stderr ? 1 : 0;
  const auto count = co_await core_->drive([&]() -> int {
    if (closed_) return SSH_ERROR;
    const int available = ssh_channel_poll(channel_, stream);
    if (available == SSH_EOF) return 0;
    if (available == 0) return SSH_AGAIN;
    if (available < 0) return SSH_ERROR;
    const auto size = std::min(buffer.size(), static_cast<std::size_t>(available));
    return ssh_channel_read(channel_, buffer.data(), static_cast<std::uint32_t>(size), stream);
  });
  if (!count || *count < 0) co_return std::unexpected(lost("read"));
  co_return static_cast<std::size_t>(*count);
}

asio::awaitable<Result<>> ChannelState::write(std::string_view bytes) {
  const auto self = shared_from_this();
  while (!bytes.empty()) {
    const auto chunk = static_cast<std::uint32_t>(std::min(bytes.size(), kWriteChunk));
    const auto written = co_await core_->drive([&]() -> int {
      if (closed_) return SSH_ERROR;
      // 0: the window is closed, or a key re-exchange is running.
      const int count = ssh_channel_write(channel_, bytes.data(), chunk);
      return count == 0 ? SSH_AGAIN : count;
    });
    if (!written || *written < 0) {
      if (written && remote_closed_)
        co_return fail(ErrorCode::lost, "write: the command has ended and reads no more");
      co_return std::unexpected(lost("write"));
    }
    bytes.remove_prefix(static_cast<std::size_t>(*written));
    // Back-pressure: libssh buffers as much as the window allows, so wait until it is sent to the
    // socket.
    const auto flushed = co_await core_->drive([this]() -> int {
      if (closed_) return SSH_ERROR;
      return ssh_get_status(core_->session()) & SSH_WRITE_PENDING ? SSH_AGAIN : SSH_OK;
    });
    if (!flushed || *flushed != SSH_OK) co_return std::unexpected(lost("write"));
  }
  co_return Result<>{};
}

asio::awaitable<Result<ProcessStatus>> ChannelState::wait() {
  const auto self = shared_from_this();
  const auto status = co_await core_->drive([this]() -> int {
    if (ended_ || remote_closed_) return SSH_OK;
    if (closed_) return SSH_ERROR;
    // Called only for its side effect of processing packets: it ignores signals, and its -1 may
    // mean "not yet". drive() ends the wait if the connection breaks.
    ssh_channel_get_exit_status(channel_);
    return ended_ || remote_closed_ ? SSH_OK : SSH_AGAIN;
  });
  if (ended_) co_return *ended_;
  if (!status || *status != SSH_OK) co_return std::unexpected(lost("wait"));
  co_return ProcessStatus{ProcessStatus::Kind::lost, 0, false};
}

void ChannelState::close() {
  if (closed_) return;
  closed_ = true;
  if (core_->closed()) return;
  // For a refused channel libssh would send EOF to channel 0, and sshd would close the whole
  // connection in response.
  if (opened_) ssh_channel_close(channel_);
  core_->flush();
  core_->notify();
}

}  // namespace sortie::launcher::ssh
