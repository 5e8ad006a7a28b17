#include "launcher/host/transport_router.h"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <map>
#include <optional>
#include <utility>

#include "common/asio/token.h"
#include "launcher/host/link_faults.h"
#include "launcher/host/terminal_channel.h"
#include "launcher/local/local_transport.h"
#include "launcher/ssh/argv_transport.h"
#include "launcher/ssh/ssh_transport.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {
constexpr std::string_view kThisMachine = "localhost";
/// Timeout of the first command on a kept connection; a new connection costs less than a longer
/// wait.
constexpr milliseconds kPatience{3000};
/// A server that allows one session counts the previous one for a moment longer.
constexpr int kRefusals = 6;
constexpr milliseconds kAfterRefusal{50};
}  // namespace

struct TransportRouter::State {
  std::unique_ptr<Transport> remote, local;
  milliseconds connect_timeout;
  std::shared_ptr<LinkFaults> faults = std::make_shared<LinkFaults>();
  std::multimap<std::string, std::unique_ptr<Connection>> kept = {};

  Transport& way_to(std::string_view host) { return host == kThisMachine ? *local : *remote; }
  std::unique_ptr<Connection> take(const std::string& host) {
    const auto entry = kept.find(host);
    if (entry == kept.end()) return nullptr;
    std::unique_ptr<Connection> connection = std::move(entry->second);
    kept.erase(entry);
    return connection;
  }
};

namespace {

/// State shared by a connection and the commands that are being started on it.
struct Routed {
  std::weak_ptr<TransportRouter::State> router;
  std::shared_ptr<const LinkFaults> faults;
  asio::any_io_executor executor;
  milliseconds patience;  // how long to wait while the link is cut
  std::string host;
  std::unique_ptr<Connection> connection;
  bool untried = false;         // it was kept: it may be dead
  bool brought_runner = false;  // and can not start another one
  bool closed = false;
};

std::unexpected<Error> no_answer(ErrorCode code) {
  return std::unexpected(Error{code, "no answer: `sortie chaos` has cut the link"});
}

class RoutedConnection : public Connection, public TerminalWay {
 public:
  using Exec = asio::awaitable<Result<std::unique_ptr<Channel>>>;

  explicit RoutedConnection(std::shared_ptr<Routed> routed) : routed_(std::move(routed)) {}
  ~RoutedConnection() override { RoutedConnection::close(); }

  Exec exec(std::string command) override { return start(routed_, std::move(command)); }
  asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_terminal(
      TerminalRequest request) override {
    return open_there(routed_, std::move(request));
  }
  std::unique_ptr<Channel> take_runner() override {
    if (routed_->closed || routed_->untried || !routed_->connection) return nullptr;
    auto runner = routed_->connection->take_runner();
    if (!runner) return nullptr;
    routed_->brought_runner = true;
    return LinkFaults::guard(routed_->faults, routed_->host, routed_->executor, std::move(runner));
  }
  std::string peer_address() const override {
    return routed_->connection ? routed_->connection->peer_address() : "";
  }
  std::string through() const override {
    return routed_->connection ? routed_->connection->through() : "";
  }
  std::vector<StageTime> stages() const override {
    if (!routed_->connection || routed_->untried) return {};
    return routed_->connection->stages();
  }
  void settled() override {
    if (routed_->connection) routed_->connection->settled();
  }
  void release() override {
    if (std::exchange(routed_->closed, true) || !routed_->connection) return;
    const auto router = routed_->router.lock();
    if (router && !routed_->untried && !routed_->brought_runner)
      router->kept.emplace(routed_->host, std::move(routed_->connection));
    else
      routed_->connection->close();
  }
  void close() override {
    if (!std::exchange(routed_->closed, true) && routed_->connection) routed_->connection->close();
  }

 private:
  static Exec start(std::shared_ptr<Routed> routed, std::string command) {
    if (routed->closed || !routed->connection) co_return gone();
    const bool up = co_await LinkFaults::up(routed->faults, routed->host, routed->patience);
    if (!up) co_return no_answer(ErrorCode::lost);
    auto channel = co_await start_there(routed, std::move(command));
    if (!channel) co_return channel;
    const auto executor = co_await asio::this_coro::executor;
    co_return LinkFaults::guard(routed->faults, routed->host, executor, std::move(*channel));
  }

  static asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_there(
      std::shared_ptr<Routed> routed, TerminalRequest request) {
    if (routed->closed || !routed->connection)
      co_return fail(ErrorCode::lost, "the connection is closed");
    routed->untried = false;
    auto channel =
        co_await sortie::launcher::open_terminal(*routed->connection, std::move(request));
    co_return channel;
  }

  static Exec start_there(std::shared_ptr<Routed> routed, std::string command) {
    if (routed->closed || !routed->connection) co_return gone();
    if (routed->untried) {
      auto channel = co_await start_on_kept(routed, command);
      if (routed->closed || !routed->connection) co_return gone();
      if (channel) {
        routed->untried = false;
        co_return channel;
      }
      routed->connection->close();
      const auto router = routed->router.lock();
      if (!router) co_return gone();
      auto fresh = co_await router->way_to(routed->host).connect(routed->host);
      if (!fresh) co_return std::unexpected(std::move(fresh).error());
      if (routed->closed) {
        (*fresh)->close();
        co_return gone();
      }
      routed->connection = std::move(*fresh);
      routed->untried = false;
    }
    auto channel = co_await routed->connection->exec(std::move(command));
    co_return channel;
  }

  static Exec start_on_kept(std::shared_ptr<Routed> routed, std::string command) {
    const auto executor = co_await asio::this_coro::executor;
    asio::steady_timer deadline(executor, kPatience);
    const auto done = std::make_shared<bool>(false);
    deadline.async_wait([routed, done](const boost::system::error_code& cancelled) {
      if (!cancelled && !*done && routed->connection) routed->connection->close();
    });
    asio::steady_timer pause(executor);
    for (int refusals = 0;; ++refusals) {
      std::string same = command;
      auto channel = co_await routed->connection->exec(std::move(same));
      const bool refused = !channel && channel.error().code == ErrorCode::channel;
      if (!refused || refusals == kRefusals || routed->closed) {
        *done = true;
        co_return channel;
      }
      pause.expires_after(kAfterRefusal);
      co_await pause.async_wait(kToken);
    }
  }

  static Result<std::unique_ptr<Channel>> gone() {
    return fail(ErrorCode::lost, "the connection is closed");
  }

  std::shared_ptr<Routed> routed_;
};

}  // namespace

TransportRouter::TransportRouter(std::unique_ptr<Transport> remote,
                                 std::unique_ptr<Transport> local, milliseconds connect_timeout)
    : state_(std::make_shared<State>(State{std::move(remote), std::move(local), connect_timeout})) {
}

TransportRouter::~TransportRouter() {
  for (auto& [host, connection] : state_->kept) connection->close();
}

std::size_t TransportRouter::idle() const {
  return state_->kept.size();
}

void TransportRouter::cut_link(const std::string& host, milliseconds time) {
  state_->faults->cut(host, time);
}

asio::awaitable<Result<std::unique_ptr<Connection>>> TransportRouter::connect(std::string host) {
  const auto state = state_;
  const bool up = co_await LinkFaults::up(state->faults, host, state->connect_timeout);
  if (!up) co_return no_answer(ErrorCode::connect);
  const auto routed = std::make_shared<Routed>();
  routed->router = state;
  routed->faults = state->faults;
  routed->executor = co_await asio::this_coro::executor;
  routed->patience = state->connect_timeout;
  routed->host = host;
  routed->connection = state->take(host);
  routed->untried = routed->connection != nullptr;
  if (!routed->untried) {
    auto fresh = co_await state->way_to(host).connect(host);
    if (!fresh) co_return std::unexpected(std::move(fresh).error());
    routed->connection = std::move(*fresh);
  }
  std::unique_ptr<Connection> connection = std::make_unique<RoutedConnection>(routed);
  co_return connection;
}

std::unique_ptr<TransportRouter> make_transport(asio::any_io_executor executor,
                                                const config::RunnerConfig& runner) {
  auto remote = runner.transport.empty()
                    ? make_ssh_transport(executor, runner.ssh)
                    : make_argv_transport(executor, runner.transport, runner.ssh);
  return std::make_unique<TransportRouter>(std::move(remote), make_local_transport(executor),
                                           runner.ssh.connect_timeout);
}

}  // namespace sortie::launcher
