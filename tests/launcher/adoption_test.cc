// An attempt that takes over the ranks of a lost supervisor, over fake hosts in memory.
#include <doctest/doctest.h>

#include <csignal>

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

awaitable<void> sweeps(FakeRunner& runner) {
  const bool asked = co_await runner.until<wire::Sweep>();
  if (!asked) co_return;
  runner.send(wire::Hello{});
  wire::Swept swept;
  swept.killed = 1;
  runner.send(swept);
  co_await runner.until<wire::Goodbye>();
}

/// Two orders to end the run, while h2 is not reached.
TEST_CASE("adoption: the second order to stop ends it, and no host is left with its ranks unsaid") {
  Adopting launch;
  std::function<void()> order = [&] { launch.interrupt(SIGINT); };
  int code = 130;
  SUBCASE("Ctrl-C twice") {}
  SUBCASE("`sortie stop` twice") {
    order = [&] { launch.stop(); };
    code = 143;
  }
  launch.host("h1").script = [&](FakeRunner& runner) -> awaitable<void> {
    const bool asked = co_await runner.adopted();
    if (!asked) co_return;
    order();
    co_await runner.sleep(milliseconds(100));  // deferred: h2 may answer
    CHECK_FALSE(runner.closed_by_launcher);
    order();
    co_await runner.until<wire::Stop>();
  };
  launch.host("h1").after_loss = sweeps;
  launch.host("h2").connect_delay = milliseconds(60000);
  launch.sweep_reach = milliseconds(2000);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == code);
  CHECK(launch.runner("h1").closed_by_launcher);
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

}  // namespace
}  // namespace sortie::launcher
