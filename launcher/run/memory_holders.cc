#include "launcher/run/memory_holders.h"

#include <fmt/core.h>

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/config/forms.h"
#include "common/wire/codec.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {

/// Time for holders to free their memory and exit.
constexpr std::chrono::seconds kReleaseLimit{10};
constexpr std::chrono::milliseconds kBetweenTries{1000};
constexpr int kTries = 5;

}  // namespace

/// Shared with sessions and tries that outlive the MemoryHolders object.
struct MemoryHolders::State : std::enable_shared_from_this<State> {
  explicit State(Parts given)
      : parts(std::move(given)), changed(parts.executor, Clock::time_point::max()) {}

  Parts parts;
  asio::steady_timer changed;    // never expires: setting a new expiry would wake all other waiters
  std::set<std::string> wanted;  // hosts
  std::map<std::string, std::shared_ptr<HostSession>> sessions;  // of working holders
  std::set<std::shared_ptr<HostSession>> leaving;                // Goodbye was sent
  std::set<std::string> trying;                                  // hosts with a running try
  std::set<std::string> ordered;          // of these, hosts that may hold memory already
  unsigned tries = 0;                     // number of tries begun; the n-th try has number n
  std::map<std::string, unsigned> ended;  // host -> number of its last failed try
  bool hurried = false, leaves_at_once = false;

  /// Connects and orders the runner to hold memory. ErrorCode::runner: a retry would fail, too.
  asio::awaitable<Result<>> open(const std::shared_ptr<HostSession>& session) {
    auto done = co_await session->connect(parts.transport, parts.binary);
    if (!done) co_return done;
    done = co_await session->greet(parts.binary.sha256());
    if (!done) co_return done;
    // A runner without an order holds no memory.
    if (!wanted.contains(session->host())) co_return fail(ErrorCode::interrupted, "given up");
    ordered.insert(session->host());
    auto held = co_await order(session);
    ordered.erase(session->host());
    co_return held;
  }

  asio::awaitable<Result<>> order(const std::shared_ptr<HostSession>& session) const {
    wire::HoldMemory order;
    order.run_id = parts.run_id;
    order.host = session->host();
    order.epoch = parts.epoch;
    order.hold_ms =
        static_cast<std::uint32_t>(config::launcher_hold(parts.runner.on_launcher_loss).count());
    order.heartbeat_interval_ms =
        static_cast<std::uint32_t>(parts.runner.heartbeat_interval.count());
    order.heartbeat_timeout_ms = static_cast<std::uint32_t>(parts.runner.heartbeat_timeout.count());
    session->send(order);
    auto answer = co_await session->next();
    if (!answer) co_return std::unexpected(std::move(answer).error());
    if (const auto* error = std::get_if<wire::RunnerError>(&*answer))
      co_return fail(ErrorCode::runner, error->message);
    if (!std::holds_alternative<wire::MemoryHeld>(*answer))
      co_return fail(ErrorCode::protocol,
                     fmt::format("runner sent {} before MemoryHeld", wire::message_name(*answer)));
    co_return Result<>();
  }

  /// Tries up to `most` times to start a holder on `host`, while it is wanted there.
  asio::awaitable<void> try_to_hold(std::string host, int most) {
    const auto self = shared_from_this();
    Result<> done;
    for (int number = 0; number < most && wanted.contains(host); ++number) {
      if (number > 0) {
        asio::steady_timer pause(parts.executor, kBetweenTries);
        co_await pause.async_wait(kToken);
        if (!wanted.contains(host)) break;
      }
      const auto session = std::make_shared<HostSession>(parts.executor, host, parts.runner);
      const unsigned mine = ++tries;
      done = co_await open(session);
      if (!done) {
        session->close();
        ended[host] = mine;
        changed.cancel();
        if (done.error().code == ErrorCode::runner) break;
        continue;
      }
      sessions[host] = session;
      const std::weak_ptr<HostSession> weak = session;
      session->start({.on_message = [](wire::Message) {},
                      .on_lost = [self, weak](Error) { self->on_lost(weak.lock()); }});
      if (!wanted.contains(host)) leave(host);
      break;
    }
    if (!done && wanted.contains(host))
      parts.say(fmt::format("{}: no memory is held for checkpoints there: {}", host,
                            done.error().message));
    trying.erase(host);
    changed.cancel();
  }

  void start_trying(const std::string& host, int most) {
    if (!trying.insert(host).second) return;
    const auto self = shared_from_this();
    spawn(parts.executor, [self, host, most] { return self->try_to_hold(host, most); });
  }

  /// Starts a try on every wanted host without a holder. Returns true while a wanted host has
  /// neither a holder nor a failed try with a number above `since`. Tries for unwanted hosts do not
  /// matter: they may hang in a connect.
  bool lacks_any(unsigned since) {
    bool lacks = false;
    for (const std::string& host : wanted) {
      const auto settled = [&] { return sessions.contains(host) || ended[host] > since; };
      if (settled()) continue;
      // A try may fail before it suspends for the first time, and nothing would wake the caller
      // later.
      start_trying(host, 1);
      lacks = lacks || !settled();
    }
    return lacks;
  }

  void on_lost(const std::shared_ptr<HostSession>& session) {
    changed.cancel();
    if (!session || leaving.erase(session) > 0) return;
    const std::string host = session->host();
    if (const auto at = sessions.find(host); at == sessions.end() || at->second != session) return;
    sessions.erase(host);
    // If only the runner was killed, its memory remains and another runner takes it over. A lost
    // host is handled by the attempt.
    if (wanted.contains(host)) start_trying(host, kTries);
  }

  void leave(const std::string& host) {
    const auto at = sessions.find(host);
    if (at == sessions.end()) return;
    const auto session = at->second;
    sessions.erase(at);
    leaving.insert(session);
    session->say_goodbye();
  }

  /// Completes when all holders with an order have freed their memory, after kReleaseLimit, or at
  /// once after stop_waiting(true).
  asio::awaitable<void> settled() {
    const auto self = shared_from_this();
    const auto late = std::make_shared<bool>(false);
    asio::steady_timer limit(parts.executor, kReleaseLimit);
    limit.async_wait([self, late](const boost::system::error_code& cancelled) {
      if (cancelled) return;
      *late = true;
      self->changed.cancel();
    });
    while ((!ordered.empty() || !leaving.empty()) && !*late && !leaves_at_once)
      co_await changed.async_wait(kToken);
  }
};

MemoryHolders::MemoryHolders(Parts parts) : state_(std::make_shared<State>(std::move(parts))) {}

MemoryHolders::~MemoryHolders() {
  state_->wanted.clear();
  for (const auto& [host, session] : std::exchange(state_->sessions, {})) session->close();
  for (const auto& session : std::exchange(state_->leaving, {})) session->close();
}

asio::awaitable<void> MemoryHolders::hold(std::vector<std::string> hosts) {
  const auto state = state_;
  state->wanted = {hosts.begin(), hosts.end()};
  std::vector<std::string> others;
  for (const auto& [host, session] : state->sessions)
    if (!state->wanted.contains(host)) others.push_back(host);
  for (const std::string& host : others) state->leave(host);
  const unsigned since = state->tries;
  while (!state->hurried && state->lacks_any(since)) co_await state->changed.async_wait(kToken);
}

asio::awaitable<void> MemoryHolders::release() {
  const auto state = state_;
  state->wanted.clear();
  std::vector<std::string> hosts;
  for (const auto& [host, session] : state->sessions) hosts.push_back(host);
  for (const std::string& host : hosts) state->leave(host);
  co_await state->settled();
}

void MemoryHolders::stop_waiting(bool at_once) {
  state_->hurried = true;
  state_->leaves_at_once = state_->leaves_at_once || at_once;
  state_->changed.cancel();
}

}  // namespace sortie::launcher
