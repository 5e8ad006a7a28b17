// Whole runs over fake hosts in memory: the first failure decides, all hosts are stopped, and
// report and exit code are right.
#include "launcher/supervise/attempt.h"

#include <doctest/doctest.h>

#include <csignal>

#include "common/base/exit_code.h"
#include "common/config/architectures.h"
#include "common/wire/left_behind.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"
#include "tests/support/patience.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using std::chrono::milliseconds;
using test::after_start;
using test::FakeRunner;
using test::has;
using test::Launch;
using test::run_until_stopped;
using test::say;
using test::succeed;

// ---- scripts of hosts ---------------------------------------------------------------------------

void fails_with_3(FakeRunner& runner) {
  say(runner, 1, "starting\nTraceback:\n\x1b[31mno memory\n");
  runner.exit_rank(1, 3);
}

void killed_by_9(FakeRunner& runner) {
  runner.exit_rank(runner.job.ranks[0].rank, SIGKILL, true);
}

// ---- whole runs ---------------------------------------------------------------------------------

TEST_CASE("a run in which every rank exits 0") {
  Launch launch({{"h1", {0, 1}}, {"h2", {0}}});
  launch.host("h1").script = launch.host("h2").script = succeed;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 0);
  CHECK(verdict.text.empty());
  CHECK(verdict.ended_after == 0);
  CHECK(launch.ran < test::patient(milliseconds(4000)));
  for (const char* name : {"h1", "h2"}) {
    const FakeRunner& runner = launch.runner(name);
    CHECK(std::holds_alternative<wire::Hello>(runner.received[0].second));
    CHECK(runner.all<wire::Start>().size() == 1);
    CHECK(runner.all<wire::Stop>().empty());
    CHECK(runner.all<wire::Goodbye>().size() == 1);
    CHECK(runner.job.run_id == launch.run_folder.filename().string());
    CHECK(runner.start_env.back() ==
          std::pair<std::string, std::string>("MASTER_PORT", std::to_string(test::kLeasedPort)));
  }
  for (const char* name : {"connected", "ready", "started", "rank_started", "rank_exited", "end"})
    CHECK_MESSAGE(!launch.events_named(name).empty(), name);
  CHECK(launch.events_named("rank_exited").size() == 3);
  CHECK(launch.events.back()["event"] == "end");
  CHECK(launch.events.back()["exit_code"] == 0);
}

TEST_CASE(
    "two names of one machine are refused before a rank starts, unless the config allows it") {
  for (const bool allowed : {false, true}) {
    CAPTURE(allowed);
    Launch launch({{"a", {0}}, {"b", {0}}, {"c", {0}}});
    launch.job.runner.allow_same_machine = allowed;
    for (const char* name : {"a", "b", "c"}) launch.host(name).script = succeed;
    launch.host("a").ready.machine_id = launch.host("c").ready.machine_id = "boot-1/4026531836";
    launch.host("b").ready.machine_id = "boot-2/4026531836";
    const Verdict verdict = launch.run();
    CHECK(launch.events_named("started").size() == (allowed ? 1 : 0));
    if (allowed) {
      CHECK(verdict.exit_code == 0);
      continue;
    }
    CHECK(verdict.exit_code == exit_code_for(ErrorCode::config));
    CHECK(verdict.text ==
          "runner.hosts: a and c are two names of one machine, so that ranks of both would use the "
          "same CPUs and devices; remove one of them, or set runner.allow_same_machine = true");
    for (const char* name : {"a", "b", "c"}) {
      CHECK(launch.runner(name).all<wire::Start>().empty());
      CHECK(launch.runner(name).closed_by_launcher);
    }
  }
}

TEST_CASE("ranks that need more than twice the memory of their host are not started") {
  for (const std::uint64_t gib : {0u, 5u, 4u}) {  // 0 = unknown
    CAPTURE(gib);
    Launch launch({{"h1", {0, 1}}, {"h2", {0, 1}}});
    launch.job.runner.program.clear();
    launch.job.model = config::find_preset("pythia-70m")->model;
    launch.job.data.data_prefixes = {"/data/text"};
    launch.job.topology.micro_batch_size = 1;
    launch.job.trainer.save_dir = "/checkpoints";
    launch.facts.trainer = "/opt/sortie-train";
    launch.facts.ask_trainer = [](const CostQuestion&) -> Result<training::ModelCost> {
      training::ModelCost cost;
      cost.memory = {{"bf16", {{"weights", std::int64_t{9} << 30}}},
                     {"f32", {{"weights", std::int64_t{4} << 30}, {"process", 1 << 30}}}};
      return cost;
    };
    for (const char* name : {"h1", "h2"}) launch.host(name).script = succeed;
    launch.host("h1").ready.memory_bytes = gib << 30;
    launch.host("h2").ready.memory_bytes = std::uint64_t{64} << 30;
    const Verdict verdict = launch.run();
    CHECK(launch.events_named("started").size() == (gib == 4 ? 0 : 1));
    CHECK(verdict.exit_code == (gib == 4 ? exit_code_for(ErrorCode::unsupported) : 0));
    if (gib != 4) continue;
    CHECK_MESSAGE(has(verdict.text,
                      "2 ranks of 5.0 GiB need 10.0 GiB, and it has 4.0 GiB, less than "
                      "half: the kernel would end these ranks, or other processes; weights, "
                      "gradients and the optimizer's state of a rank take 4.0 GiB of it"),
                  verdict.text);
    for (const char* name : {"h1", "h2"}) CHECK(launch.runner(name).all<wire::Start>().empty());
  }
}

TEST_CASE("after a second a terminal, and only a terminal, says what is waited for") {
  for (const bool terminal : {true, false}) {
    Launch launch({{"fast", {0}}, {"slow", {0}}});
    launch.terminal = terminal;
    launch.host("fast").script = launch.host("slow").script = succeed;
    launch.host("slow").connect_delay = milliseconds(1400);
    CHECK(launch.run().exit_code == 0);
    CHECK((launch.shown.find("connecting 1/2 hosts") != std::string::npos) == terminal);
    CHECK((launch.shown.find('\x1b') != std::string::npos) == terminal);
  }
  Launch quick({{"h", {0}}});
  quick.terminal = true;
  quick.host("h").script = succeed;
  CHECK(quick.run().exit_code == 0);
  CHECK(quick.shown.find("connecting") == std::string::npos);
}

TEST_CASE("no rank starts before every host is ready, however long one takes") {
  constexpr std::size_t kBeats = 20;
  struct Slow {
    static awaitable<void> run(FakeRunner& runner, const FakeRunner& other) {
      // Takes longer than heartbeat_timeout: the launcher must send heartbeats to the other host
      // meanwhile.
      while (other.all<wire::Heartbeat>().size() < kBeats) co_await runner.sleep(milliseconds(20));
      const bool prepared = co_await runner.prepare();
      if (!prepared) co_return;
      const bool go = co_await runner.until<wire::Start>();
      if (!go) co_return;
      co_await runner.finish(false);
    }
  };
  Launch launch({{"quick", {0}}, {"slow", {0}}});
  launch.host("quick").script = succeed;
  launch.host("slow").script = [&launch](FakeRunner& runner) {
    return Slow::run(runner, launch.runner("quick"));
  };
  CHECK(launch.run().exit_code == 0);
  std::size_t beats = 0;
  for (const auto& [time, message] : launch.runner("quick").received) {
    if (std::holds_alternative<wire::Start>(message)) break;
    if (std::holds_alternative<wire::Heartbeat>(message)) ++beats;
  }
  CHECK(beats >= kBeats);
}

// ---- the first failure decides ------------------------------------------------------------------

TEST_CASE("the first rank to fail decides, and all hosts are told at once") {
  Launch launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0, 1}}});
  launch.host("h2").script = after_start(fails_with_3);
  launch.host("h1").script = launch.host("h3").script = run_until_stopped;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 3);
  CHECK(verdict.text ==
        "rank 1 on h2 (pid 1001) failed with exit code 3\n"
        "  its last lines on stderr:\n"
        "    starting\n"
        "    Traceback:\n"
        "    ^[[31mno memory");
  CHECK(verdict.ended_after == 3);
  std::vector<FakeRunner::Clock::time_point> told;
  for (const char* name : {"h1", "h2", "h3"}) {
    const auto stops = launch.runner(name).all<wire::Stop>();
    REQUIRE(stops.size() == 1);
    CHECK(stops[0].grace_ms == 100);
    CHECK(stops[0].reason == "rank 1 on h2 (pid 1001) failed with exit code 3");
    told.push_back(*launch.runner(name).time_of<wire::Stop>());
  }
  CHECK(std::ranges::max(told) - std::ranges::min(told) < milliseconds(1000));
  const auto causes = launch.events_named("cause");
  REQUIRE(causes.size() == 1);
  CHECK(causes[0]["what"] == "exit");
  CHECK(causes[0]["code"] == 3);
  CHECK(causes[0]["exit_code"] == 3);
  CHECK(causes[0]["rank"] == 1);
  CHECK(causes[0]["host"] == "h2");
  CHECK(causes[0]["pid"] == 1001);
  CHECK(causes[0]["last_lines"] == nlohmann::json({"starting", "Traceback:", "\x1b[31mno memory"}));
  for (const auto& event : launch.events_named("rank_exited"))
    CHECK(event["consequence"] == (event["rank"] != 1));
  CHECK(launch.ran < test::patient(milliseconds(4000)));
}

TEST_CASE("a rank that a signal ended gives 128 + its number") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = run_until_stopped;
  launch.host("h2").script = after_start(killed_by_9);
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 137);
  CHECK(verdict.text == "rank 1 on h2 (pid 1001) ended by signal 9 (SIGKILL)");
  CHECK(verdict.ended_after == 1);
}

TEST_CASE("the report keeps the last twenty lines, and the unfinished one") {
  Launch launch({{"h", {0}}});
  launch.host("h").script = after_start([](FakeRunner& runner) {
    for (int i = 0; i < 100; ++i) say(runner, 0, "line " + std::to_string(i) + "\n");
    say(runner, 0, std::string(2000, 'x'));
    runner.exit_rank(0, 1);
  });
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 1);
  CHECK(verdict.text.find("line 79\n") == std::string::npos);
  CHECK(verdict.text.find("    line 80\n") != std::string::npos);
  CHECK(verdict.text.ends_with("\n    " + std::string(500, 'x')));
  CHECK(launch.shown.find("[0 h] line 0\n") != std::string::npos);
  CHECK(test::read_text(launch.run_folder / "logs/rank-0.err")
            .ends_with("\n" + std::string(2000, 'x')));
}

TEST_CASE("MPI_Abort is the cause, with its status as exit code") {
  for (const auto& [status, code] : {std::pair{7, 7}, {0, 1}, {-1, 255}, {256, 1}}) {
    CAPTURE(status);
    Launch launch({{"h1", {0}}, {"h2", {0}}});
    launch.host("h1").script = after_start([number = status](FakeRunner& runner) {
      runner.send(wire::PmixAbort{0, number, "bye"});
    });
    launch.host("h2").script = run_until_stopped;
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == code);
    CHECK(verdict.text ==
          "rank 0 on h1 (pid 1000) called MPI_Abort(" + std::to_string(status) + ")");
    CHECK(verdict.ended_after == 1);
    CHECK(launch.runner("h2").all<wire::Stop>().size() == 1);
  }
}

TEST_CASE("a rank that exits with 0 without MPI_Finalize ends the job if the others do not end") {
  const auto leave = [](FakeRunner& runner) {
    wire::RankExited exited;
    exited.rank = 0;
    exited.not_finalized = 1;
    runner.end_rank(exited);
  };
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = after_start(leave);
  SUBCASE("they wait for it") {
    launch.host("h2").script = run_until_stopped;
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == 1);
    CHECK(verdict.text ==
          "rank 0 on h1 (pid 1000) exited with code 0 without MPI_Finalize; ranks that communicate "
          "with it would hang");
    CHECK(verdict.ended_after == 1);
    CHECK(launch.events_named("cause").at(0)["what"] == "no_finalize");
    CHECK(launch.took >= std::chrono::seconds(5));
  }
  SUBCASE("they skip it, too") {
    launch.host("h1").script = [](FakeRunner& runner) -> awaitable<void> {
      const bool started = co_await runner.start();
      if (!started) co_return;
      wire::RankExited exited;
      exited.not_finalized = 1;
      runner.end_rank(exited);
      co_await runner.finish(false);
    };
    launch.host("h2").script = [](FakeRunner& runner) -> awaitable<void> {
      const bool started = co_await runner.start();
      if (!started) co_return;
      co_await runner.sleep(milliseconds(500));
      co_await runner.finish(false);
    };
    CHECK(launch.run().exit_code == 0);
  }
  CHECK(launch.shown.find("rank 0 on h1 exited with code 0 without MPI_Finalize; the other ranks "
                          "have 5 s\n") != std::string::npos);
}

TEST_CASE("fences and modex pass between hosts") {
  struct Mpi {
    static awaitable<void> run(FakeRunner& runner) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      wire::PmixFence fence;
      fence.key = "all-0";
      fence.node_count = 2;
      fence.data = runner.host();
      runner.send(fence);
      const bool fenced = co_await runner.until<wire::PmixFenceDone>();
      if (!fenced) co_return;
      co_await runner.finish(false);
    }
  };
  Launch launch({{"a", {0}}, {"b", {0}}});
  launch.host("a").script = launch.host("b").script = Mpi::run;
  CHECK(launch.run().exit_code == 0);
  for (const char* name : {"a", "b"})
    CHECK(launch.runner(name).all<wire::PmixFenceDone>().at(0).data == "ab");
}

TEST_CASE("a runner that could not start a rank") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = after_start([](FakeRunner& runner) {
    runner.send(wire::RunnerError{"spawn", "./ring: No such file or directory", 0});
  });
  launch.host("h2").script = run_until_stopped;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == kExitPreflight);
  CHECK(verdict.text == "h1: rank 0: ./ring: No such file or directory");
}

TEST_CASE("a process that no signal ends is a timeout, with the exit code of one") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = after_start([](FakeRunner& runner) {
    runner.send(wire::RunnerError{"timeout", "process 7 does not die of SIGKILL", 0});
  });
  launch.host("h2").script = run_until_stopped;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == exit_code_for(ErrorCode::timeout));
  CHECK(verdict.text == "h1: rank 0: process 7 does not die of SIGKILL");
  CHECK(launch.events_named("unconfirmed").size() == 1);
}

TEST_CASE("a runner gets heartbeats while it prepares a job for a long time") {
  struct Slow {
    static awaitable<void> run(FakeRunner& runner) {
      const bool prepared = co_await runner.prepare(milliseconds(300));
      if (!prepared) co_return;
      const bool started = co_await runner.until<wire::Start>();
      if (started) co_await runner.finish(false);
    }
  };
  Launch launch({{"slow", {0}}, {"quick", {0}}});
  launch.host("slow").script = Slow::run;
  launch.host("quick").script = succeed;
  CHECK(launch.run().exit_code == 0);
  int beats = 0;
  for (const auto& [time, message] : launch.runner("slow").received) {
    if (std::holds_alternative<wire::Start>(message)) break;
    beats += std::holds_alternative<wire::Heartbeat>(message);
  }
  CHECK(beats >= 3);
}

TEST_CASE("hosts without the current folder of the launcher are named once") {
  Launch launch({{"h1", {0}}, {"h2", {0}}, {"h3", {0}}});
  launch.host("h1").script = launch.host("h2").script = launch.host("h3").script = succeed;
  launch.host("h2").ready.no_work_dir = launch.host("h3").ready.no_work_dir = 1;
  CHECK(launch.run().exit_code == 0);
  CHECK(has(launch.shown, "warning: h[2-3]: the current folder of this machine, "));
  CHECK(test::count_of(launch.shown, "set runner.work_dir") == 1);
  CHECK(launch.runner("h1").job.need_work_dir == 0);

  Launch set({{"h1", {0}}});
  set.job.runner.work_dir = "/scratch";
  set.host("h1").script = succeed;
  CHECK(set.run().exit_code == 0);
  CHECK(set.runner("h1").job.need_work_dir == 1);
  CHECK(set.runner("h1").job.work_dir == "/scratch");
}

TEST_CASE("a container that was not removed is said, and the run ends as its ranks did") {
  struct Leaves {
    static awaitable<void> run(FakeRunner& runner) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      runner.exit_rank(0, 0);
      runner.send(wire::RunnerError{std::string(wire::kLeftBehind),
                                    "container still there: box; remove it", -1});
      co_await runner.finish(false);
    }
  };
  Launch launch({{"h1", {0}}});
  launch.host("h1").script = Leaves::run;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 0);
  CHECK(has(launch.shown, "h1: container still there: box; remove it"));
  CHECK(launch.events_named("unconfirmed").size() == 1);
}

TEST_CASE("output is acknowledged, so that a runner may go on") {
  constexpr int kPieces = 50;
  struct Chatty {
    static awaitable<void> run(FakeRunner& runner) {
      const bool started = co_await runner.start();
      if (!started) co_return;
      for (int i = 0; i < kPieces; ++i)
        runner.send(wire::Output{0, wire::Stream::out, std::string(32u << 10, 'x')});
      // Credit is sent when the log is written, by a separate thread.
      while (credit_of(runner) <= (kPieces - 4) * (32u << 10)) {
        const bool more = co_await runner.until<wire::OutputCredit>();
        if (!more) co_return;
      }
      co_await runner.finish(false);
    }
    static std::uint64_t credit_of(const FakeRunner& runner) {
      std::uint64_t credit = 0;
      for (const wire::OutputCredit& piece : runner.all<wire::OutputCredit>())
        credit += piece.bytes;
      return credit;
    }
  };
  Launch launch({{"h", {0}}});
  launch.host("h").script = Chatty::run;
  CHECK(launch.run().exit_code == 0);
  CHECK(Chatty::credit_of(launch.runner("h")) > (kPieces - 4) * (32u << 10));
  CHECK(std::filesystem::file_size(launch.run_folder / "logs/rank-0.out") == kPieces * (32u << 10));
}

}  // namespace
}  // namespace sortie::launcher
