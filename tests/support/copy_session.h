// One conversation about files with a fake host in memory, for tests of push and pull.
#pragma once

#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "launcher/host/host_session.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/run_within.h"
#include "tests/support/temp_dir.h"

namespace sortie::test {

/// What a test does with the session; it need not close it.
using CopyWork = std::function<boost::asio::awaitable<Result<wire::FilesDone>>(
    std::shared_ptr<launcher::HostSession>)>;

/// Connects to a host that plays `script`, greets it, and returns the result of `work`.
inline Result<wire::FilesDone> with_copy_session(FakeHost::Script script,
                                                 const config::RunnerConfig& runner,
                                                 const CopyWork& work) {
  const ScopedTempDir dir;
  write_text(dir / "runner", "#!/bin/sh\n");
  auto binary = launcher::RunnerBinary::open(dir / "runner");
  REQUIRE(binary);
  boost::asio::io_context io(1);
  FakeTransport transport(io.get_executor());
  transport.host("h").script = std::move(script);
  const auto session = std::make_shared<launcher::HostSession>(io.get_executor(), "h", runner);
  std::optional<Result<wire::FilesDone>> result;
  const auto whole = [&]() -> boost::asio::awaitable<void> {
    const auto connected = co_await session->connect(transport, *binary);
    if (!connected) co_return;
    const auto greeted = co_await session->greet("");
    if (!greeted) co_return;
    result = co_await work(session);
    session->close();
  };
  boost::asio::co_spawn(io, whole(), [&](std::exception_ptr) { io.stop(); });
  run_within(io, std::chrono::seconds(8));
  REQUIRE(result);
  return std::move(*result);
}

}  // namespace sortie::test
