// Keeper: interactive sessions on kept connections.
#include <utility>

#include "common/asio/within.h"
#include "common/base/log.h"
#include "launcher/warm/client.h"
#include "launcher/warm/keeper.h"
#include "launcher/warm/terminal_host.h"

namespace sortie::launcher::warm {
namespace asio = boost::asio;

namespace {

/// Time limit for a session to begin: a new connection costs less than a longer wait.
constexpr std::chrono::milliseconds kBegins{5000};

using Opened = Result<std::shared_ptr<TerminalChannel>>;

/// May outlive the caller's time limit; the channel is then closed.
asio::awaitable<Opened> open_on(std::shared_ptr<Line> line, TerminalRequest request) {
  auto channel = co_await open_terminal(*line->connection, std::move(request));
  if (!channel) co_return std::unexpected(std::move(channel).error());
  std::shared_ptr<TerminalChannel> shared = std::move(*channel);
  co_return shared;
}

}  // namespace

/// Serves a session only on an open connection. Otherwise the client connects itself, and that
/// connection is not kept.
asio::awaitable<void> Keeper::serve_terminal(std::shared_ptr<Client> client, Request request) {
  const auto self = shared_from_this();
  const auto line = request.want.build == parts_.build && !retiring_ ? line_of(request.want.key)
                                                                     : std::shared_ptr<Line>();
  const auto first = std::make_shared<std::string>(record(line ? Record::taken : Record::other));
  co_await client->write(first);
  if (!line) co_return;
  untidy_ = true;
  ++line->runners;  // keeps the connection open meanwhile
  line->count_busy(1);
  const bool is_terminal = request.terminal.terminal;
  std::optional<Opened> opened =
      co_await within(kBegins, open_on(line, std::move(request.terminal)));
  if (opened && *opened) {
    Ready ready;
    ready.warm = true;
    ready.address = line->connection->peer_address();
    const auto there = std::make_shared<std::string>(ready_record(ready));
    co_await client->write(there);
    const auto session = persons_.insert(persons_.end(), {line, is_terminal, {}});
    co_await carry_terminal(parts_.executor, client, std::move(**opened), session->traffic);
    persons_.erase(session);
  } else {
    log::info("{}: no terminal on the kept connection: {}", line->host,
              opened ? opened->error().message : "it did not start in time");
    const auto other = std::make_shared<std::string>(record(Record::other));
    co_await client->write(other);
  }
  line->count_busy(-1);
  if (--line->runners == 0) line->close();
}

}  // namespace sortie::launcher::warm
