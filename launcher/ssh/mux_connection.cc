#include "launcher/ssh/mux_connection.h"

#include <fmt/core.h>

#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "common/asio/token.h"
#include "common/base/log.h"
#include "launcher/ssh/mux_session.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

using MuxExec = asio::awaitable<Result<std::unique_ptr<Channel>>>;

// A server counts an ended session for a moment longer, so a refusal is retried.
constexpr int kMostRefusals = 5;
constexpr milliseconds kAfterMuxRefusal{50};

}  // namespace

struct MuxConnection::State : std::enable_shared_from_this<MuxConnection::State> {
  State(asio::any_io_executor e, std::string name, MuxMaster master, milliseconds t,
        std::function<AnewConnection()> a)
      : executor(std::move(e)),
        host(std::move(name)),
        socket(std::move(master.socket)),
        first(std::move(master.client)),
        slot(std::move(master.slot)),
        timeout(t),
        anew(std::move(a)) {}

  MuxExec exec(std::string command);
  asio::awaitable<Result<std::shared_ptr<MuxSession>>> open(std::string command);
  asio::awaitable<Result<std::shared_ptr<MuxSession>>> open_when_free(std::string command);
  asio::awaitable<Result<>> replace(Error why);

  asio::any_io_executor executor;
  const std::string host;
  const std::filesystem::path socket;
  std::shared_ptr<MuxClient> first;  // from find(); used for the first session
  std::shared_ptr<FanOut::Slot> slot;
  const milliseconds timeout;
  const std::function<AnewConnection()> anew;
  std::string address;
  std::vector<StageTime> stages;
  std::unique_ptr<Connection> replacement;  // set after the master opened no session
  std::vector<std::weak_ptr<MuxSession>> sessions;
  bool closed = false;
};

asio::awaitable<Result<std::shared_ptr<MuxSession>>> MuxConnection::State::open(
    std::string command) {
  const auto self = shared_from_this();
  const auto deadline = MuxClient::Clock::now() + timeout;
  std::shared_ptr<MuxClient> client = std::exchange(first, nullptr);
  if (!client) {
    auto made = co_await MuxClient::connect(executor, socket, deadline);
    if (!made) co_return std::unexpected(std::move(made).error());
    client = std::move(*made);
  }
  std::function<void(std::string)> on_address = [weak = weak_from_this()](std::string at) {
    if (const auto state = weak.lock()) state->address = std::move(at);
  };
  auto session = co_await MuxSession::start(executor, std::move(client), socket, std::move(command),
                                            std::move(on_address), deadline);
  if (!session) co_return session;
  if (closed) {
    (*session)->close();
    co_return fail(ErrorCode::lost, "the connection was closed here");
  }
  std::erase_if(sessions, [](const auto& weak) { return weak.expired(); });
  sessions.push_back(*session);
  if (slot)
    slot->watch([weak = std::weak_ptr(*session)]() -> std::uint64_t {
      const auto alive = weak.lock();
      return alive ? alive->bytes_moved() : 0;
    });
  co_return session;
}

asio::awaitable<Result<std::shared_ptr<MuxSession>>> MuxConnection::State::open_when_free(
    std::string command) {
  const auto self = shared_from_this();
  asio::steady_timer pause(executor);
  for (int refusals = 1;; ++refusals) {
    std::string same = command;
    auto session = co_await open(std::move(same));
    const bool refused = !session && session.error().code == ErrorCode::channel;
    if (!refused || refusals == kMostRefusals || closed) co_return session;
    pause.expires_after(kAfterMuxRefusal);
    co_await pause.async_wait(kToken);
  }
}

asio::awaitable<Result<>> MuxConnection::State::replace(Error why) {
  const auto self = shared_from_this();
  if (why.code == ErrorCode::channel)
    why.message +=
        " (sshd allows 10 sessions on one connection, unless MaxSessions says otherwise)";
  why.message =
      fmt::format("the ssh master at {} opens no session: {}", socket.string(), why.message);
  log::debug("{}: {}; signing in anew", host, why.message);
  slot.reset();  // the new connection takes its own slot
  auto fresh = co_await anew();
  if (!fresh) {
    Error error = std::move(fresh).error();
    error.message += "; " + why.message;
    co_return std::unexpected(std::move(error));
  }
  if (closed || replacement) {
    (*fresh)->close();
    if (closed) co_return fail(ErrorCode::lost, "the connection was closed here");
    co_return Result<>{};
  }
  replacement = std::move(*fresh);
  co_return Result<>{};
}

MuxExec MuxConnection::State::exec(std::string command) {
  const auto self = shared_from_this();
  if (closed) co_return fail(ErrorCode::lost, "the connection was closed here");
  if (!replacement) {
    std::string same = command;
    auto session = co_await open_when_free(std::move(same));
    if (session) {
      std::unique_ptr<Channel> channel = std::make_unique<MuxChannel>(std::move(*session));
      co_return channel;
    }
    if (closed) co_return std::unexpected(std::move(session).error());
    if (!replacement) {
      auto replaced = co_await replace(std::move(session).error());
      if (!replaced) co_return std::unexpected(std::move(replaced).error());
    }
  }
  auto channel = co_await replacement->exec(std::move(command));
  co_return channel;
}

MuxConnection::MuxConnection(asio::any_io_executor executor, std::string host, MuxMaster master,
                             std::chrono::microseconds took, milliseconds timeout,
                             std::function<AnewConnection()> anew)
    : state_(std::make_shared<State>(std::move(executor), std::move(host), std::move(master),
                                     timeout, std::move(anew))) {
  state_->stages.push_back({"master", took});
}

MuxExec MuxConnection::exec(std::string command) {
  return state_->exec(std::move(command));
}

std::string MuxConnection::peer_address() const {
  return state_->replacement ? state_->replacement->peer_address() : state_->address;
}

std::vector<StageTime> MuxConnection::stages() const {
  return state_->replacement ? state_->replacement->stages() : state_->stages;
}

std::string MuxConnection::through() const {
  return state_->replacement ? "" : state_->socket.string();
}

void MuxConnection::settled() {
  state_->slot.reset();
  if (state_->replacement) state_->replacement->settled();
}

void MuxConnection::close() {
  if (std::exchange(state_->closed, true)) return;
  state_->slot.reset();
  if (const auto first = std::exchange(state_->first, nullptr)) first->close();
  for (const auto& weak : state_->sessions)
    if (const auto session = weak.lock()) session->close();
  state_->sessions.clear();
  if (state_->replacement) state_->replacement->close();
}

}  // namespace sortie::launcher::ssh
