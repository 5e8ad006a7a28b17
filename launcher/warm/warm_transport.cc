#include "launcher/warm/warm_transport.h"

#include <fmt/core.h>
#include <unistd.h>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "common/asio/token.h"
#include "common/base/log.h"
#include "common/config/forms.h"
#include "launcher/local/local_transport.h"
#include "launcher/ssh/connection_key.h"
#include "launcher/ssh/ssh_transport.h"
#include "launcher/warm/keeper_process.h"
#include "launcher/warm/place.h"
#include "launcher/warm/request.h"
#include "launcher/warm/warm_channel.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace warm {
namespace {

/// Number of tries to use a background process, before hosts are connected directly.
constexpr int kStarts = 3;
/// Pause and maximum number of tries while the listen queue is full or the process is starting.
constexpr std::chrono::milliseconds kTurn{5};
constexpr int kTurns = 400;

class WarmConnection : public Connection {
 public:
  WarmConnection(std::shared_ptr<WarmStream> stream, const Ready& ready)
      : stream_(std::move(stream)), address_(ready.address) {
    for (std::size_t i = 0; i < ready.names.size() && i < ready.times.size(); ++i)
      if (const auto name = known_stage(ready.names[i]); !name.empty())
        stages_.push_back({name, std::chrono::microseconds(ready.times[i])});
  }
  ~WarmConnection() override { WarmConnection::close(); }

  asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string) override { return refuse(); }
  std::unique_ptr<Channel> take_runner() override {
    if (!stream_) return nullptr;
    return std::make_unique<WarmChannel>(std::exchange(stream_, nullptr));
  }
  std::string peer_address() const override { return address_; }
  std::vector<StageTime> stages() const override { return stages_; }
  void close() override {
    if (stream_) stream_->close();  // the runner was not taken
  }

 private:
  static std::string_view known_stage(const std::string& name) {
    for (const ErrorCode code :
         {ErrorCode::resolve, ErrorCode::connect, ErrorCode::handshake, ErrorCode::auth})
      if (error_code_name(code) == name) return error_code_name(code);
    return {};
  }
  static asio::awaitable<Result<std::unique_ptr<Channel>>> refuse() {
    co_return fail(ErrorCode::channel, "a kept connection serves one conversation");
  }

  std::shared_ptr<WarmStream> stream_;
  std::string address_;
  std::vector<StageTime> stages_;
};

}  // namespace

/// Shared by the transport and its coroutines.
struct WarmState {
  explicit WarmState(WarmParts from)
      : parts(std::move(from)),
        build(build_of(parts.runner_hash)),
        session(fmt::format("{}-{}", ::getpid(),
                            std::chrono::steady_clock::now().time_since_epoch().count())),
        keys(parts.runner.ssh, parts.environment) {}

  WarmParts parts;
  std::string build, session;
  ssh::ConnectionKeys keys;
  std::optional<Place> place;
  std::unique_ptr<Transport> direct;  // set once the background process is not available

  /// Returns a connected socket. ErrorCode::timeout: the caller should retry soon.
  Result<Fd> reach() {
    if (!place) {
      SORTIE_ASSIGN_OR_RETURN(place, Place::open());
    }
    auto socket = place->connect(build);
    if (socket || socket.error().code != ErrorCode::lost) return socket;
    SORTIE_TRY(start_keeper(*place, build, parts.sortie, parts.runner_file, parts.runner_hash));
    socket = place->connect(build);
    // Another command is starting the process and has the lock, but the socket does not exist yet.
    if (!socket && socket.error().code == ErrorCode::lost)
      return fail(ErrorCode::timeout, socket.error().message);
    return socket;
  }

  Transport& go_direct(const Error& why) {
    if (!direct) {
      log::warning("runner.ssh.persist: no connection is kept, hosts are signed in to anew: {}",
                   why.message);
      direct = make_ssh_transport(parts.executor, parts.runner.ssh, parts.environment);
    }
    return *direct;
  }

  std::string request_for(const std::string& host, const ssh::ConnectionKey& key) const {
    Request request;
    request.kind = Request::Kind::want;
    request.want = {build,
                    session,
                    host,
                    key.hash,
                    key.address,
                    parts.runner.ssh,
                    parts.environment,
                    parts.runner.heartbeat_timeout,
                    parts.runner.startup_timeout};
    // Few hosts need the variables. Those of a session have one environment.
    if (key.uses_variables)
      request.want.session += "-variables";
    else
      request.want.environment.variables.clear();
    return request_frame(request);
  }
};

namespace {

using Connected = Result<std::unique_ptr<Connection>>;

/// Requests a connection from the background process. Returns nullopt if it can not serve the
/// request; `why` is then the reason.
asio::awaitable<std::optional<Connected>> ask_keeper(std::shared_ptr<WarmState> state,
                                                     std::string host, Error& why) {
  const auto executor = co_await asio::this_coro::executor;
  auto key = state->keys.key_of(host);
  if (!key) co_return Connected(std::unexpected(std::move(key).error()));
  asio::steady_timer pause(executor);
  for (int turns = 0, starts = 0; turns < kTurns && starts < kStarts && !state->direct; ++turns) {
    auto reached = state->reach();
    if (!reached) {
      why = reached.error();
      if (why.code != ErrorCode::timeout) break;
      pause.expires_after(kTurn);
      co_await pause.async_wait(kToken);
      continue;
    }
    ++starts;
    WarmStream::Socket socket(executor, asio::local::stream_protocol(), reached->release());
    const auto stream = std::make_shared<WarmStream>(std::move(socket));
    const std::string request = state->request_for(host, *key);
    auto answer = co_await stream->write(request);
    Result<WarmStream::Answer> taken = fail(ErrorCode::lost, "");
    if (answer) taken = co_await stream->next(kTakenTime);
    if (taken && taken->type != Record::taken)
      taken = fail(ErrorCode::lost, "the background process is about to end");
    if (!taken) {
      why = taken.error();
      stream->close();
      if (why.code == ErrorCode::timeout) break;
      pause.expires_after(kTurn);
      co_await pause.async_wait(kToken);
      continue;
    }
    auto settled = co_await stream->next(std::chrono::milliseconds(0));
    if (!settled) {
      why = settled.error();
      continue;
    }
    if (settled->type == Record::failed)
      co_return Connected(std::unexpected(read_failed(settled->payload)));
    if (settled->type != Record::ready)
      co_return Connected(fail(ErrorCode::protocol, "warm connections: an unexpected record"));
    auto ready = read_ready(settled->payload);
    if (!ready) co_return Connected(std::unexpected(std::move(ready).error()));
    std::unique_ptr<Connection> connection = std::make_unique<WarmConnection>(stream, *ready);
    co_return Connected(std::move(connection));
  }
  co_return std::nullopt;
}

class WarmTransport : public Transport {
 public:
  explicit WarmTransport(std::shared_ptr<WarmState> state) : state_(std::move(state)) {}
  asio::awaitable<Connected> connect(std::string host) override {
    return connect_to(state_, std::move(host));
  }

 private:
  static asio::awaitable<Connected> connect_to(std::shared_ptr<WarmState> state, std::string host) {
    Error why{ErrorCode::lost, "it can not be reached"};
    auto answer = co_await ask_keeper(state, host, why);
    if (answer) co_return std::move(*answer);
    Transport& direct = state->go_direct(why);
    co_return co_await direct.connect(std::move(host));
  }

  std::shared_ptr<WarmState> state_;
};

}  // namespace

std::unique_ptr<Transport> make_warm_transport(WarmParts parts) {
  return std::make_unique<WarmTransport>(std::make_shared<WarmState>(std::move(parts)));
}

}  // namespace warm

std::unique_ptr<TransportRouter> make_fleet_transport(asio::any_io_executor executor,
                                                      const config::RunnerConfig& runner,
                                                      const RunnerBinary& binary) {
  if (runner.ssh.persist.count() == 0) return make_transport(std::move(executor), runner);
  auto remote = warm::make_warm_transport({executor, runner, binary.sha256(), binary.path()});
  return std::make_unique<TransportRouter>(std::move(remote), make_local_transport(executor),
                                           runner.ssh.connect_timeout);
}

std::unique_ptr<TransportRouter> make_run_transport(asio::any_io_executor executor,
                                                    const config::RunnerConfig& runner,
                                                    const RunnerBinary& binary) {
  if (config::launcher_hold(runner.on_launcher_loss).count() == 0)
    return make_transport(std::move(executor), runner);
  return make_fleet_transport(std::move(executor), runner, binary);
}

}  // namespace sortie::launcher
