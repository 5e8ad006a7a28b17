#include "launcher/ssh/mux_session.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/asio/within.h"
#include "common/base/pipe.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

constexpr std::string_view kAddressTag = "SORTIE-MASTER ";
constexpr std::size_t kMostBeforeTag = 64 * 1024;  // output of shell start-up files
// Time limit between the end of a command's output and its exit code, which normally follows at
// once.
constexpr milliseconds kUntilExitCode{2000};
constexpr milliseconds kUntilAlive{1000};

struct MuxEnds {
  Fd ours, masters;
};

Result<MuxEnds> mux_input() {
  int ends[2];
  // A socket pair instead of a pipe: a write to an ended command is then an error and no SIGPIPE.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return std::unexpected(os_error(errno, "socketpair; raise `ulimit -n`", ErrorCode::channel));
  return MuxEnds{Fd(ends[0]), Fd(ends[1])};
}

Result<MuxEnds> mux_output() {
  auto pipe = make_pipe();
  if (!pipe) return fail(ErrorCode::channel, pipe.error().message + "; raise `ulimit -n`");
  return MuxEnds{std::move(pipe->read), std::move(pipe->write)};
}

// Valid in every login shell (sh, bash, zsh, csh, fish). `command` begins with a word.
std::string command_after_address(const std::string& command) {
  return fmt::format("echo \"{}$SSH_CONNECTION\"; {}", kAddressTag, command);
}

// Of "CLIENT PORT SERVER PORT": the host's address as its peer sees it. Empty if invalid.
std::string third_word(std::string_view words) {
  for (int word = 0; word < 2; ++word) {
    const auto space = words.find(' ');
    if (space == std::string_view::npos) return "";
    words.remove_prefix(space + 1);
  }
  boost::system::error_code bad;
  const auto address = asio::ip::make_address(std::string(words.substr(0, words.find(' '))), bad);
  return bad ? "" : address.to_string();
}

}  // namespace

MuxSession::MuxSession(const asio::any_io_executor& executor, std::shared_ptr<MuxClient> client,
                       std::filesystem::path socket, std::function<void(std::string)> on_address)
    : executor_(executor),
      client_(std::move(client)),
      socket_(std::move(socket)),
      on_address_(std::move(on_address)),
      input_(executor),
      output_(executor),
      error_(executor),
      ended_(executor, MuxClient::Clock::time_point::max()) {}

asio::awaitable<Result<std::shared_ptr<MuxSession>>> MuxSession::start(
    asio::any_io_executor executor, std::shared_ptr<MuxClient> client, std::filesystem::path socket,
    std::string command, std::function<void(std::string)> on_address,
    MuxClient::Clock::time_point deadline) {
  auto input = mux_input(), output = mux_output(), error = mux_output();
  for (const auto* ends : {&input, &output, &error})
    if (!*ends) co_return std::unexpected(ends->error());
  std::vector<Fd> theirs;
  for (auto* ends : {&input, &output, &error}) theirs.push_back(std::move((*ends)->masters));
  std::string request = mux_new_session(MuxClient::kOpenRequest, command_after_address(command));
  auto opened = co_await client->open(std::move(request), std::move(theirs), deadline);
  if (!opened) {
    client->close();
    co_return std::unexpected(std::move(opened).error());
  }
  const auto session = std::make_shared<MuxSession>(executor, std::move(client), std::move(socket),
                                                    std::move(on_address));
  ::fcntl(input->ours.get(), F_SETFL, O_NONBLOCK);
  session->input_.assign(asio::local::stream_protocol(), input->ours.release());
  session->output_.assign(output->ours.release());
  session->error_.assign(error->ours.release());
  // They end with the session, and with its stderr.
  spawn(executor, watch(session));
  spawn(executor, collect_stderr(session));
  co_return session;
}

// Waits for the exit code or the end of the connection. Without an exit code either a signal ended
// the command, which masters do not report, or the master has exited.
asio::awaitable<void> MuxSession::watch(std::shared_ptr<MuxSession> self) {
  while (!self->status_) {
    const auto message = co_await self->client_->next();
    if (!message) break;
    if (message->type == MuxType::exit_message)
      self->status_ =
          ProcessStatus{ProcessStatus::Kind::exited, static_cast<int>(message->value), false};
  }
  if (!self->status_ && !self->closed_) {
    const auto alive = co_await MuxClient::connect(self->executor_, self->socket_,
                                                   MuxClient::Clock::now() + kUntilAlive);
    self->master_gone_ = !alive || (*alive)->master() != self->client_->master();
    if (alive) (*alive)->close();
  }
  self->over_ = true;
  self->ended_.cancel();
}

asio::awaitable<void> MuxSession::collect_stderr(std::shared_ptr<MuxSession> self) {
  std::array<char, 4096> buffer;
  for (;;) {
    const auto [error, count] = co_await self->error_.async_read_some(asio::buffer(buffer), kToken);
    if (error) co_return;
    self->stderr_tail_.add({buffer.data(), count});
  }
}

std::string MuxSession::stderr_tail() const {
  return stderr_tail_.text();
}

Error MuxSession::lost(std::string_view what) const {
  if (closed_) return {ErrorCode::lost, fmt::format("{}: the channel was closed here", what)};
  return {ErrorCode::lost,
          fmt::format("{}: the ssh master at {} has gone, and its connections with it", what,
                      socket_.string())};
}

asio::awaitable<bool> MuxSession::ended(std::shared_ptr<MuxSession> self) {
  while (!self->over_ && !self->closed_) co_await self->ended_.async_wait(kToken);
  co_return true;
}

asio::awaitable<Result<std::size_t>> MuxSession::read_output(std::span<char> buffer) {
  const auto self = shared_from_this();
  const auto [error, count] =
      co_await output_.async_read_some(asio::buffer(buffer.data(), buffer.size()), kToken);
  moved_ += count;
  if (!error) co_return count;
  if (error != asio::error::eof || closed_) co_return std::unexpected(lost("read"));
  // EOF: the command has ended, or the master has exited and closed all descriptors.
  co_await within(kUntilExitCode, ended(self));
  if (closed_ || master_gone_) co_return std::unexpected(lost("read"));
  co_return std::size_t{0};
}

// Removes the line with the address from the output. Start-up files may print text before it.
asio::awaitable<void> MuxSession::read_first_line() {
  const auto self = shared_from_this();
  std::array<char, 4096> buffer;
  while (!begun_) {
    std::size_t at =
        first_.starts_with(kAddressTag) ? 0 : first_.find("\n" + std::string(kAddressTag));
    if (at != 0 && at != std::string::npos) ++at;
    const std::size_t end = at == std::string::npos ? at : first_.find('\n', at);
    if (end != std::string::npos) {
      const std::string line = first_.substr(at, end - at);
      first_.erase(at, end + 1 - at);
      begun_ = true;
      if (on_address_) on_address_(third_word(std::string_view(line).substr(kAddressTag.size())));
    } else if (first_.size() > kMostBeforeTag) {
      begun_ = true;
    } else {
      const auto [error, count] = co_await output_.async_read_some(asio::buffer(buffer), kToken);
      first_.append(buffer.data(), count);
      moved_ += count;
      // read_output() determines the reason.
      if (error) begun_ = true;
    }
  }
}

asio::awaitable<Result<std::size_t>> MuxSession::read_some(std::span<char> buffer) {
  const auto self = shared_from_this();
  if (!begun_) co_await read_first_line();
  if (first_.empty()) co_return co_await read_output(buffer);
  const std::size_t count = std::min(buffer.size(), first_.size());
  std::memcpy(buffer.data(), first_.data(), count);
  first_.erase(0, count);
  co_return count;
}

asio::awaitable<Result<>> MuxSession::write(std::string_view bytes) {
  const auto self = shared_from_this();
  while (!bytes.empty()) {
    const auto [error, count] =
        co_await input_.async_write_some(asio::buffer(bytes.data(), bytes.size()), kToken);
    if (error) {
      co_await within(kUntilExitCode, ended(self));
      if (!closed_ && !master_gone_)
        co_return fail(ErrorCode::lost, "write: the command has ended and reads no more");
      co_return std::unexpected(lost("write"));
    }
    moved_ += count;
    bytes.remove_prefix(count);
  }
  co_return Result<>{};
}

asio::awaitable<Result<ProcessStatus>> MuxSession::wait() {
  const auto self = shared_from_this();
  co_await ended(self);
  if (status_) co_return *status_;
  if (closed_ || master_gone_) co_return std::unexpected(lost("wait"));
  co_return ProcessStatus{ProcessStatus::Kind::lost, 0, false};
}

void MuxSession::close() {
  if (closed_) return;
  closed_ = true;
  boost::system::error_code ignored;
  input_.close(ignored);
  output_.close(ignored);
  error_.close(ignored);
  client_->close();
  ended_.cancel();
}

}  // namespace sortie::launcher::ssh
