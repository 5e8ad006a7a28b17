#include "launcher/host/terminal_channel.h"

#include <utility>

#include "launcher/host/transport.h"

namespace sortie::launcher {

boost::asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_terminal(
    Connection& connection, TerminalRequest request) {
  auto* way = dynamic_cast<TerminalWay*>(&connection);
  if (way == nullptr)
    co_return fail(ErrorCode::config,
                   "this way to the host carries no terminal; `sortie exec` runs commands over it");
  auto channel = co_await way->open_terminal(std::move(request));
  co_return channel;
}

}  // namespace sortie::launcher
