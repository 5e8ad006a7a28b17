// The first cause: the rule alone, and whole runs in which several ranks die at nearly the same
// time.
#include "launcher/supervise/cause.h"

#include <doctest/doctest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"
#include "tests/support/patience.h"

namespace sortie::launcher {
namespace {

using boost::asio::awaitable;
using std::chrono::milliseconds;
using test::after_start;
using test::FakeRunner;
using test::Launch;
using test::run_until_stopped;
using What = Cause::What;

Cause failure(What what, int code, std::int64_t time, std::uint32_t rank = 0) {
  Cause cause;
  cause.what = what;
  cause.code = code;
  cause.at_ms = time;
  cause.rank = rank;
  return cause;
}

TEST_CASE("what a host can not do is a failure of the set-up, which is not restarted") {
  CHECK(cause_of_error(ErrorCode::spawn) == What::spawn);
  CHECK(cause_of_error(ErrorCode::unsupported) == What::spawn);
  CHECK(cause_of_error(ErrorCode::io) == What::runner);
}

TEST_CASE("which of two failures was first") {
  struct Row {
    const char* why;
    Cause first, second;
    std::size_t index;
  };
  const Row rows[] = {
      {"the earlier exit", failure(What::exit, 1, 100), failure(What::exit, 2, 101), 0},
      {"the earlier exit, told later", failure(What::exit, 1, 100), failure(What::exit, 2, 99), 1},
      {"a kill before an exit", failure(What::exit, 1, 100), failure(What::signal, SIGKILL, 150),
       1},
      {"a crash before an exit", failure(What::exit, 1, 9), failure(What::signal, SIGSEGV, 10), 1},
      {"abort is what processes do when peers go", failure(What::exit, 1, 100),
       failure(What::signal, SIGABRT, 101), 0},
      {"broken pipe too", failure(What::signal, SIGPIPE, 100), failure(What::exit, 3, 99), 1},
      {"SIGQUIT is what ranks that hang get for their stacks", failure(What::hang, 0, 100),
       failure(What::signal, SIGQUIT, 101), 0},
      {"out of memory before MPI_Abort", failure(What::mpi_abort, 1, 100),
       failure(What::oom, SIGKILL, 101), 1},
      {"MPI_Abort before the exits that follow it", failure(What::mpi_abort, 7, 100),
       failure(What::exit, 1, 101), 0},
      {"a lost host by its time", failure(What::exit, 1, 100), failure(What::lost, 0, 90), 1},
      {"at the same moment the lower rank", failure(What::exit, 1, 5, 3),
       failure(What::exit, 2, 5, 1), 1},
      {"the end of a rank's container before an exit", failure(What::exit, 1, 100, 1),
       failure(What::runner, 0, 150, 0), 1},
      {"the user's word", failure(What::interrupted, SIGINT, 100),
       failure(What::signal, SIGKILL, 10), 0},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    const Cause failures[] = {row.first, row.second};
    CHECK(first_cause(failures) == row.index);
  }
}

TEST_CASE("clocks that run at different paces are followed: old messages are forgotten") {
  // The host's clock loses one second per hour. Every message takes 5 ms.
  HostClock clock;
  constexpr std::int64_t kHour = 3'600'000;
  const auto theirs = [](std::int64_t ours) {
    return static_cast<std::uint64_t>(ours - 10'000 - ours / 3600);
  };
  std::int64_t now = kHour;
  for (; now < 24 * kHour; now += 2000) clock.heard(theirs(now - 5), now);
  const std::int64_t died = now - 500;
  CHECK(clock.ours(theirs(died), now) >= died - 50);
  CHECK(clock.ours(theirs(died), now) <= died + 50);
  // After a suspend the offset between the two clocks jumps.
  for (; now < 25 * kHour; now += 2000)
    clock.heard(static_cast<std::uint64_t>(now + 5 * kHour), now);
  CHECK(clock.ours(static_cast<std::uint64_t>(now - 500 + 5 * kHour), now) == now - 500);
}

TEST_CASE("a host's clock is set against ours by the quickest message") {
  HostClock clock;
  CHECK(clock.ours(5000, 9000) == 9000);  // no offset known: the time of arrival
  clock.heard(1'000'000, 5'000'300);      // took 300 ms
  CHECK(clock.ours(1'000'100, 5'000'500) == 5'000'400);
  clock.heard(1'000'200, 5'000'201);  // took 1 ms: the offset is 4,000,001 ms
  CHECK(clock.ours(1'000'100, 5'000'500) == 5'000'101);
  clock.heard(0, 7);  // no time given: ignored
  clock.heard(~0ull, 7);
  CHECK(clock.ours(1'000'100, 5'000'500) == 5'000'101);
  CHECK(clock.ours(9'000'000, 5'000'500) == 5'000'500);  // never in the future
  CHECK(clock.ours(0, 42) == 42);
}

TEST_CASE("texts of causes") {
  Cause cause = failure(What::oom, SIGKILL, 1);
  cause.host = "h1";
  cause.pid = 7;
  cause.oom = 1;
  CHECK(cause_text(cause) ==
        "rank 0 on h1 (pid 7) ended by signal 9 (SIGKILL), killed for lack of memory");
  cause.oom = 2;
  CHECK(cause_text(cause).find("very likely for lack of memory") != std::string::npos);
  CHECK(cause_json(cause)["oom_evidence"] == "host");
  cause = failure(What::signal, SIGSEGV, 1);
  cause.core_dumped = true;
  CHECK(cause_text(cause).ends_with("ended by signal 11 (SIGSEGV, core dumped)"));
  CHECK(cause_json(cause)["core_dumped"] == true);
  cause.oom = 1;
  CHECK(cause_text(cause).ends_with("after a process of it was killed for lack of memory"));
  cause = failure(What::exit, 1, 1);
  cause.oom = 1;
  CHECK(cause_text(cause).ends_with("after a process of it was killed for lack of memory"));
}

TEST_CASE("what followed is folded") {
  Aftermath aftermath;
  CHECK(aftermath.text().empty());
  aftermath.add("with exit code 1");
  CHECK(aftermath.text() == "1 rank ended after that: 1 with exit code 1");
  for (int i = 0; i < 60; ++i) aftermath.add("by signal 15 (SIGTERM)");
  CHECK(aftermath.text() ==
        "61 ranks ended after that: 60 by signal 15 (SIGTERM), 1 with exit code 1");
  for (int code = 10; code < 15; ++code) aftermath.add("with exit code " + std::to_string(code));
  CHECK(aftermath.text().ends_with("1 with exit code 10, 1 with exit code 11, 3 otherwise"));
}

// ---- whole runs ---------------------------------------------------------------------------------

wire::RankExited ended(std::uint32_t rank, std::uint32_t code, bool signaled, std::uint64_t time) {
  wire::RankExited exited;
  exited.rank = rank;
  exited.code = code;
  exited.signaled = signaled;
  exited.time_boot_ms = time;
  return exited;
}

wire::Heartbeat beat_at(std::int64_t boot, std::int64_t unix_ms) {
  wire::Heartbeat beat;
  beat.time_boot_ms = static_cast<std::uint64_t>(boot);
  beat.time_unix_ms = static_cast<std::uint64_t>(unix_ms);
  return beat;
}

/// Rank 1 is killed. Its peer notices the broken connection and exits with 1, and the host of the
/// peer reports first.
TEST_CASE(
    "the rank that was killed is the cause, not the peer that noticed it and was told first") {
  Launch launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}});
  launch.host("h1").script = after_start([](FakeRunner& runner) { runner.exit_rank(0, 1); });
  struct Killed {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      co_await runner.until<wire::Stop>();
      runner.exit_rank(1, SIGKILL, true);
      co_await runner.finish(true, SIGTERM);
    }
  };
  launch.host("h2").script = Killed::run;
  launch.host("h3").script = run_until_stopped;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 137);
  CHECK(verdict.text == "rank 1 on h2 (pid 1001) ended by signal 9 (SIGKILL)");
  CHECK(verdict.aftermath ==
        "2 ranks ended after that: 1 with exit code 1, 1 by signal 15 (SIGTERM)");
  // The other hosts are stopped before the first cause is settled.
  CHECK(launch.runner("h3").all<wire::Stop>().at(0).reason ==
        "rank 0 on h1 (pid 1000) failed with exit code 1");
  CHECK(launch.events_named("cause").size() == 1);
  for (const auto& event : launch.events_named("rank_exited"))
    CHECK(event["consequence"] == (event["rank"] != 1));
}

TEST_CASE("the rank that was killed is the cause, though its host had no processor for the news") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.job.runner.grace = milliseconds(2000);
  launch.host("h1").script = after_start([](FakeRunner& runner) { runner.exit_rank(0, 5); });
  struct Killed {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      co_await runner.until<wire::Stop>();
      co_await runner.sleep(milliseconds(50));
      runner.exit_rank(1, SIGKILL, true);
      co_await runner.finish(true, SIGTERM);
    }
  };
  launch.host("h2").script = Killed::run;
  CHECK(launch.run().exit_code == 137);
}

TEST_CASE("a container that was ended from outside is the cause, not the peer that noticed it") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  struct Ended {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      co_await runner.until<wire::Stop>();
      runner.send(wire::RunnerError{"lost", "container c was ended from outside the run", 0});
      runner.exit_rank(0, SIGKILL, true);
      co_await runner.finish(false);
    }
  };
  launch.host("h1").script = Ended::run;
  launch.host("h2").script = after_start([](FakeRunner& runner) { runner.exit_rank(1, 1); });
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitLost);
  CHECK(verdict.text == "h1: rank 0: container c was ended from outside the run");
  CHECK(launch.events_named("cause").at(0)["what"] == "runner");
}

TEST_CASE("of two hosts with clocks apart, the death that was earlier in truth decides") {
  // The clock of h2 is an hour ahead. Its rank dies 60 ms before that of h1, but is reported later.
  constexpr std::uint64_t kHour = 3'600'000;
  struct Early {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      runner.send(beat_at(boot_ms(), 0));
      co_await runner.sleep(milliseconds(60));
      runner.send(ended(0, 3, false, static_cast<std::uint64_t>(boot_ms())));
      co_await runner.until<wire::Stop>();
      co_await runner.finish(true, SIGTERM);
    }
  };
  Launch launch({{"h1", {0, 1}}, {"h2", {0, 1}}});
  launch.host("h1").script = Early::run;
  struct LateOfHost2 {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      const auto now = static_cast<std::uint64_t>(boot_ms());
      runner.send(beat_at(boot_ms() + static_cast<std::int64_t>(kHour), 0));
      co_await runner.until<wire::Stop>();
      runner.send(ended(2, 4, false, now + kHour));
      co_await runner.finish(true, SIGTERM);
    }
  };
  launch.host("h2").script = LateOfHost2::run;
  CHECK(launch.run().exit_code == 4);
}

TEST_CASE("a wall clock that somebody sets on a host does not turn the first cause") {
  // The rank on h1 dies first. Then the wall clock of h2 is set back by an hour, and its rank dies:
  // by that clock, an hour before the other.
  constexpr std::int64_t kHour = 3'600'000;
  struct First {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      runner.send(beat_at(boot_ms(), unix_time_ms()));
      co_await runner.sleep(milliseconds(20));
      wire::RankExited exited = ended(0, 3, false, static_cast<std::uint64_t>(boot_ms()));
      exited.time_unix_ms = static_cast<std::uint64_t>(unix_time_ms());
      runner.send(exited);
      co_await runner.until<wire::Stop>();
      co_await runner.finish(true, SIGTERM);
    }
  };
  struct SetBack {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      runner.send(beat_at(boot_ms(), unix_time_ms()));
      co_await runner.until<wire::Stop>();
      runner.send(beat_at(boot_ms(), unix_time_ms() - kHour));
      wire::RankExited exited = ended(2, 4, false, static_cast<std::uint64_t>(boot_ms()));
      exited.time_unix_ms = static_cast<std::uint64_t>(unix_time_ms() - kHour);
      runner.send(exited);
      co_await runner.finish(true, SIGTERM);
    }
  };
  Launch launch({{"h1", {0, 1}}, {"h2", {0, 1}}});
  launch.host("h1").script = First::run;
  launch.host("h2").script = SetBack::run;
  CHECK(launch.run().exit_code == 3);
  const double died = launch.events_named("cause").at(0)["died_at"];
  CHECK(std::abs(died - unix_time()) < 60);
}

TEST_CASE("a rank that dies of its own signal after an OOM kill of a helper is no OOM kill") {
  for (const auto& [signal, what] : {std::pair{SIGSEGV, "signal"}, std::pair{SIGKILL, "oom"}}) {
    CAPTURE(signal);
    Launch launch({{"h1", {0}}});
    launch.host("h1").script = after_start([signal](FakeRunner& runner) {
      wire::RankExited exited = ended(0, static_cast<std::uint32_t>(signal), true, 0);
      exited.oom_killed = 1;
      runner.send(exited);
    });
    launch.run();
    CHECK(launch.events_named("cause").at(0)["what"] == what);
    CHECK(launch.events_named("cause").at(0)["oom_evidence"] == "rank");
  }
}

TEST_CASE("a failure after the settlement changes nothing") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.job.runner.grace = milliseconds(20000);
  launch.host("h1").script = after_start([](FakeRunner& runner) { runner.exit_rank(0, 3); });
  struct Later {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      co_await runner.until<wire::Stop>();
      co_await runner.sleep(kSettleTime + milliseconds(200));
      runner.exit_rank(1, SIGSEGV, true);
      co_await runner.finish(true, SIGTERM);
    }
  };
  launch.host("h2").script = Later::run;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 3);
  CHECK(launch.events_named("rank_exited").back()["consequence"] == true);
}

TEST_CASE("the end of a rank after its MPI_Abort is no cause of its own, nor a consequence") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = after_start([](FakeRunner& runner) {
    runner.send(wire::PmixAbort{0, 7, ""});
    runner.exit_rank(0, SIGKILL, true);
  });
  launch.host("h2").script = run_until_stopped;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 7);
  CHECK(verdict.ended_after == 1);
  CHECK(launch.events_named("cause").at(0)["status"] == 7);
}

// ---- lost hosts ---------------------------------------------------------------------------------

awaitable<void> sweeps(FakeRunner& runner) {
  co_await runner.until<wire::Sweep>();
  runner.send(wire::Hello{});
  wire::Swept swept;
  swept.killed = 3;
  swept.left = {"77 dd (state D)"};
  runner.send(swept);
  co_await runner.until<wire::Goodbye>();
}

TEST_CASE(
    "a host that was lost and is reached again is swept, and what can not be killed is named") {
  Launch launch({{"bad", {0}}, {"good", {0}}});
  launch.host("bad").script = after_start([](FakeRunner& runner) { runner.end(); });
  launch.host("bad").after_loss = sweeps;
  launch.sweep_reach = milliseconds(20000);
  launch.host("good").script = run_until_stopped;
  CHECK(launch.run().exit_code == kExitLost);
  const auto orders = launch.transport.sweeper("bad").all<wire::Sweep>();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].run_id == launch.run_folder.filename().string());
  CHECK(orders[0].patience_ms == 1100);
  CHECK(launch.transport.sweeper("bad").closed_by_launcher);
  REQUIRE(launch.events_named("swept").size() == 1);
  CHECK(launch.events_named("swept")[0]["killed"] == 3);
  CHECK(launch.shown.find("bad: could not be killed: 77 dd (state D)") != std::string::npos);
  CHECK(launch.events_named("unconfirmed").size() == 1);
}

TEST_CASE("a lost host that is not reached again is named, and the end does not wait for it") {
  Launch launch({{"bad", {0}}, {"good", {0}}});
  launch.host("bad").script = after_start([](FakeRunner& runner) { runner.end(); });
  launch.host("good").script = run_until_stopped;
  CHECK(launch.run().exit_code == kExitLost);
  REQUIRE(launch.events_named("unconfirmed").size() == 1);
  CHECK(launch.events_named("unconfirmed")[0]["why"] == "Connection refused");
  CHECK(launch.shown.find("bad: cleanup is not confirmed: Connection refused; a runner that is "
                          "alive ends its ranks by itself within runner.heartbeat_timeout and "
                          "grace") != std::string::npos);
  CHECK(launch.ran < test::patient(milliseconds(4000)));
}

TEST_CASE("a lost host that is not reached again: under a hold its ranks may continue that long") {
  Launch launch({{"bad", {0}}, {"good", {0}}});
  launch.job.runner.on_launcher_loss = "hold 2m";
  // A runner that breaks the protocol is lost at once.
  launch.host("bad").script =
      after_start([](FakeRunner& runner) { runner.send_bytes(std::string(64, '\xff')); });
  launch.host("good").script = run_until_stopped;
  CHECK(launch.run().exit_code == kExitLost);
  CHECK(launch.shown.find("a runner that is alive ends its ranks by itself after a hold of 2m00s "
                          "(runner.on_launcher_loss), within runner.heartbeat_timeout and grace") !=
        std::string::npos);
}

}  // namespace
}  // namespace sortie::launcher
