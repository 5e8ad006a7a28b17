// within: waits for a coroutine that may hang, but no longer than a limit.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "common/asio/give_up.h"
#include "common/asio/spawn.h"
#include "common/asio/token.h"

namespace sortie {

/// Returns the value of `work`, or nullopt if it has not ended after `limit` or `give_up` (may be
/// nullptr) was called. In the latter cases `work` continues and its value is dropped, so
/// everything that it uses must live until it ends.
template <typename Value>
boost::asio::awaitable<std::optional<Value>> within(std::chrono::steady_clock::duration limit,
                                                    boost::asio::awaitable<Value> work,
                                                    std::shared_ptr<GiveUp> give_up = nullptr) {
  struct Shared {
    explicit Shared(const boost::asio::any_io_executor& executor) : ended(executor) {}
    boost::asio::steady_timer ended;
    std::optional<Value> value;
  };
  const auto executor = co_await boost::asio::this_coro::executor;
  const auto shared = std::make_shared<Shared>(executor);
  constexpr auto finish = [](std::shared_ptr<Shared> to,
                             boost::asio::awaitable<Value> from) -> boost::asio::awaitable<void> {
    to->value.emplace(co_await std::move(from));
    to->ended.cancel();
  };
  shared->ended.expires_after(limit);
  if (give_up && give_up->given_up()) co_return std::nullopt;
  std::optional<GiveUp::Listener> listener;
  if (give_up) listener.emplace(give_up->listen([shared] { shared->ended.cancel(); }));
  spawn(executor, finish(shared, std::move(work)));
  if (!shared->value && !(give_up && give_up->given_up()))
    co_await shared->ended.async_wait(kToken);
  co_return std::move(shared->value);
}

}  // namespace sortie
