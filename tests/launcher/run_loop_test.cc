// Runs of several attempts over fake hosts in memory: what is restarted, on which hosts, and when
// the run stops.
#include "launcher/run/run_loop.h"

#include <doctest/doctest.h>

#include <csignal>

#include "common/base/exit_code.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/restarting.h"
#include "tests/launcher/scripts.h"
#include "tests/support/patience.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using Doing = boost::asio::awaitable<void>;
using std::chrono::milliseconds;
using test::after_start;
using test::contains;
using test::FakeRunner;
using test::first_rank_exits_1;
using test::in_turn;
using test::Restarting;
using test::run_until_stopped;
using test::succeed;

void first_rank_is_killed(FakeRunner& runner) {
  test::say(runner, runner.job.ranks[0].rank, "last words\n");
  runner.exit_rank(runner.job.ranks[0].rank, SIGKILL, true);
}
void first_rank_exits_2(FakeRunner& runner) {
  runner.exit_rank(runner.job.ranks[0].rank, 2);
}

/// Reports a committed step, then a rank exits with code 1.
test::FakeHost::Script commits_and_fails(int step) {
  return after_start([step](FakeRunner& runner) {
    wire::RankEvent event;
    event.rank = runner.job.ranks[0].rank;
    event.json = R"({"type":"checkpoint","path":"/c","step":)" + std::to_string(step) + "}";
    runner.send(event);
    runner.exit_rank(event.rank, 1);
  });
}

Doing sweeps_and_is_clear(FakeRunner& runner) {
  co_await runner.until<wire::Sweep>();
  runner.send(wire::Hello{});
  runner.send(wire::Swept{});
  co_await runner.until<wire::Goodbye>();
}

/// Sends nothing any more once its ranks run.
Doing freezes(FakeRunner& runner) {
  const bool started = co_await runner.start();
  if (started) runner.freeze();
}

std::string env_value(const wire::Environment& env, const std::string& name) {
  for (const auto& [key, value] : env)
    if (key == name) return value;
  return "";
}

TEST_CASE("a rank is killed: all ranks start again, over the connections that there are") {
  Restarting launch({{"h1", {0, 1}}, {"h2", {0}}});
  in_turn(launch.host("h1"), {run_until_stopped, succeed});
  in_turn(launch.host("h2"), {after_start(first_rank_is_killed), succeed});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 0);
  CHECK(verdict.text.empty());
  CHECK(launch.transport.connected == 2);

  const wire::JobSpec first = launch.runner("h2").all<wire::JobSpec>().at(0);
  const wire::JobSpec second = launch.transport.sweeper("h2").all<wire::JobSpec>().at(0);
  CHECK(first.attempt == 1);
  CHECK(second.attempt == 2);
  CHECK(env_value(first.env, "TORCHELASTIC_RESTART_COUNT") == "0");
  CHECK(env_value(second.env, "TORCHELASTIC_RESTART_COUNT") == "1");
  CHECK(env_value(second.env, "TORCHELASTIC_MAX_RESTARTS") == "2");
  CHECK(second.run_id == first.run_id);

  const auto attempts = launch.events_named("attempt");
  REQUIRE(attempts.size() == 2);
  CHECK(attempts[1]["attempt"] == 2);
  CHECK(attempts[1]["hosts"] == nlohmann::json({"h1", "h2"}));
  const auto ends = launch.events_named("attempt_end");
  REQUIRE(ends.size() == 2);
  CHECK(ends[0]["exit_code"] == 137);
  CHECK(ends[0]["class"] == "software");
  CHECK(ends[0]["blamed"] == "h2");
  CHECK(ends[1]["exit_code"] == 0);
  const auto decisions = launch.events_named("decision");
  REQUIRE(decisions.size() == 1);
  CHECK(decisions[0]["action"] == "restart");
  CHECK(launch.events_named("begin").size() == 1);
  CHECK(launch.events.back()["event"] == "end");
  CHECK(contains(launch.shown, "attempt 1 has failed; restart after a failure of class software"));

  CHECK(test::read_text(launch.run_folder / "logs/rank-2.err") == "last words\n");
  CHECK(std::filesystem::exists(launch.run_folder / "attempts/2/plan.json"));
  CHECK(std::filesystem::exists(launch.run_folder / "attempts/2/logs"));
}

TEST_CASE("the output of an attempt is in its own folder") {
  Restarting launch({{"h", {0}}});
  const auto says = [](const char* text, bool fails) {
    return after_start([text, fails](FakeRunner& runner) {
      test::say(runner, 0, text);
      runner.exit_rank(0, fails ? 1 : 0);
      if (!fails) runner.send(wire::Finished{});
    });
  };
  in_turn(launch.host("h"), {says("one\n", true), says("two\n", true), says("three\n", false)});
  CHECK(launch.run().exit_code == 0);
  CHECK(test::read_text(launch.run_folder / "logs/rank-0.err") == "one\n");
  CHECK(test::read_text(launch.run_folder / "attempts/2/logs/rank-0.err") == "two\n");
  CHECK(test::read_text(launch.run_folder / "attempts/3/logs/rank-0.err") == "three\n");
}

TEST_CASE("kept connections that have died are replaced without a word") {
  Restarting launch({{"h1", {0}}, {"h2", {0}}});
  in_turn(launch.host("h1"), {run_until_stopped, succeed});
  in_turn(launch.host("h2"), {after_start([&](FakeRunner& runner) {
                                launch.transport.break_connections();
                                first_rank_is_killed(runner);
                              }),
                              succeed});
  CHECK(launch.run().exit_code == 0);
  CHECK(launch.transport.connected == 4);
  CHECK(launch.events_named("host_failed").empty());
  CHECK(launch.events_named("host_lost").empty());
}

TEST_CASE("max_restarts = 0: the first failure ends the run, and nothing is decided") {
  Restarting launch({{"h1", {0}}, {"h2", {0}}});
  launch.job.recovery.max_restarts = 0;
  in_turn(launch.host("h1"), {run_until_stopped, succeed});
  in_turn(launch.host("h2"), {after_start(first_rank_is_killed), succeed});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 137);
  CHECK(verdict.text ==
        "rank 1 on h2 (pid 1001) ended by signal 9 (SIGKILL)\n  its last lines on stderr:\n    "
        "last words");
  CHECK(launch.events_named("decision").empty());
  CHECK(launch.events_named("attempt_end").size() == 1);
}

TEST_CASE("restarts are spent: the run ends with the code of the last first cause, and says so") {
  Restarting launch({{"h", {0, 1}}});
  launch.job.recovery.no_progress_limit = 0;
  launch.job.recovery.cordon = false;
  in_turn(launch.host("h"), {after_start(first_rank_is_killed)});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 137);
  CHECK(contains(verdict.text, "(recovery.max_restarts)"));
  CHECK(launch.events_named("attempt").size() == 3);
  CHECK(launch.events_named("decision").back()["action"] == "stop");
}

TEST_CASE("an exit code of stop_exit_codes is not followed by a restart") {
  Restarting launch({{"h", {0}}});
  in_turn(launch.host("h"), {after_start(first_rank_exits_2), succeed});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 2);
  CHECK(contains(verdict.text, "recovery.stop_exit_codes"));
  CHECK(launch.events_named("attempt").size() == 1);
}

TEST_CASE("attempts without a newer committed step: an exit code of its own, and all causes") {
  Restarting launch({{"h", {0}}});
  launch.job.recovery.max_restarts = 20;
  launch.job.recovery.no_progress_limit = 3;
  in_turn(launch.host("h"), {commits_and_fails(10), commits_and_fails(20), commits_and_fails(20)});
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitNoProgress);
  CHECK(launch.events_named("attempt").size() == 5);
  for (const char* line : {"attempt 3: ", "attempt 4: ", "attempt 5: "})
    CHECK(contains(verdict.text, line));
  CHECK_FALSE(test::has(verdict.text, "attempt 2: "));
  CHECK(launch.events_named("attempt_end").at(1)["committed_step"] == 20);
}

/// Reports events of its training. Then a rank exits with code 1, or all exit with 0.
test::FakeHost::Script trains(std::vector<std::string> events, bool fails) {
  return after_start([events, fails](FakeRunner& runner) {
    for (const std::string& text : events) {
      wire::RankEvent event;
      event.rank = runner.job.ranks[0].rank;
      event.json = text;
      runner.send(event);
    }
    runner.exit_rank(runner.job.ranks[0].rank, fails ? 1 : 0);
    if (!fails) runner.send(wire::Finished{});
  });
}

TEST_CASE("where each attempt goes on, and how many steps it lost, is in the journal") {
  Restarting launch({{"h", {0}}});
  launch.job.recovery.max_restarts = 3;
  launch.job.recovery.no_progress_limit = 0;
  in_turn(
      launch.host("h"),
      {trains({R"({"type":"start","step":0,"steps":9})", R"({"type":"step","step":7,"steps":9})",
               R"({"type":"memory_checkpoint","step":5})"},
              true),
       trains({R"({"type":"start","step":5,"steps":9,"resumed_from":"memory"})",
               R"({"type":"step","step":8,"steps":9})",
               R"({"type":"rollback","from":8,"to":4,"path":"/c"})"},
              true),
       trains({R"({"type":"start","step":3,"steps":9,"resumed_from":"/c/step-3"})",
               R"({"type":"checkpoint","step":4,"path":"/c/best/step-4","best":true})"},
              true),
       trains({R"({"type":"start","step":3,"steps":9,"resumed_from":"/c/step-3"})",
               R"({"type":"step","step":9,"steps":9})"},
              false)});
  CHECK(launch.run().exit_code == 0);
  const auto resumed = launch.events_named("resumed");
  REQUIRE(resumed.size() == 4);
  CHECK(resumed[0]["from"] == "start");
  CHECK_FALSE(resumed[0].contains("lost_steps"));
  CHECK(resumed[1]["from"] == "memory");
  CHECK(resumed[1]["step"] == 5);
  CHECK(resumed[1]["lost_steps"] == 2);
  CHECK_FALSE(resumed[1].contains("path"));
  CHECK(resumed[2]["from"] == "disk");
  CHECK(resumed[2]["path"] == "/c/step-3");
  CHECK(resumed[2]["lost_steps"] == 1);  // the attempt before had rolled back to step 4
  CHECK(resumed[3]["lost_steps"] == 0);
  // A checkpoint in memory counts as progress, and so does the one of the lowest loss.
  CHECK(launch.events_named("attempt_end").at(0)["committed_step"] == 5);
  CHECK(launch.events_named("attempt_end").at(2)["committed_step"] == 4);
}

TEST_CASE("Ctrl-C and `stop` in the pause end the run at once") {
  for (const bool by_stop : {false, true}) {
    CAPTURE(by_stop);
    Restarting launch({{"h", {0}}});
    launch.job.recovery.backoff = launch.job.recovery.backoff_max = std::chrono::seconds(60);
    in_turn(launch.host("h"), {after_start(first_rank_is_killed)});
    launch.on_state("restarting", [by_stop](RunLoop& loop) {
      if (by_stop)
        loop.stop(false);
      else
        loop.interrupt(SIGINT);
    });
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == (by_stop ? 128 + SIGTERM : 128 + SIGINT));
    CHECK(contains(verdict.text, "before the next attempt"));
    CHECK(launch.ran < test::patient(milliseconds(5000)));
    CHECK(launch.events_named("attempt").size() == 1);
  }
}

TEST_CASE("who was interrupted is not started again") {
  Restarting launch({{"h", {0}}});
  in_turn(launch.host("h"), {after_start([&](FakeRunner&) { launch.interrupt(SIGINT); }), succeed});
  CHECK(launch.run().exit_code == 130);
  CHECK(launch.events_named("attempt").size() == 1);
  CHECK(launch.events_named("decision").empty());
}

TEST_CASE("a host is lost: a spare takes its place, with as many slots, in the same ranks") {
  Restarting launch({{"h1", {0, 1}}, {"h2", {0, 1}}, {"h3", {0}}});
  launch.spares = {{"s1", {0}}, {"s2", {0, 1, 2}}};
  launch.job.runner.grace = milliseconds(50);
  for (const char* name : {"h1", "h3"}) in_turn(launch.host(name), {run_until_stopped, succeed});
  launch.host("h2").script = freezes;  // and is not reached again
  launch.host("s2").script = succeed;
  launch.limit = std::chrono::seconds(20);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 0);
  CHECK_FALSE(launch.transport.has_runner("s1"));  // too few slots
  const wire::JobSpec job = launch.runner("s2").all<wire::JobSpec>().at(0);
  CHECK(job.node_rank == 1);
  REQUIRE(job.ranks.size() == 2);
  CHECK(job.ranks[0].rank == 2);
  CHECK(job.ranks[1].rank == 3);
  CHECK(job.attempt == 2);
  const auto ends = launch.events_named("attempt_end");
  CHECK(ends.at(0)["class"] == "hardware");
  CHECK(ends.at(0)["unusable"] == nlohmann::json({"h2"}));
  CHECK(launch.events_named("attempt").at(1)["hosts"] == nlohmann::json({"h1", "s2", "h3"}));
}

TEST_CASE("a host that was lost and is clear again is used again") {
  Restarting launch({{"h1", {0}}, {"h2", {0}}});
  in_turn(launch.host("h1"), {run_until_stopped, succeed});
  in_turn(launch.host("h2"), {freezes, sweeps_and_is_clear, succeed});
  launch.sweep_reach = milliseconds(10000);
  launch.limit = std::chrono::seconds(20);
  CHECK(launch.run().exit_code == 0);
  CHECK(launch.events_named("swept").size() == 1);
  CHECK(launch.events_named("attempt").at(1)["hosts"] == nlohmann::json({"h1", "h2"}));
}

void is_cut_off(FakeRunner& runner) {
  runner.cut("Connection reset by peer");
}

TEST_CASE(
    "a lost host that is not reached again: the next attempt waits until its lease has ended") {
  Restarting launch({{"h1", {0}}, {"h2", {0}}});
  launch.spares = {{"s", {0}}};
  launch.job.runner.heartbeat_timeout = milliseconds(3000);
  in_turn(launch.host("h1"), {run_until_stopped, succeed});
  launch.host("h2").script = after_start(is_cut_off);
  launch.host("s").script = succeed;
  launch.limit = std::chrono::seconds(20);
  CHECK(launch.run().exit_code == 0);
  const double lost = launch.events_named("host_lost").at(0)["time"];
  const double next = launch.events_named("attempt").at(1)["time"];
  CHECK(next - lost >= 3.0);
}

TEST_CASE("a lost host that is swept: the next attempt does not wait for its lease") {
  Restarting launch({{"h1", {0}}, {"h2", {0}}});
  launch.spares = {{"s", {0}}};
  launch.job.runner.heartbeat_timeout = std::chrono::seconds(60);
  in_turn(launch.host("h1"), {run_until_stopped, succeed});
  in_turn(launch.host("h2"), {after_start(is_cut_off), sweeps_and_is_clear, succeed});
  launch.host("h2").reconnect_delay = milliseconds(500);  // the spare is chosen before that
  launch.host("s").script = succeed;
  launch.sweep_reach = milliseconds(10000);
  launch.limit = std::chrono::seconds(20);
  CHECK(launch.run().exit_code == 0);
  CHECK(launch.events_named("swept").size() == 1);
}

TEST_CASE("a supervisor that was replaced while it stood still ends no ranks of its successor") {
  struct Replaced {
    static Doing run(FakeRunner& runner, std::filesystem::path newer) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      co_await runner.sleep(milliseconds(200));  // the journal has been written
      test::write_text(newer, "");
      runner.cut("Connection reset by peer");
    }
  };
  Restarting launch({{"h", {0}}});
  launch.job.runner.on_launcher_loss = "kill";
  launch.spares = {{"s", {0}}};
  launch.host("h").script = [&](FakeRunner& runner) {
    return Replaced::run(runner, launch.newer());
  };
  bool swept = false;
  launch.host("h").after_loss = [&](FakeRunner& runner) {
    swept = true;
    return sweeps_and_is_clear(runner);
  };
  launch.sweep_reach = milliseconds(10000);
  CHECK(launch.run().exit_code == kExitAdopted);
  CHECK_FALSE(swept);
  CHECK_FALSE(launch.transport.has_runner("s"));
}

/// sortie-train with checkpoints in memory. The first runner of each host is the holder.
struct Remembering : Restarting {
  using Restarting::Restarting;
  void set() {
    job.runner.program.clear();
    job.data.data_prefixes = {"/tokens"};
    job.trainer.save_dir = "/c";
    job.trainer.memory_checkpoint_interval = 5;
  }
};

TEST_CASE("memory is held before ranks start, over all attempts, and let go of with the run") {
  Remembering launch({{"h1", {0}}, {"h2", {0}}});
  launch.set();
  in_turn(launch.host("h1"), {test::keep_memory, run_until_stopped, succeed});
  in_turn(launch.host("h2"), {test::keep_memory, after_start(first_rank_is_killed), succeed});
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  CHECK(launch.events_named("attempt").size() == 2);
  for (const char* name : {"h1", "h2"}) {
    const FakeRunner& holder = launch.runner(name);
    REQUIRE(holder.all<wire::HoldMemory>().size() == 1);
    CHECK(holder.all<wire::HoldMemory>()[0].host == name);
    CHECK(holder.all<wire::Goodbye>().size() == 1);
    const FakeRunner& last = launch.transport.sweeper(name);
    CHECK(last.all<wire::JobSpec>().at(0).memory == 1);
    CHECK(*holder.time_of<wire::HoldMemory>() < *last.time_of<wire::JobSpec>());
    CHECK(*holder.time_of<wire::Goodbye>() > *last.time_of<wire::JobSpec>());
  }
}

TEST_CASE("a program's exit code 7 is not taken for an adoption: the memory is let go of") {
  Remembering launch({{"h", {0}}});
  launch.set();
  launch.job.recovery.max_restarts = 0;
  in_turn(launch.host("h"), {test::keep_memory, after_start([](FakeRunner& runner) {
                               runner.exit_rank(runner.job.ranks[0].rank, kExitAdopted);
                             })});
  CHECK(launch.run().exit_code == kExitAdopted);
  CHECK(launch.runner("h").all<wire::Goodbye>().size() == 1);
}

TEST_CASE("Ctrl-C while a host hangs before its memory is held ends the run at once") {
  Remembering launch({{"h", {0}}});
  launch.set();
  launch.host("h").connect_delay = std::chrono::hours(1);
  launch.on_state("starting", [](RunLoop& loop) { loop.interrupt(SIGINT); });
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 128 + SIGINT);
  CHECK(contains(verdict.text, "before the attempt"));
  CHECK(launch.events_named("attempt").empty());
  CHECK(launch.events.back()["event"] == "end");
}

TEST_CASE("hosts that were never ready are not tried again") {
  Restarting launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = run_until_stopped;
  launch.host("h2").connect_error = Error{ErrorCode::auth, "no key"};
  CHECK(launch.run().exit_code == kExitUnreachable);
  CHECK(launch.events_named("attempt").size() == 1);
}

}  // namespace
}  // namespace sortie::launcher
