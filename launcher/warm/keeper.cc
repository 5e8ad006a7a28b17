#include "launcher/warm/keeper.h"

#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "launcher/warm/client.h"

namespace sortie::launcher::warm {
namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {

/// Time limit for an idle runner to confirm a conversation: a new connection costs less than a
/// longer wait. It is heartbeat_timeout / kConfirmPart if that is longer, because busy hosts may be
/// silent for longer.
constexpr milliseconds kConfirmTime{1500};
constexpr int kConfirmPart = 8;
/// Time limit for starting another runner on an open connection.
constexpr milliseconds kAnotherTime{5000};
/// After this time without use the settings of a command are read again.
constexpr milliseconds kSessionTime{5000};
/// Ping interval of idle runners, as a multiple of the command's heartbeat timeout.
constexpr int kPingTimeouts = 6;
constexpr milliseconds kLeastPing{2000}, kMostPing{60'000};
/// Time after the last client, longer than kSessionTime, before free memory is returned to the OS.
constexpr milliseconds kTidyAfter{6000};

milliseconds confirm_time(const Want& want) {
  return std::max(kConfirmTime, want.heartbeat_timeout / kConfirmPart);
}

milliseconds ping_interval(const Want& want) {
  return std::clamp(kPingTimeouts * want.heartbeat_timeout, kLeastPing, kMostPing);
}

}  // namespace

Keeper::Keeper(Parts parts) : parts_(std::move(parts)) {}

asio::awaitable<void> Keeper::serve(std::shared_ptr<Socket> socket) {
  const auto self = shared_from_this();
  const auto client = std::make_shared<Client>(std::move(socket));
  ++clients_;
  auto request = co_await client->request();
  if (request && request->kind == Request::Kind::want) {
    co_await serve_want(client, std::move(request->want));
  } else if (request && request->kind == Request::Kind::terminal) {
    co_await serve_terminal(client, std::move(*request));
  } else if (request) {
    std::string text = "{}";
    if (request->kind == Request::Kind::list) text = list();
    if (request->kind == Request::Kind::close) text = close_hosts(request->hosts);
    if (request->kind == Request::Kind::retire) retiring_ = true;
    if (retiring_) close_hosts({});
    const auto answer = std::make_shared<std::string>(record(Record::answer, text));
    co_await client->write(answer);
  } else if (request.error().code == ErrorCode::protocol) {
    log::warning("{}", request.error().message);
  }
  client->close();
  --clients_;
  last_busy_ = Clock::now();
}

asio::awaitable<void> Keeper::serve_want(std::shared_ptr<Client> client, Want want) {
  const bool ours = !retiring_ && want.build == parts_.build;
  untidy_ = true;
  const auto first = std::make_shared<std::string>(record(ours ? Record::taken : Record::other));
  co_await client->write(first);
  if (!ours) co_return;
  const auto talk = std::make_shared<Talk>(client);
  Ready ready;
  auto found = co_await find(talk, want, ready);
  if (!found) {
    const auto why = std::make_shared<std::string>(failed_record(found.error()));
    co_await client->write(why);
    co_return;
  }
  const auto there = std::make_shared<std::string>(ready_record(ready));
  co_await client->write(there);
  co_await converse(talk, std::move(*found));
}

Keeper::Found Keeper::take_idle(const std::string& key) {
  const auto entry = idle_.find(key);
  if (entry == idle_.end()) return nullptr;
  Found runner = std::move(entry->second);
  idle_.erase(entry);
  return runner;
}

std::shared_ptr<Line> Keeper::line_of(const std::string& key) {
  for (const Found& runner : runners_)
    if (runner->state() != KeptRunner::State::closed && runner->line().key == key)
      return runner->shared_line();
  return nullptr;
}

/// Finds a runner: an idle one, else a new one on an open connection, else one on a new connection.
asio::awaitable<Result<Keeper::Found>> Keeper::find(std::shared_ptr<Talk> talk, const Want& want,
                                                    Ready& ready) {
  const auto self = shared_from_this();
  const KeptRunner::Sink sink =
      [talk](std::shared_ptr<std::string> bytes) -> asio::awaitable<void> {
    const auto framed = std::make_shared<std::string>(record(Record::data, *bytes));
    return talk->client->write(framed);
  };
  const auto found = [&](const Found& runner, bool is_warm) {
    ready.warm = is_warm;
    ready.address = runner->line().connection->peer_address();
    return runner;
  };
  while (Found runner = take_idle(want.key)) {
    const bool begun = co_await runner->begin(sink, want.ssh.persist, confirm_time(want));
    if (begun) co_return found(runner, true);
  }
  if (auto line = line_of(want.key)) {
    auto runner = co_await start_on(line, want, kAnotherTime);
    if (runner) {
      const bool begun = co_await (*runner)->begin(sink, want.ssh.persist, confirm_time(want));
      if (begun) co_return found(*runner, true);
    }
  }

  Session& session = sessions_[want.session];
  if (!session.transport) session.transport = parts_.transport(want);
  const auto transport = session.transport;
  ++session.users;
  auto connection = co_await transport->connect(want.host);
  const auto line = std::make_shared<Line>();
  Result<Found> runner = fail(ErrorCode::lost, "");
  if (connection) {
    line->host = want.host;
    line->key = want.key;
    line->address = want.address;
    line->connection = std::move(*connection);
    runner = co_await start_on(line, want, want.startup_timeout);
    line->connection->settled();
  } else {
    runner = std::unexpected(std::move(connection).error());
  }
  Session& used = sessions_[want.session];
  --used.users;
  used.last_used = Clock::now();
  if (!runner) {
    if (line->connection) line->close();
    co_return runner;
  }
  for (const StageTime& stage : line->connection->stages()) {
    ready.names.emplace_back(stage.stage);
    ready.times.push_back(stage.took.count());
  }
  const bool begun = co_await (*runner)->begin(sink, want.ssh.persist, want.startup_timeout);
  if (!begun)
    co_return fail(ErrorCode::runner,
                   "start the runner: it ended, or did not answer; it may have "
                   "said why on the host");
  co_return found(*runner, false);
}

asio::awaitable<Result<Keeper::Found>> Keeper::start_on(std::shared_ptr<Line> line,
                                                        const Want& want, milliseconds limit) {
  const auto self = shared_from_this();
  std::function<void(bool)> nobody_told;
  ++line->runners;  // keeps the connection open meanwhile
  auto channel = co_await start_runner(*line->connection, parts_.binary, limit,
                                       std::move(nobody_told), RunnerStays::yes);
  --line->runners;
  if (!channel) {
    if (line->runners == 0) line->close();
    co_return std::unexpected(std::move(channel).error());
  }
  const auto runner =
      std::make_shared<KeptRunner>(parts_.executor, line, std::move(*channel), ping_interval(want));
  runner->start();
  runners_.push_back(runner);
  co_return runner;
}

/// Relays a conversation until it has ended and no bytes of it are in flight.
asio::awaitable<void> Keeper::converse(std::shared_ptr<Talk> talk, Found runner) {
  const auto self = shared_from_this();
  talk->start(parts_.executor, runner);
  const auto end = co_await runner->ended();
  const std::string errors = runner->stderr_tail();
  const auto last = std::make_shared<std::string>();
  if (!errors.empty()) *last += record(Record::errors, errors);
  if (end)
    *last +=
        ended_record({end->signaled ? ProcessStatus::Kind::signaled : ProcessStatus::Kind::exited,
                      static_cast<int>(end->code), false});
  co_await talk->client->write(last);
  talk->client->close();
  co_await talk->stopped();
  const bool in_order = end && end->code == 0 && !end->signaled && talk->said_goodbye;
  if (in_order && !retiring_)
    keep(runner);
  else
    runner->close(in_order ? "this process is about to end" : "its conversation ended early");
}

/// Keeps the runner for the next conversation. At most one idle runner is kept per host.
void Keeper::keep(const Found& runner) {
  runner->rest();
  if (runner->state() != KeptRunner::State::idle) return;
  const std::string& key = runner->line().key;
  const auto [first, last] = idle_.equal_range(key);
  for (auto entry = first; entry != last;) {
    entry->second->close("");
    entry = idle_.erase(entry);
  }
  idle_.emplace(key, runner);
}

bool Keeper::look() {
  const auto now = Clock::now();
  for (const Found& runner : runners_) runner->look(now);
  const auto is_closed = [](const Found& runner) {
    return runner->state() == KeptRunner::State::closed;
  };
  std::erase_if(runners_, is_closed);
  std::erase_if(idle_, [&](const auto& entry) { return is_closed(entry.second); });
  std::erase_if(sessions_, [&](const auto& entry) {
    return entry.second.users == 0 && now - entry.second.last_used > kSessionTime;
  });
  // Return memory used by authentication and conversations.
  if (clients_ == 0 && now - last_busy_ > kTidyAfter && std::exchange(untidy_, false))
    ::malloc_trim(0);
  const bool busy = clients_ > 0 || !runners_.empty();
  if (busy) last_kept_ = now;
  return busy || now - std::max(last_busy_, last_kept_) < parts_.linger;
}

void Keeper::close_all() {
  for (const Found& runner : runners_) runner->close("this process ends");
  runners_.clear();
  idle_.clear();
}

}  // namespace sortie::launcher::warm
