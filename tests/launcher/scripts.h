// Scripts for the runners of FakeHosts, used by tests of the launcher.
#pragma once

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/fake_hosts.h"

namespace sortie::test {

/// The ranks run until Stop and then die of SIGTERM.
inline boost::asio::awaitable<void> run_until_stopped(FakeRunner& runner) {
  const bool started = co_await runner.start();
  if (!started) co_return;
  const bool told = co_await runner.until<wire::Stop>();
  if (told) co_await runner.finish(true, SIGTERM);
}

inline boost::asio::awaitable<void> succeed(FakeRunner& runner) {
  const bool started = co_await runner.start();
  if (started) co_await runner.finish(false);
}

/// Holds memory (wire::HoldMemory) until the end of the run.
inline boost::asio::awaitable<void> keep_memory(FakeRunner& runner) {
  const bool held = co_await runner.hold_memory();
  if (!held) co_return;
  const bool told = co_await runner.until<wire::Goodbye>();
  if (told) runner.end();
}

/// Calls `act` once all ranks of the host have started, then continues like run_until_stopped.
inline FakeHost::Script after_start(std::function<void(FakeRunner&)> act) {
  using Act = std::function<void(FakeRunner&)>;
  struct Script {
    static boost::asio::awaitable<void> run(FakeRunner& runner, std::shared_ptr<Act> act) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      co_await runner.sleep(std::chrono::milliseconds(20));  // the other hosts run too
      (*act)(runner);
      const bool told = co_await runner.until<wire::Stop>();
      if (told) co_await runner.finish(true, SIGTERM);
    }
  };
  const auto shared = std::make_shared<Act>(std::move(act));
  return [shared](FakeRunner& runner) { return Script::run(runner, shared); };
}

/// Gives each runner of the host the next script, and all further runners the last one. Sets
/// FakeHost::script and after_loss, so that a host can take part in several attempts.
inline void in_turn(FakeHost& host, std::vector<FakeHost::Script> scripts) {
  const auto next = std::make_shared<std::size_t>(0);
  const auto all = std::make_shared<std::vector<FakeHost::Script>>(std::move(scripts));
  host.script = host.after_loss = [next, all](FakeRunner& runner) {
    const std::size_t turn = std::min((*next)++, all->size() - 1);
    return (*all)[turn](runner);
  };
}

inline void say(FakeRunner& runner, std::uint32_t rank, std::string text) {
  runner.send(wire::Output{rank, wire::Stream::err, std::move(text)});
}

}  // namespace sortie::test
