#include "launcher/warm/warm_terminal.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/log.h"
#include "launcher/ssh/connection_key.h"
#include "launcher/ssh/user_environment.h"
#include "launcher/warm/place.h"
#include "launcher/warm/request.h"
#include "launcher/warm/terminal_words.h"
#include "launcher/warm/warm_channel.h"

namespace sortie::launcher::warm {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

/// Time limit for a session to begin: somewhat more than that of Keeper::serve_terminal().
constexpr milliseconds kBeginTime{8000};
/// Maximum number of unread bytes per output.
constexpr std::size_t kMostUnread = 256u << 10;
constexpr std::size_t kInputPiece = 16u << 10;

/// Shared by the channel and the coroutines running in it.
struct TerminalState : std::enable_shared_from_this<TerminalState> {
  TerminalState(const asio::any_io_executor& executor, std::shared_ptr<WarmStream> over_stream)
      : stream(std::move(over_stream)),
        changed(executor, std::chrono::steady_clock::time_point::max()) {}

  std::shared_ptr<WarmStream> stream;
  asio::steady_timer changed;  // cancelled whenever the state changes
  std::string unread[2];       // by output
  std::string unsent;
  bool sending = false, over = false;
  std::optional<ProcessStatus> status;
  std::optional<Error> error;

  void end(std::optional<Error> why) {
    if (!over && !status) error = std::move(why);
    over = true;
    changed.cancel();
  }
  void send(std::string bytes) {
    if (over) return;
    unsent += bytes;
    if (std::exchange(sending, true)) return;
    spawn(changed.get_executor(), [self = shared_from_this()] { return self->send_loop(); });
  }
  asio::awaitable<void> send_loop() {
    const auto self = shared_from_this();
    while (!unsent.empty() && !over) {
      const std::string bytes = std::exchange(unsent, {});
      const auto written = co_await stream->write(bytes);
      if (!written) break;  // read_loop() reports the error
      changed.cancel();
    }
    unsent.clear();
    sending = false;
    changed.cancel();
  }
  asio::awaitable<void> read_loop() {
    const auto self = shared_from_this();
    while (!over) {
      auto answer = co_await stream->next(milliseconds(0));
      if (!answer) co_return end(std::move(answer).error());
      if (answer->type == Record::data || answer->type == Record::error_data) {
        std::string& to = unread[answer->type == Record::data ? 0 : 1];
        to += answer->payload;
        changed.cancel();
        while (to.size() > kMostUnread && !over) co_await changed.async_wait(kToken);
      } else if (answer->type == Record::ended) {
        auto ended = read_ended(answer->payload);
        if (!ended) co_return end(std::move(ended).error());
        status = *ended;
        co_return end(std::nullopt);
      } else {
        co_return end(answer->type == Record::failed
                          ? read_failed(answer->payload)
                          : Error{ErrorCode::protocol, "warm connections: an unexpected record"});
      }
    }
  }
  asio::awaitable<Result<std::size_t>> read_some(std::size_t output, std::span<char> buffer) {
    const auto self = shared_from_this();
    std::string& from = unread[output];
    while (from.empty() && !over) co_await changed.async_wait(kToken);
    if (from.empty() && error) co_return std::unexpected(*error);
    const std::size_t count = std::min(buffer.size(), from.size());
    std::memcpy(buffer.data(), from.data(), count);
    from.erase(0, count);
    changed.cancel();
    co_return count;
  }
  asio::awaitable<Result<>> write(std::string_view bytes) {
    const auto self = shared_from_this();
    while (!bytes.empty() && !over) {
      std::string piece = word(Word::input, bytes.substr(0, kInputPiece));
      bytes.remove_prefix(std::min(bytes.size(), kInputPiece));
      send(std::move(piece));
      while (sending && !over) co_await changed.async_wait(kToken);
    }
    if (over)
      co_return std::unexpected(error.value_or(Error{ErrorCode::lost, "the session has ended"}));
    co_return Result<>{};
  }
  asio::awaitable<Result<ProcessStatus>> wait() {
    const auto self = shared_from_this();
    while (!over) co_await changed.async_wait(kToken);
    if (status) co_return *status;
    co_return std::unexpected(
        error.value_or(Error{ErrorCode::lost, "the session was closed here"}));
  }
  void close() {
    stream->close();
    end(Error{ErrorCode::lost, "the session was closed here"});
  }
};

class WarmTerminal : public TerminalChannel {
 public:
  explicit WarmTerminal(std::shared_ptr<TerminalState> state) : state_(std::move(state)) {}
  ~WarmTerminal() override { state_->close(); }
  asio::awaitable<Result<std::size_t>> read_some(Output output, std::span<char> buffer) override {
    return state_->read_some(output == Output::out ? 0 : 1, buffer);
  }
  asio::awaitable<Result<>> write(std::string_view bytes) override { return state_->write(bytes); }
  void end_input() override { state_->send(word(Word::end_of_input)); }
  void resize(WindowSize size) override { state_->send(resize_word(size)); }
  asio::awaitable<Result<ProcessStatus>> wait() override { return state_->wait(); }
  void close() override { state_->close(); }

 private:
  std::shared_ptr<TerminalState> state_;
};

/// Connects to the background process of this build, if it runs.
Result<Fd> reach_keeper(const std::string& build) {
  SORTIE_ASSIGN_OR_RETURN(const Place place, Place::open());
  return place.connect(build);
}

}  // namespace

asio::awaitable<std::unique_ptr<TerminalChannel>> open_kept_terminal(asio::any_io_executor executor,
                                                                     config::RunnerConfig runner,
                                                                     std::string runner_hash,
                                                                     std::string host,
                                                                     TerminalRequest terminal) {
  Request request;
  request.kind = Request::Kind::terminal;
  request.want.build = build_of(runner_hash);
  request.want.host = host;
  request.want.ssh = runner.ssh;
  request.terminal = std::move(terminal);
  ssh::ConnectionKeys keys(runner.ssh, ssh::UserEnvironment::from_process());
  const auto key = keys.key_of(host);
  if (!key) co_return nullptr;  // connecting directly reports the error
  request.want.key = key->hash;
  request.want.address = key->address;
  auto socket = reach_keeper(request.want.build);
  if (!socket) co_return nullptr;
  WarmStream::Socket to_keeper(executor, asio::local::stream_protocol(), socket->release());
  const auto stream = std::make_shared<WarmStream>(std::move(to_keeper));
  const std::string frame = request_frame(request);
  auto asked = co_await stream->write(frame);
  Result<WarmStream::Answer> answer = fail(ErrorCode::lost, "");
  if (asked) answer = co_await stream->next(kTakenTime);
  if (answer && answer->type == Record::taken) answer = co_await stream->next(kBeginTime);
  if (!answer || answer->type != Record::ready) {
    log::debug("{}: no kept connection carries a terminal{}", host,
               answer ? "" : ": " + answer.error().message);
    stream->close();
    co_return nullptr;
  }
  const auto state = std::make_shared<TerminalState>(executor, stream);
  spawn(executor, [state] { return state->read_loop(); });
  co_return std::make_unique<WarmTerminal>(state);
}

}  // namespace sortie::launcher::warm
