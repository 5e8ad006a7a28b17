// Hosts that can not be reached, that disappear, or that send garbage: the stage is named, the
// other hosts are stopped, and nothing waits forever.
#include <doctest/doctest.h>

#include <thread>

#include "common/base/exit_code.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"
#include "tests/support/patience.h"

namespace sortie::launcher {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using std::chrono::milliseconds;
using test::after_start;
using test::FakeRunner;
using test::Launch;
using test::run_until_stopped;
using test::succeed;

// ---- before a rank has started ------------------------------------------------------------------

TEST_CASE("hosts that can not be reached are grouped by stage and message; no rank starts") {
  Launch launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}, {"h4", {0}}, {"h5", {0}}});
  const Error refused{ErrorCode::connect, "10.0.0.2 port 22: Connection refused"};
  launch.host("h2").connect_error = launch.host("h3").connect_error = refused;
  launch.host("h4").connect_error = Error{ErrorCode::host_key, "the key is not known"};
  launch.host("h1").script = launch.host("h5").script = run_until_stopped;
  launch.host("h5").connect_delay = milliseconds(100);  // after all errors, but it is awaited
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitUnreachable);
  CHECK(verdict.text ==
        "h[2-3]: connect: 10.0.0.2 port 22: Connection refused\n"
        "h4: host_key: the key is not known\n"
        "no rank was started: 2 of 5 hosts were ready");
  CHECK(launch.events_named("connected").size() == 2);
  const auto failed = launch.events_named("host_failed");
  REQUIRE(failed.size() == 3);
  CHECK(failed[2]["host"] == "h4");
  CHECK(failed[2]["stage"] == "host_key");
  for (const char* name : {"h1", "h5"}) {
    CHECK(launch.runner(name).all<wire::JobSpec>().empty());
    CHECK(launch.runner(name).closed_by_launcher);  // EOF: the runner exits
  }
  CHECK(launch.ran < test::patient(milliseconds(4000)));
}

TEST_CASE("exit codes of the stages") {
  for (const auto& [stage, code] : {std::pair{ErrorCode::resolve, 4},
                                    {ErrorCode::connect, 4},
                                    {ErrorCode::handshake, 4},
                                    {ErrorCode::host_key, 4},
                                    {ErrorCode::auth, 4},
                                    {ErrorCode::channel, 4}}) {
    Launch launch({{"h", {0}}});
    launch.host("h").connect_error = Error{stage, "why"};
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == code);
    CHECK(verdict.text == std::string("h: ") + std::string(error_code_name(stage)) + ": why");
  }
}

TEST_CASE("a host that is slow to connect delays no other, whatever the fan-out") {
  Launch launch(
      {{"a", {0}}, {"b", {0}}, {"c", {0}}, {"d", {0}}, {"e", {0}}, {"f", {0}}, {"g", {0}}});
  launch.job.runner.ssh.fanout = 1;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) {
    launch.host(name).connect_delay = milliseconds(200);
    launch.host(name).script = succeed;
  }
  CHECK(launch.run().exit_code == 0);
  CHECK(launch.transport.most_connecting == 7);
}

awaitable<void> garbage_first(FakeRunner& runner) {
  co_await runner.until<wire::JobSpec>();
  runner.send_bytes(std::string(64, '\xff'));
}

awaitable<void> old_version(FakeRunner& runner) {
  runner.protocol_version = 99;
  co_await runner.prepare();
}

awaitable<void> refuse_job(FakeRunner& runner) {
  co_await runner.until<wire::JobSpec>();
  runner.send(wire::RunnerError{"unsupported", "libpmix is not there; install libpmix2", -1});
  runner.end();
}

awaitable<void> say_nothing(FakeRunner& runner) {
  co_await runner.until<wire::Goodbye>();
}

awaitable<void> dies(FakeRunner& runner) {
  co_await runner.until<wire::JobSpec>();
  runner.end();
}

awaitable<void> sweeps_nothing(FakeRunner& runner) {
  co_await runner.until<wire::Sweep>();
  runner.send(wire::Hello{});
  runner.send(wire::Swept{});
  co_await runner.until<wire::Goodbye>();
}

awaitable<void> out_of_turn(FakeRunner& runner) {
  co_await runner.until<wire::JobSpec>();
  runner.send(wire::Finished{});
}

TEST_CASE("a runner that is not ready is the host's error, and no rank starts anywhere") {
  struct Row {
    test::FakeHost::Script script;
    int exit_code;
    std::string text;
    bool swept = false;  // a new runner sweeps what this one may have left
    milliseconds startup_timeout{30000};
  };
  for (const Row& row :
       {Row{garbage_first, kExitFailed, "bad: protocol: runner: "},
        Row{old_version, kExitFailed, "bad: protocol: runner speaks protocol 99, this sortie "},
        Row{refuse_job, kExitPreflight, "bad: unsupported: libpmix is not there; install libpmix2"},
        Row{say_nothing, kExitFailed,
            "bad: timeout: runner: not ready within 1 s (runner.startup_timeout)", true,
            milliseconds(1000)},
        Row{dies, kExitLost, "bad: lost: the runner ended unexpectedly", true},
        Row{out_of_turn, kExitFailed, "bad: protocol: runner sent Finished before JobReady"}}) {
    CAPTURE(row.text);
    Launch launch({{"good", {0}}, {"bad", {0}}});
    launch.host("good").script = run_until_stopped;
    launch.host("bad").script = row.script;
    launch.host("bad").after_loss = sweeps_nothing;
    launch.sweep_reach = milliseconds(20000);
    launch.job.runner.startup_timeout = row.startup_timeout;
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == row.exit_code);
    CHECK_MESSAGE(verdict.text.starts_with(row.text), verdict.text);
    CHECK(verdict.text.ends_with("\nno rank was started: 1 of 2 hosts was ready"));
    CHECK(launch.runner("good").all<wire::Start>().empty());
    CHECK(launch.runner("good").closed_by_launcher);
    CHECK(launch.events_named("swept").size() == (row.swept ? 1 : 0));
    CHECK(launch.ran < test::patient(milliseconds(5000)));
  }
}

/// One of its two ranks hangs before exec.
awaitable<void> starts_one(FakeRunner& runner) {
  const bool prepared = co_await runner.prepare();
  const bool go = prepared && co_await runner.until<wire::Start>();
  if (!go) co_return;
  runner.send(wire::RankStarted{runner.job.ranks[0].rank, 1000});
  const bool told = co_await runner.until<wire::Stop>();
  if (told) co_await runner.finish(true, SIGTERM);
}

TEST_CASE("a rank that does not start within runner.startup_timeout ends the attempt") {
  Launch launch({{"good", {0}}, {"bad", {0, 1}}});
  launch.host("good").script = run_until_stopped;
  launch.host("bad").script = starts_one;
  launch.job.runner.startup_timeout = milliseconds(1000);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitFailed);
  CHECK_MESSAGE(
      verdict.text.starts_with(
          "bad: rank 2 has not started within 1s (runner.startup_timeout); see whether the file "
          "system of the program answers there"),
      verdict.text);
  CHECK(launch.events_named("cause").at(0)["host"] == "bad");
}

/// The launcher is stopped after its order to start, as by Ctrl-Z. The rank starts meanwhile.
awaitable<void> starts_in_a_standstill(FakeRunner& runner) {
  const bool prepared = co_await runner.prepare();
  const bool go = prepared && co_await runner.until<wire::Start>();
  if (!go) co_return;
  std::this_thread::sleep_for(milliseconds(2500));  // all share one thread
  co_await runner.sleep(milliseconds(20));
  runner.send(wire::RankStarted{runner.job.ranks[0].rank, 1000});
  co_await runner.finish(false);
}

TEST_CASE("a launcher that stood still in the start reads what hosts have said before it judges") {
  Launch launch({{"h", {0}}});
  launch.host("h").script = starts_in_a_standstill;
  launch.job.runner.startup_timeout = milliseconds(1000);
  launch.job.runner.heartbeat_timeout = milliseconds(10000);
  launch.limit = std::chrono::seconds(30);
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
}

TEST_CASE("a host that goes while others get ready is found when the ranks are to start") {
  struct Goes {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.prepare();
      runner.cut("Connection reset by peer");
    }
  };
  struct Slow {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.prepare(milliseconds(200));
      const bool told = co_await runner.until<wire::Stop>();
      if (told) co_await runner.finish(true, SIGTERM);
    }
  };
  Launch launch({{"goes", {0}}, {"slow", {0}}});
  launch.host("goes").script = Goes::run;
  launch.host("slow").script = Slow::run;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitLost);
  CHECK(verdict.text == "goes: lost: Connection reset by peer");
}

TEST_CASE("the error of a runner that sweeps_nothing is as short as any other") {
  struct Sweeper {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.until<wire::Sweep>();
      runner.send(wire::RunnerError{"runner", "\x1b[2Jlong " + std::string(1u << 20, 'x'), -1});
      co_await runner.sleep(milliseconds(100));
    }
  };
  Launch launch({{"bad", {0}}, {"good", {0}}});
  launch.host("bad").script = after_start([](FakeRunner& runner) { runner.end(); });
  launch.host("bad").after_loss = Sweeper::run;
  launch.sweep_reach = milliseconds(20000);
  launch.host("good").script = run_until_stopped;
  launch.run();
  const auto unconfirmed = launch.events_named("unconfirmed");
  REQUIRE(unconfirmed.size() == 1);
  const std::string why = unconfirmed[0]["why"];
  CHECK(why.starts_with("^[[2Jlong xxx"));
  CHECK(why.size() < 5000);
}

// ---- while ranks run ----------------------------------------------------------------------------

void break_off(FakeRunner& runner) {
  test::say(runner, 0, "half a line");
  runner.cut("Connection reset by peer");
}

/// Simulates a machine on which nothing runs, neither this process nor the runner.
struct StandsStill {
  static awaitable<void> run(FakeRunner& runner) {
    const bool started = co_await runner.start();
    if (!started) co_return;
    runner.freeze();
    co_await runner.sleep(milliseconds(100));  // its messages are received
    std::this_thread::sleep_for(milliseconds(1800));
    co_await runner.sleep(milliseconds(650));  // the runner is slow to resume
    runner.send(wire::Heartbeat{});
    co_await runner.finish(false);
  }
};

TEST_CASE("time in which the launcher did not run is no host's silence") {
  Launch launch({{"here", {0}}});
  launch.job.runner.heartbeat_timeout = milliseconds(1000);
  launch.host("here").script = StandsStill::run;
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  CHECK_FALSE(launch.events_named("stalled").empty());
}

TEST_CASE("ways to lose a host that runs: verdict, exit code, and the others are told") {
  struct Row {
    std::function<void(FakeRunner&)> act;
    std::string text;
  };
  const Row rows[] = {
      {break_off, "bad: lost: Connection reset by peer"},
      {[](FakeRunner& runner) { runner.end(); }, "bad: lost: the runner ended unexpectedly"},
      {[](FakeRunner& runner) { runner.freeze(); }, "bad: lost: no heartbeat for "},
      {[](FakeRunner& runner) { runner.send_bytes(std::string(16, '\xff')); },
       "bad: lost: runner: "},
      {[](FakeRunner& runner) { runner.send_bytes(wire::encode_frame(200, "?")); },
       "bad: lost: runner: "},
      {[](FakeRunner& runner) { runner.send(wire::JobReady{}); },
       "bad: lost: runner sent an unexpected JobReady"},
      {[](FakeRunner& runner) { runner.send(wire::Finished{}); },
       "bad: lost: runner finished without the end of rank 0"},
      {[](FakeRunner& runner) { runner.exit_rank(0, SIGTERM, true, true); },
       "bad: lost: the runner stopped its ranks by itself"},
      {[](FakeRunner& runner) { runner.exit_rank(0, 0, false, true); },  // the program handled TERM
       "bad: lost: the runner stopped its ranks by itself"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    Launch launch({{"bad", {0}}, {"good", {0}}});
    launch.host("bad").script = after_start(row.act);
    launch.host("good").script = run_until_stopped;
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == kExitLost);
    CHECK_MESSAGE(verdict.text.starts_with(row.text), verdict.text);
    CHECK(launch.runner("good").all<wire::Stop>().size() == 1);
    CHECK(launch.runner("good").all<wire::Goodbye>().size() == 1);
    CHECK(launch.runner("bad").closed_by_launcher);
    CHECK(launch.ran < test::patient(milliseconds(5000)));
  }
}

TEST_CASE("what a lost host's ranks had begun to say is shown") {
  Launch launch({{"bad", {0}}});
  launch.host("bad").script = after_start(break_off);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitLost);
  CHECK(launch.shown.find("[0 bad] half a line\n") != std::string::npos);
  // The loss was shown at once. The end adds nothing.
  CHECK(verdict.shown);
  CHECK(launch.shown.find(verdict.text + "\n") != std::string::npos);
}

TEST_CASE("a host that is lost after the first cause is named, and changes nothing") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = after_start([](FakeRunner& runner) { runner.exit_rank(0, 3); });
  struct GoesWhenTold {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      co_await runner.until<wire::Stop>();
      runner.cut("Broken pipe");
    }
  };
  launch.host("h2").script = GoesWhenTold::run;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 3);
  CHECK_FALSE(verdict.shown);
  CHECK(launch.shown.find("h2: lost: Broken pipe\n") != std::string::npos);
}

TEST_CASE("a host whose ranks do not end is given up after grace and slack, by name") {
  Launch launch({{"h1", {0}}, {"stuck", {0}}});
  launch.host("h1").script = after_start([](FakeRunner& runner) { runner.exit_rank(0, 3); });
  struct Stuck {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      co_await runner.until<wire::Goodbye>();  // alive, but ignores Stop
    }
  };
  launch.host("stuck").script = Stuck::run;
  launch.stop_slack = milliseconds(500);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 3);
  CHECK(launch.shown.find("stuck: ranks did not end within 0.6 s after the order to stop") !=
        std::string::npos);
  CHECK(launch.events_named("unconfirmed").size() == 1);
  CHECK(launch.took >= milliseconds(600));
  CHECK(launch.ran < test::patient(milliseconds(5000)));
}

TEST_CASE("a host can not speak for the ranks of another") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = after_start([](FakeRunner& runner) {
    wire::RankExited exited;
    exited.rank = 1;
    exited.code = 9;
    runner.send(exited);
    exited.rank = 77;
    runner.send(exited);
    runner.send(wire::PmixAbort{1, 5, ""});
    runner.send(wire::Output{1, wire::Stream::out, "not mine\n"});
    runner.send(wire::RankStarted{1, 1});
    runner.exit_rank(0, 4);
  });
  launch.host("h2").script = run_until_stopped;
  CHECK(launch.run().exit_code == 4);
  CHECK(launch.shown.find("not mine") == std::string::npos);
}

TEST_CASE("events of any shape harm nobody") {
  Launch launch({{"h", {0}}});
  struct Odd {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      for (const char* text :
           {"", "{", "[]", "{}", R"({"type":3})", R"({"type":"step","skipped":1})",
            R"({"type":"step","step":1e300,"eta_s":1e300})", "\xff\xfe"})
        runner.send(wire::RankEvent{0, text});
      runner.send(wire::RankEvent{0, R"({"type":"x","a":)" + std::string(60000, '[')});
      runner.send(wire::RankEvent{
          0, R"({"type":"x","a":)" + std::string(30000, '[') + std::string(30000, ']') + "}"});
      runner.send(wire::RankEvent{99, R"({"type":"note","text":"from nowhere"})"});
      co_await runner.finish(false);
    }
  };
  launch.host("h").script = Odd::run;
  CHECK(launch.run().exit_code == 0);
  std::istringstream lines(test::read_text(launch.run_folder / "metrics.jsonl"));
  std::size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) CHECK(nlohmann::json::accept(line));
  CHECK(count == 0);
  CHECK(launch.shown.find("from nowhere") == std::string::npos);
}

TEST_CASE("an event of the wrong shape is left out, said once, and costs the job nothing") {
  Launch launch({{"h", {0, 1}}});
  launch.job.logger.wandb_mode = "offline";
  struct Odd {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.start();
      for (const std::uint32_t rank : {0u, 1u})
        for (const char* text :
             {R"({"type":"start","first_run":1})", R"({"type":"start","first_run":["x"]})",
              R"({"type":"step","step":"3"})", R"({"type":"step","step":-1})",
              R"({"type":"step","step":18446744073709551615})",
              R"({"type":"step","step":1,"loss":{}})", R"({"type":"checkpoint","path":7})",
              R"({"type":"checkpoint"})", R"({"type":"checkpoint","step":3})",
              R"({"type":"checkpoint","path":"/c","step":null})", R"({"type":"step","loss":1})",
              R"({"type":"eval","step":1})", R"({"type":"eval","loss":1})",
              R"({"type":"memory_checkpoint","bytes":1})", R"({"type":"note","text":false})"})
          runner.send(wire::RankEvent{rank, text});
      runner.send(
          wire::RankEvent{0, R"({"type":"step","step":4,"loss":null,"lr":0.5,"mine":[1]})"});
      runner.send(wire::RankEvent{
          0,
          R"({"type":"step","step":5,"tokens_per_s":1e308,"mean_tokens_per_s":-1e25,"lr":1e-9})"});
      runner.send(wire::RankEvent{0, R"({"type":"eval","step":5,"loss":null,"loss/a":1e99})"});
      runner.send(wire::RankEvent{0, R"({"type":"of mine","step":"any","first_run":1})"});
      co_await runner.sleep(milliseconds(400));  // longer than heartbeat_timeout
      co_await runner.finish(false);
    }
  };
  launch.host("h").script = Odd::run;
  const Verdict verdict = launch.run();
  CHECK_MESSAGE(verdict.exit_code == 0, verdict.text);
  const std::string metrics = test::read_text(launch.run_folder / "metrics.jsonl");
  CHECK(std::ranges::count(metrics, '\n') == 4);
  CHECK(metrics.find("tokens_per_s") == std::string::npos);
  CHECK(metrics.find("loss/a") == std::string::npos);
  CHECK(metrics.find("1e-09") != std::string::npos);
  CHECK(metrics.find(R"("step":4)") != std::string::npos);
  CHECK(metrics.find("of mine") != std::string::npos);
  const auto refused = launch.events_named("event_refused");
  REQUIRE(refused.size() == 2);  // one per rank
  CHECK(refused[0]["why"] == R"("start": first_run is 1; it must be a text)");
  const std::string said = "rank 0 on h: an event for SORTIE_SOCKET is left out";
  CHECK(launch.shown.find(said) != std::string::npos);
  CHECK(launch.shown.find("rank 1 on h: an event") == std::string::npos);
}

}  // namespace
}  // namespace sortie::launcher
