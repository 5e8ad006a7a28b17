// Runs to which hosts return, and slow hosts that leave, over fake hosts in memory.
#include <doctest/doctest.h>

#include <csignal>

#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "launcher/run/run_loop.h"
#include "launcher/view/run_view.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/restarting.h"
#include "tests/launcher/scripts.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
using test::after_start;
using test::contains;
using test::FakeRunner;
using test::first_rank_exits_1;
using test::in_turn;
using test::Restarting;
using test::run_until_stopped;
using test::succeed;

/// Runs until Stop. Reports a committed step as soon as `now` returns true.
test::FakeHost::Script commits_when(std::function<bool()> now) {
  return [now = std::move(now)](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    while (!now()) co_await runner.sleep(milliseconds(5));
    wire::RankEvent event;
    event.rank = runner.job.ranks[0].rank;
    event.json = R"({"type":"checkpoint","path":"/c","step":50})";
    runner.send(event);
    const bool told = co_await runner.until<wire::Stop>();
    if (told) co_await runner.finish(true, SIGTERM);
  };
}

/// Three hosts. The second one is cordoned at first, so that two hosts continue after a failure. It
/// is fit from the third check on.
struct Shrinking : Restarting {
  explicit Shrinking(const std::string& grow_at)
      : Restarting({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}}) {
    job.recovery.min_hosts = 2;
    job.recovery.grow_at = grow_at;
    job.recovery.fit_interval = milliseconds(10);
    job.runner.grace = milliseconds(1000);
    job.runner.heartbeat_timeout = milliseconds(4000);
    limit = std::chrono::seconds(30);
    // Called for each decision and before each check. h2 is uncordoned from the sixth call on,
    // after the decision about attempt 1.
    known_hosts = [this]() -> Result<RunLoop::KnownHosts> {
      return RunLoop::KnownHosts{
          ++asked < 6 ? std::set<std::string>{"h2"} : std::set<std::string>{}, false};
    };
    fitness = [this](const config::JobConfig&, const LaunchPlan&, config::HostSlots host,
                     std::shared_ptr<GiveUp>) -> boost::asio::awaitable<Result<>> {
      checked.push_back(host.name);
      if (checked.size() < 3) co_return fail(ErrorCode::connect, "no route");
      co_return Result<>{};
    };
  }
  int asked = 0;
  std::vector<std::string> checked;
};

TEST_CASE("fewer hosts: one that is fit again is taken in after the next commit") {
  Shrinking launch("checkpoint");
  const auto is_fit = [&launch] { return launch.checked.size() >= 4; };
  in_turn(launch.host("h1"), {after_start(first_rank_exits_1), commits_when(is_fit), succeed});
  in_turn(launch.host("h2"), {run_until_stopped, succeed});
  in_turn(launch.host("h3"), {run_until_stopped, run_until_stopped, succeed});
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  const auto attempts = launch.events_named("attempt");
  REQUIRE(attempts.size() == 3);
  CHECK(attempts[1]["hosts"] == nlohmann::json({"h1", "h3"}));
  CHECK(attempts[2]["hosts"] == nlohmann::json({"h1", "h2", "h3"}));
  const auto ends = launch.events_named("attempt_end");
  CHECK(ends.at(1)["class"] == "planned");
  CHECK(ends.at(1)["committed_step"] == 50);
  CHECK(launch.events_named("host_fit").size() == 1);
  CHECK(launch.events_named("planned").size() == 1);
  CHECK(contains(launch.shown, "h2 is fit again"));
  CHECK(contains(launch.shown, "attempt 2 has ended; planned restart, not counted"));
  CHECK(contains(read_journal(launch.run_folder).fit_again.at(0), "h2: checked at"));
  for (const std::string& host : launch.checked) CHECK(host == "h2");
}

TEST_CASE("fewer hosts: by default one that is fit again waits for a restart that comes anyhow") {
  Shrinking launch("restart");
  const auto is_fit = [&launch] { return launch.checked.size() >= 5; };
  const auto fails_then = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    while (!is_fit()) co_await runner.sleep(milliseconds(5));
    runner.exit_rank(runner.job.ranks[0].rank, 1);
    const bool told = co_await runner.until<wire::Stop>();
    if (told) co_await runner.finish(true, SIGTERM);
  };
  in_turn(launch.host("h1"), {after_start(first_rank_exits_1), fails_then, succeed});
  in_turn(launch.host("h2"), {run_until_stopped, succeed});
  in_turn(launch.host("h3"), {run_until_stopped, run_until_stopped, succeed});
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  CHECK(launch.events_named("planned").empty());
  CHECK(launch.events_named("attempt_end").at(1)["class"] == "app");
  CHECK(launch.events_named("attempt").at(2)["hosts"] == nlohmann::json({"h1", "h2", "h3"}));
}

TEST_CASE("fewer hosts: one that was blamed twice is not checked, and does not come back") {
  Restarting launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}});
  launch.job.recovery.max_restarts = 4;
  launch.job.recovery.no_progress_limit = 0;
  launch.job.recovery.min_hosts = 2;
  launch.job.recovery.cordon = false;
  launch.job.recovery.grow_at = "checkpoint";
  launch.job.recovery.fit_interval = milliseconds(10);
  std::vector<std::string> checked;
  launch.fitness = [&](const config::JobConfig&, const LaunchPlan&, config::HostSlots host,
                       std::shared_ptr<GiveUp>) -> boost::asio::awaitable<Result<>> {
    checked.push_back(host.name);
    co_return Result<>{};
  };
  const auto lasts_then_succeeds = [](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    co_await runner.sleep(milliseconds(200));  // many times fit_interval
    co_await runner.finish(false);
  };
  const auto killed =
      after_start([](FakeRunner& runner) { runner.exit_rank(runner.job.ranks[0].rank, 9, true); });
  in_turn(launch.host("h1"), {run_until_stopped, run_until_stopped, lasts_then_succeeds});
  in_turn(launch.host("h2"), {killed, killed});
  in_turn(launch.host("h3"), {run_until_stopped, run_until_stopped, lasts_then_succeeds});
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  CHECK(launch.events_named("attempt").at(2)["hosts"] == nlohmann::json({"h1", "h3"}));
  CHECK(checked.empty());
}

/// Ends like sortie-train when it is asked to end; with code 0, like one that has just completed
/// its training.
test::FakeHost::Script ends_when_asked(int code) {
  return [code](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    const bool told = started && co_await runner.until<wire::Stop>();
    if (!told) co_return;
    runner.exit_rank(runner.job.ranks[0].rank, code);
    runner.send(wire::Finished{});
    co_await runner.until<wire::Goodbye>();
  };
}

TEST_CASE(
    "a planned restart asks sortie-train to save where no commit comes, and no other program") {
  for (const bool trainer : {true, false}) {
    CAPTURE(trainer);
    Shrinking launch("checkpoint");
    launch.job.recovery.commit_wait = milliseconds(20);
    if (trainer) {
      launch.job.runner.program.clear();
      launch.job.data.data_prefixes = {"/tokens"};
      launch.job.trainer.save_dir = "/c";
      launch.job.topology.micro_batch_size = 1;
      launch.job.topology.global_batch_size = 6;
    }
    const auto long_after = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
      const bool started = co_await runner.start();
      if (!started) co_return;
      while (launch.checked.size() < 8) co_await runner.sleep(milliseconds(5));
      runner.exit_rank(runner.job.ranks[0].rank, 9);
      const bool told = co_await runner.until<wire::Stop>();
      if (told) co_await runner.finish(true, SIGTERM);
    };
    in_turn(launch.host("h1"),
            {after_start(first_rank_exits_1), trainer ? ends_when_asked(75) : long_after, succeed});
    in_turn(launch.host("h2"), {run_until_stopped, succeed});
    in_turn(launch.host("h3"), {run_until_stopped, ends_when_asked(75), succeed});
    const Verdict verdict = launch.run();
    CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
    const auto ends = launch.events_named("attempt_end");
    REQUIRE(ends.size() == 3);
    CHECK(ends[1]["class"] == (trainer ? "planned" : "app"));
    CHECK(launch.events_named("planned").size() == 1);
    CHECK(launch.events_named("attempt").at(2)["hosts"] == nlohmann::json({"h1", "h2", "h3"}));
  }
}

TEST_CASE("a run whose ranks have all exited with 0 when a planned restart comes is done") {
  Shrinking launch("checkpoint");
  const auto commits_and_ends = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    while (launch.checked.size() < 4) co_await runner.sleep(milliseconds(5));
    wire::RankEvent event;
    event.rank = runner.job.ranks[0].rank;
    event.json = R"({"type":"checkpoint","path":"/c","step":50})";
    runner.send(event);
    const bool told = co_await runner.until<wire::Stop>();
    if (!told) co_return;
    runner.exit_rank(event.rank, 0);
    runner.send(wire::Finished{});
    co_await runner.until<wire::Goodbye>();
  };
  in_turn(launch.host("h1"), {after_start(first_rank_exits_1), commits_and_ends});
  in_turn(launch.host("h2"), {run_until_stopped});
  in_turn(launch.host("h3"), {run_until_stopped, ends_when_asked(0)});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 0);
  CHECK(verdict.text.empty());
  CHECK(launch.events_named("attempt").size() == 2);
  CHECK(launch.events_named("attempt_end").at(1)["exit_code"] == 0);
}

TEST_CASE(
    "a run that the user ends in a planned restart: its ranks may save, and it is no code 75") {
  for (const bool by_signal : {true, false}) {
    CAPTURE(by_signal);
    Shrinking launch("checkpoint");
    const auto order = [&launch, by_signal] {
      by_signal ? launch.interrupt(SIGINT) : launch.stop();
    };
    const auto ended_by_user = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
      const bool started = co_await runner.start();
      if (!started) co_return;
      while (launch.checked.size() < 4) co_await runner.sleep(milliseconds(5));
      const std::uint32_t rank = runner.job.ranks[0].rank;
      runner.send(wire::RankEvent{rank, R"({"type":"checkpoint","path":"/c","step":50})"});
      const bool told = co_await runner.until<wire::Stop>();
      if (!told) co_return;
      order();
      co_await runner.sleep(milliseconds(100));  // its rank saves; another Stop would arrive
      runner.exit_rank(rank, 75);
      runner.send(wire::Finished{});
      co_await runner.until<wire::Goodbye>();
      runner.end();
    };
    in_turn(launch.host("h1"), {after_start(first_rank_exits_1), ended_by_user});
    in_turn(launch.host("h2"), {run_until_stopped});
    in_turn(launch.host("h3"), {run_until_stopped, ends_when_asked(75)});
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == (by_signal ? 130 : 143));
    CHECK(verdict.text == (by_signal ? "interrupted by SIGINT before the next attempt"
                                     : "stopped by `sortie stop` before the next attempt"));
    CHECK_FALSE(verdict.shown);
    const auto stops = launch.transport.sweeper("h1").all<wire::Stop>();
    REQUIRE(stops.size() == 1);
    CHECK(stops[0].grace_ms == 1000);
    CHECK(contains(launch.shown, by_signal
                                     ? "SIGINT: stopping all ranks (TERM, then KILL after 1 s)"
                                     : "stopping all ranks, by `sortie stop`"));
    CHECK(launch.events_named("attempt").size() == 2);
    CHECK(launch.events_named("attempt_end").at(1)["class"] == "planned");
    CHECK(launch.events_named("end").at(0)["exit_code"] == verdict.exit_code);
  }
}

TEST_CASE("who is not fit when the restart comes is left out, and the run goes on as it was") {
  Shrinking launch("checkpoint");
  // The first check succeeds. A check during an attempt lasts until the attempt ends. A check after
  // it fails.
  launch.fitness = [&launch](const config::JobConfig&, const LaunchPlan&, config::HostSlots host,
                             std::shared_ptr<GiveUp> give_up) -> boost::asio::awaitable<Result<>> {
    launch.checked.push_back(host.name);
    if (launch.checked.size() == 1) co_return Result<>{};
    const auto gone = [&launch](const char* name) {  // the host's runner of attempt 2
      return !launch.transport.sweeper(name).all<wire::Goodbye>().empty();
    };
    boost::asio::steady_timer timer(launch.io);
    while (!give_up->given_up()) {
      const bool over = gone("h1") && gone("h3");
      timer.expires_after(milliseconds(50));
      co_await timer.async_wait(kToken);
      if (over && !give_up->given_up()) co_return fail(ErrorCode::connect, "no route");
    }
    co_return fail(ErrorCode::interrupted, "given up");
  };
  // The restart is requested before the second check begins. An earlier commit would not end
  // attempt 2, and this program makes no other.
  const auto requested = [&launch] { return launch.checked.size() >= 2; };
  in_turn(launch.host("h1"), {after_start(first_rank_exits_1), commits_when(requested), succeed});
  in_turn(launch.host("h2"), {run_until_stopped});
  in_turn(launch.host("h3"), {run_until_stopped, run_until_stopped, succeed});
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  CHECK(contains(launch.shown, "h2 is not fit: no route"));
  CHECK(launch.events_named("attempt").at(2)["hosts"] == nlohmann::json({"h1", "h3"}));
}

/// Checks without a result: each ends a moment after it is given up.
struct Endless {
  explicit Endless(Shrinking& launch) {
    launch.fitness = [this, &launch](
                         const config::JobConfig&, const LaunchPlan&, config::HostSlots host,
                         std::shared_ptr<GiveUp> give_up) -> boost::asio::awaitable<Result<>> {
      begun.push_back(host.name);
      if (on_begin) on_begin();
      boost::asio::steady_timer timer(launch.io, std::chrono::steady_clock::time_point::max());
      const auto listener = give_up->listen([&timer] { timer.cancel(); });
      if (!give_up->given_up()) co_await timer.async_wait(kToken);
      timer.expires_after(milliseconds(20));
      co_await timer.async_wait(kToken);
      ended.push_back(host.name);
      co_return fail(ErrorCode::interrupted, "given up");
    };
  }
  std::vector<std::string> begun, ended;
  std::function<void()> on_begin;
};

TEST_CASE("an attempt that ends in the middle of a check: the check ends before the next one") {
  Shrinking launch("restart");
  Endless checks(launch);
  std::size_t ended_before = 0;
  const auto fails_in_check = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
    const bool started = co_await runner.start();
    if (!started) co_return;
    while (checks.begun.empty()) co_await runner.sleep(milliseconds(5));
    runner.exit_rank(runner.job.ranks[0].rank, 1);
    const bool told = co_await runner.until<wire::Stop>();
    if (told) co_await runner.finish(true, SIGTERM);
  };
  const auto last = [&](FakeRunner& runner) {
    ended_before = checks.ended.size();
    return succeed(runner);
  };
  in_turn(launch.host("h1"), {after_start(first_rank_exits_1), fails_in_check, last});
  in_turn(launch.host("h2"), {run_until_stopped, succeed});
  in_turn(launch.host("h3"), {run_until_stopped, run_until_stopped, succeed});
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  CHECK(ended_before == 1);
  CHECK(checks.ended == checks.begun);
  CHECK(launch.events_named("attempt").at(2)["hosts"] == nlohmann::json({"h1", "h3"}));
  CHECK_FALSE(launch.shown.contains("not fit"));
}

TEST_CASE("a run that is ended in the middle of a check waits for no more than the check's end") {
  Shrinking launch("checkpoint");
  Endless checks(launch);
  checks.on_begin = [&launch] { launch.interrupt(SIGINT); };
  in_turn(launch.host("h1"), {after_start(first_rank_exits_1), run_until_stopped});
  in_turn(launch.host("h2"), {run_until_stopped});
  in_turn(launch.host("h3"), {run_until_stopped, run_until_stopped});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 130);
  CHECK(checks.begun == std::vector<std::string>{"h2"});
  CHECK(checks.ended == checks.begun);
  CHECK(launch.events_named("host_fit").empty());
}

TEST_CASE("a run that is ended while a spare is checked before a restart ends at once") {
  Shrinking launch("restart");
  Endless checks(launch);
  launch.spares = {{"s1", {0}}};
  checks.on_begin = [&launch] { launch.interrupt(SIGINT); };
  in_turn(launch.host("h1"), {after_start(first_rank_exits_1)});
  in_turn(launch.host("h2"), {run_until_stopped});
  in_turn(launch.host("h3"), {run_until_stopped});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 130);
  CHECK(contains(verdict.text, "before the next attempt"));
  CHECK(checks.begun == std::vector<std::string>{"s1"});
  CHECK(checks.ended == checks.begun);
  CHECK_FALSE(launch.shown.contains("not fit"));
}

}  // namespace
}  // namespace sortie::launcher
