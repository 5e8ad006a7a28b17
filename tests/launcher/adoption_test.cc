// An attempt that takes over the ranks of a lost supervisor, over fake hosts in memory.
#include <doctest/doctest.h>

#include <csignal>

#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"
#include "tests/support/patience.h"

namespace sortie::launcher {
namespace {

using boost::asio::awaitable;
using std::chrono::milliseconds;
using test::FakeRunner;
using test::Launch;

struct Adopting : Launch {
  Adopting() : Launch({{"h1", {0}}, {"h2", {0}}}) {
    adopts = true;
    job.runner.on_launcher_loss = "hold 1h";
  }
};

awaitable<void> sweeps_held_rank(FakeRunner& runner) {
  const bool asked = co_await runner.until<wire::Sweep>();
  if (!asked) co_return;
  runner.send(wire::Hello{});
  wire::Swept swept;
  swept.killed = 1;
  runner.send(swept);
  co_await runner.until<wire::Goodbye>();
}

/// Two orders to end the run, while h2 does not answer.
TEST_CASE("adoption: the second order to stop ends it, and no host is left with its ranks unsaid") {
  Adopting launch;
  std::function<void()> order = [&] { launch.interrupt(SIGINT); };
  int code = 130;
  bool connects = true;
  SUBCASE("h2 does not answer to Adopt") {}
  SUBCASE("h2 is not connected") {
    connects = false;
  }
  SUBCASE("`sortie stop` twice") {
    order = [&] { launch.stop(); };
    code = 143;
  }
  launch.host("h1").script = [&](FakeRunner& runner) -> awaitable<void> {
    if (connects) co_await runner.adopted();
    order();
    co_await runner.sleep(milliseconds(100));  // deferred: h2 may answer
    CHECK_FALSE(runner.closed_by_launcher);
    order();
    co_await runner.until<wire::Goodbye>();
  };
  launch.host("h1").after_loss = sweeps_held_rank;
  launch.host("h2").script = [](FakeRunner& runner) -> awaitable<void> {
    co_await runner.until<wire::Goodbye>();
  };
  if (!connects) launch.host("h2").connect_delay = milliseconds(60000);
  launch.sweep_reach = milliseconds(2000);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == code);
  CHECK(launch.runner("h1").closed_by_launcher);
  CHECK(launch.runner("h1").all<wire::Stop>().empty());
  const auto orders = launch.transport.sweeper("h1").all<wire::Sweep>();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].run_id == launch.run_folder.filename().string());
  const auto swept = launch.events_named("swept");
  REQUIRE(swept.size() == 1);
  CHECK(swept[0]["host"] == "h1");
  const auto unconfirmed = launch.events_named("unconfirmed");
  REQUIRE(unconfirmed.size() == 1);
  CHECK(unconfirmed[0]["host"] == "h2");
  CHECK(launch.shown.contains("h2: cleanup is not confirmed: "));
  CHECK(launch.ran < test::patient(milliseconds(5000)));
}

wire::Heartbeat timed_beat() {
  wire::Heartbeat beat;
  beat.time_boot_ms = static_cast<std::uint64_t>(boot_ms());
  return beat;
}

/// A runner that holds a rank which has died at `died_ms` of the boot clock. Like the runner of
/// Sortie it sends a heartbeat with its time right after Adopted.
awaitable<void> holds_dead_rank(FakeRunner& runner, std::uint32_t rank, std::uint32_t code,
                                std::int64_t died_ms, milliseconds delay) {
  const bool asked = co_await runner.until<wire::Adopt>();
  if (!asked) co_return;
  if (delay.count() > 0) co_await runner.sleep(delay);
  const wire::Adopt order = std::get<wire::Adopt>(runner.received.back().second);
  runner.send(wire::Hello{});
  runner.send(wire::Adopted{order.epoch, order.link, order.events});
  runner.send(timed_beat());
  runner.send(wire::RankStarted{rank, 1000 + rank});
  wire::RankExited exited;
  exited.rank = rank;
  exited.code = code;
  exited.time_boot_ms = static_cast<std::uint64_t>(died_ms);
  runner.send(exited);
  runner.send(wire::Finished{});
  co_await runner.until<wire::Goodbye>();
  runner.end();
}

TEST_CASE("adoption: of ranks that died before it, the one that died first is the cause") {
  struct Row {
    const char* why;
    std::int64_t ago_1, ago_2;  // when the ranks died, in milliseconds before the adoption
    milliseconds delay_2;       // until h2 answers
    int code;
  };
  for (const Row& row : {Row{"h1 is read first", 500, 1000, milliseconds(0), 4},
                         Row{"h1 died first", 1000, 500, milliseconds(0), 3},
                         Row{"h1 waits for h2 meanwhile", 1000, 500, milliseconds(1500), 3}}) {
    CAPTURE(row.why);
    Adopting launch;
    launch.job.runner.heartbeat_timeout = milliseconds(10000);  // only one heartbeat is sent
    const std::int64_t begun = boot_ms();
    launch.host("h1").script = [&](FakeRunner& runner) {
      return holds_dead_rank(runner, 0, 3, begun - row.ago_1, milliseconds(0));
    };
    launch.host("h2").script = [&](FakeRunner& runner) {
      return holds_dead_rank(runner, 1, 4, begun - row.ago_2, row.delay_2);
    };
    CHECK(launch.run().exit_code == row.code);
    const double died = launch.events_named("cause").at(0)["died_at"];
    const auto age_ms = static_cast<double>(boot_ms() - begun + std::max(row.ago_1, row.ago_2));
    CHECK(std::abs(died - (unix_time() - age_ms / 1000)) < 0.4);
  }
}

}  // namespace
}  // namespace sortie::launcher
