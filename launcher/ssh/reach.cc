#include "launcher/ssh/reach.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/log.h"
#include "launcher/ssh/auth.h"
#include "launcher/ssh/dial.h"
#include "launcher/ssh/handshake.h"
#include "launcher/ssh/mux_forward.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

// A name lookup or SYN without an answer costs only a descriptor, so it no longer counts after a
// quarter of a second. That allows at least 1000 hosts a second, however many of them are dead.
constexpr std::size_t kDials = 256;
constexpr milliseconds kDialPatience{250};
constexpr milliseconds kPatience{1000};

asio::awaitable<void> sleep_for(asio::any_io_executor executor, milliseconds time) {
  asio::steady_timer timer(executor, time);
  co_await timer.async_wait(kToken);
}

std::string chain_of(const std::vector<std::string>& jumps) {
  std::string chain;
  for (const auto& jump : jumps) chain += jump + '>';
  return chain;
}

std::unexpected<Error> not_taken(Error error, int tries, milliseconds timeout) {
  if (tries > 1)
    error.message += fmt::format("; tried {} times over {} ms (runner.ssh.handshake_timeout)",
                                 tries, timeout.count());
  return std::unexpected(std::move(error));
}

}  // namespace

struct Reach::Attempt {
  std::shared_ptr<ServerGate> gate;
  std::shared_ptr<ServerGate::Pass> pass;
  Fd socket;
  std::shared_ptr<void> carrier;
  std::string no_master;  // why the master of the last jump host was not used; empty = it has none
  Reached reached;
  Result<> outcome;
  bool dropped = false;  // a retry may succeed
};

Reach::Reach(asio::any_io_executor executor, config::SshConfig ssh,
             const UserEnvironment& environment, milliseconds file_limit)
    : executor_(executor),
      ssh_(std::move(ssh)),
      files_(std::make_shared<UserFiles>(executor, ssh_, environment, file_limit)),
      masters_(std::make_shared<MuxMasters>(executor, ssh_, environment, files_)),
      resolver_(executor),
      credentials_(std::make_shared<Credentials>(files_)),
      dials_(std::make_shared<FanOut>(executor, kDials, kDialPatience)),
      handshakes_(
          std::make_shared<FanOut>(executor, static_cast<std::size_t>(ssh_.fanout), kPatience)) {}

std::shared_ptr<ServerGate> Reach::gate_of(const std::string& server) {
  auto& gate = gates_[server];
  if (!gate) gate = std::make_shared<ServerGate>(executor_);
  return gate;
}

asio::awaitable<Result<Reached>> Reach::reach(std::string host) {
  const auto self = shared_from_this();
  auto spec = parse_host_spec(host);
  if (!spec) co_return std::unexpected(std::move(spec).error());
  auto settings = co_await files_->settings(std::move(*spec));
  if (!settings) co_return std::unexpected(std::move(settings).error());
  co_return co_await reach_with(std::move(*settings));
}

// Retries if the server drops the connection before its banner, because it has too many
// (MaxStartups): as long as it accepts others, and then for handshake_timeout.
asio::awaitable<Result<Reached>> Reach::reach_with(HostSettings settings) {
  const auto self = shared_from_this();
  Clock::time_point begun{};
  for (int tries = 1;; ++tries) {
    const auto attempt = std::make_unique<Attempt>();
    co_await try_once(settings, *attempt);
    if (attempt->outcome) co_return std::move(attempt->reached);
    if (begun == Clock::time_point{}) begun = Clock::now();
    if (!attempt->dropped) co_return std::unexpected(std::move(attempt->outcome).error());
    const auto last_in = attempt->gate ? attempt->gate->last_in() : begun;
    const auto delay = retry_delay(tries - 1);
    if (Clock::now() + delay > std::max(begun, last_in) + ssh_.handshake_timeout)
      co_return not_taken(std::move(attempt->outcome).error(), tries, ssh_.handshake_timeout);
    attempt->pass.reset();
    attempt->carrier.reset();
    // A host that waits for its next try must not occupy a place of runner.ssh.fanout.
    attempt->reached.core.reset();
    attempt->reached.slot.reset();
    co_await sleep_for(executor_, delay);
  }
}

asio::awaitable<Result<>> Reach::dial_directly(const HostSettings& settings, Attempt& attempt) {
  auto dial_slot = co_await dials_->enter();
  attempt.reached.waited();
  auto endpoints =
      co_await resolver_.resolve(settings.host_name, settings.port, ssh_.resolve_timeout);
  if (!endpoints) co_return std::unexpected(std::move(endpoints).error());
  attempt.reached.passed(ErrorCode::resolve);
  const auto& first = endpoints->front();
  attempt.gate = gate_of(fmt::format("{}:{}", first.address().to_string(), first.port()));
  dial_slot.reset();  // no packets are sent while waiting at the gate
  attempt.pass = co_await attempt.gate->enter();
  dial_slot = co_await dials_->enter();
  attempt.reached.waited();
  auto dialled = co_await dial(std::move(*endpoints), ssh_.connect_timeout);
  if (!dialled) {
    if (!dialled.error().out_of_files) attempt.pass->unreachable();
    co_return std::unexpected(std::move(dialled.error().error));
  }
  attempt.socket = std::move(dialled->socket);
  attempt.reached.address = std::move(dialled->address);
  co_return Result<>{};
}

asio::awaitable<Result<>> Reach::dial_by_jump(const HostSettings& settings, Attempt& attempt) {
  attempt.gate =
      gate_of(fmt::format("{}{}:{}", chain_of(settings.jumps), settings.host_name, settings.port));
  attempt.pass = co_await attempt.gate->enter();
  auto by_master = co_await dial_by_master(settings, attempt);
  if (!by_master) co_return std::unexpected(std::move(by_master).error());
  if (*by_master) co_return Result<>{};
  // A jump host with a master may not accept a direct login, so name the master's failure, too.
  const auto failed = [&attempt](Error error) {
    if (!attempt.no_master.empty()) error.message += "; " + attempt.no_master;
    return std::unexpected(std::move(error));
  };
  for (int tries = 0;; ++tries) {
    auto ride = co_await reach_jump(settings.jumps);
    if (!ride) co_return failed(std::move(ride).error());
    const auto deadline = Clock::now() + ssh_.connect_timeout;
    const auto core = (*ride)->core();
    auto dialled = co_await dial_through(core, settings.host_name, settings.port, deadline);
    if (dialled) {
      attempt.socket = std::move(*dialled);
      attempt.carrier = std::move(*ride);
      co_return Result<>{};
    }
    // The jump connection is full or broken: another one may succeed.
    const bool another = (*ride)->is_full(dialled.error()) || core->closed() || core->broken();
    if (another && tries < 3) continue;
    co_return failed(with_context(std::move(dialled).error(),
                                  fmt::format("jump host {}", settings.jumps.back())));
  }
}

// Opens the stream through the master of the last jump host, which needs no authentication there.
// Returns false if there is no master, or it opens no stream.
asio::awaitable<Result<bool>> Reach::dial_by_master(const HostSettings& settings,
                                                    Attempt& attempt) {
  const auto self = shared_from_this();
  auto jump = parse_host_spec(settings.jumps.back());
  if (!jump) co_return std::unexpected(std::move(jump).error());
  auto found = co_await masters_->find(
      *jump, settings.jumps.size() == 1 ? MuxRole::jump : MuxRole::jump_behind_others);
  if (!found)
    co_return std::unexpected(
        with_context(std::move(found).error(), fmt::format("jump host {}", settings.jumps.back())));
  if (!found->master) {
    attempt.no_master = std::move(found->why_not);
    co_return false;
  }
  const auto client = found->master->client;
  auto stream = co_await forward_through(client, settings.host_name, settings.port,
                                         Clock::now() + ssh_.connect_timeout);
  if (!stream) {
    attempt.no_master = fmt::format("its ssh master at {} opens no connection to {}:{}: {}",
                                    found->master->socket.string(), settings.host_name,
                                    settings.port, stream.error().message);
    log::debug("jump host {}: {}", settings.jumps.back(), attempt.no_master);
    co_return false;
  }
  attempt.socket = std::move(*stream);
  attempt.carrier = client;
  co_return true;
}

// One try: connects by TCP or through the jump hosts, does the handshake, and authenticates.
asio::awaitable<void> Reach::try_once(const HostSettings& settings, Attempt& attempt) {
  if (settings.jumps.empty())
    attempt.outcome = co_await dial_directly(settings, attempt);
  else
    attempt.outcome = co_await dial_by_jump(settings, attempt);
  if (!attempt.outcome) co_return;
  attempt.reached.passed(ErrorCode::connect);
  attempt.reached.slot = co_await handshakes_->enter();
  attempt.reached.waited();
  auto core = SessionCore::create(executor_, std::move(attempt.socket), attempt.carrier);
  if (!core) {
    attempt.outcome = std::unexpected(std::move(core).error());
    co_return;
  }
  attempt.reached.core = *core;
  attempt.reached.slot->watch([weak = std::weak_ptr(*core)]() -> std::uint64_t {
    const auto alive = weak.lock();
    return alive ? alive->bytes_moved() : 0;
  });
  attempt.outcome = co_await shake_hands(*core, settings, files_, ssh_);
  if (!attempt.outcome && dropped_before_banner(**core)) {
    attempt.dropped = true;
    attempt.pass->dropped();
  } else {
    // The host key check counts as part of the handshake.
    if (attempt.outcome) attempt.reached.passed(ErrorCode::handshake);
    if (attempt.outcome)
      attempt.outcome = co_await authenticate(*core, settings, credentials_, ssh_.auth_timeout);
    attempt.pass->got_in();
  }
  if (attempt.outcome) attempt.reached.passed(ErrorCode::auth);
  if (attempt.outcome)
    (*core)->watch();
  else
    (*core)->close();
}

asio::awaitable<void> Reach::settle_jump(std::shared_ptr<JumpConnection> connection, HostSpec spec,
                                         std::vector<std::string> before) {
  const auto self = shared_from_this();
  auto settings = co_await files_->jump_settings(std::move(spec));
  if (!settings) {
    connection->error = settings.error();
  } else {
    // In a list, each hop is reached through those before it; only the first has its own ProxyJump.
    if (!before.empty()) settings->jumps = before;
    auto reached = co_await reach_with(*settings);
    if (reached)
      connection->core = reached->core;
    else
      connection->error = reached.error();
  }
  connection->done = true;
  connection->settled.cancel();
}

asio::awaitable<Result<std::shared_ptr<JumpRide>>> Reach::reach_jump(
    std::vector<std::string> jumps) {
  const auto self = shared_from_this();
  const std::string last = jumps.back();
  auto spec = parse_host_spec(last);
  if (!spec) co_return std::unexpected(std::move(spec).error());

  auto& pool = jumps_[chain_of(jumps)];
  std::erase_if(pool, [](const auto& weak) { return weak.expired(); });
  std::shared_ptr<JumpConnection> connection;
  for (const auto& weak : pool)
    if (auto candidate = weak.lock(); !connection && candidate && candidate->has_room())
      connection = std::move(candidate);
  if (!connection) {
    connection = std::make_shared<JumpConnection>(executor_);
    pool.push_back(connection);
    jumps.pop_back();
    // A separate coroutine, because the first target may be given up while others wait.
    spawn(executor_, settle_jump(connection, *spec, jumps));
  }
  auto ride = std::make_shared<JumpRide>(connection);
  while (!connection->done) co_await connection->settled.async_wait(kToken);
  if (!connection->core)
    co_return std::unexpected(with_context(connection->error, fmt::format("jump host {}", last)));
  co_return ride;
}

}  // namespace sortie::launcher::ssh
