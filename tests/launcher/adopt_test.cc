// Runs whose supervisor died and that have no watcher: adopting and stopping them. Real processes
// on this machine.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "launcher/control/supervisor_lock.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
using test::has;
using testing::Finished;
namespace fs = std::filesystem;

struct UnwatchedRun {
  test::ScopedTempDir dir;

  ~UnwatchedRun() {
    if (fs::exists(run() / "plan.json") && !fs::exists(run() / "result.json"))
      (void)sortie({"stop", "--now", "last"});
  }
  std::vector<std::string> argv(std::vector<std::string> words, const std::string& variable) const {
    words.insert(words.begin(),
                 {"/usr/bin/env", "-u", "HF_TOKEN", "XDG_STATE_HOME=" + dir.str("state"), variable,
                  "/usr/bin/timeout", "60", SORTIE_BINARY});
    return words;
  }
  Finished sortie(const std::vector<std::string>& words) const {
    return testing::run(argv(words, "NO_TOKEN=1"));
  }
  std::vector<std::string> job(const std::string& script,
                               const std::vector<std::string>& options = {},
                               const std::string& passed = "HF_TOKEN") const {
    std::vector<std::string> words = {"run"};
    words.insert(words.end(), options.begin(), options.end());
    for (const char* setting :
         {"runner.mpi=off", "runner.grace=1s", "runner.heartbeat_interval=100ms",
          "runner.on_launcher_loss=hold 60s", "recovery.supervisor_restarts=0",
          "recovery.backoff=0s"})
      words.insert(words.end(), {"--set", setting});
    words.insert(words.end(), {"--set", "runner.env_passthrough=[\"" + passed + "\"]"});
    words.insert(words.end(), {"--", "/bin/sh", "-c", script});
    return words;
  }
  fs::path run() const { return fs::path(dir.str("state")) / "sortie/runs/latest"; }
  nlohmann::json status() const {
    return nlohmann::json::parse(sortie({"status", "--json", "last"}).output, nullptr, false);
  }
  static void wait_until(const char* what, const std::function<bool()>& condition) {
    for (int i = 0; i < 3000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(10));
    REQUIRE_MESSAGE(condition(), what);
  }
  void kill_supervisor() const {
    REQUIRE(::kill(latest_supervisor(run()).pid, SIGKILL) == 0);
    wait_until("no supervisor", [&] { return !latest_supervisor(run()).alive; });
  }
};

TEST_CASE("adopt: without a secret that came by env_passthrough there is no other attempt") {
  const UnwatchedRun run;
  const std::string script = "echo \"attempt $SORTIE_ATTEMPT token=[$HF_TOKEN]\"; until test -e " +
                             run.dir.str("go") + "; do sleep 0.05; done; [ $SORTIE_ATTEMPT != 1 ]";
  const Finished started = testing::run(run.argv(
      run.job(script, {"--detach", "--set", "recovery.max_restarts=1"}), "HF_TOKEN=abc123"));
  REQUIRE_MESSAGE(started.code == 0, started.output);
  run.kill_supervisor();
  std::ofstream(run.dir / "go") << "\n";
  SUBCASE("it is missing") {
    const Finished adopted = run.sortie({"attach", "--adopt", "last"});
    CHECK_MESSAGE(adopted.code != 0, adopted.output);
    CHECK_MESSAGE(has(adopted.output, "HF_TOKEN: "), adopted.output);
    CHECK_FALSE(fs::exists(run.run() / "attempts/2/plan.json"));
  }
  SUBCASE("the adopter has it") {
    const Finished adopted =
        testing::run(run.argv({"attach", "--adopt", "last"}, "HF_TOKEN=abc123"));
    CHECK_MESSAGE(adopted.code == 0, adopted.output);
    CHECK(test::read_text(run.run() / "attempts/2/logs/rank-0.out") ==
          "attempt 2 token=[abc123]\n");
  }
}

TEST_CASE("adopt: an argument or variable that no file keeps exactly is in no other attempt") {
  const UnwatchedRun run;
  const std::string script = "echo up; until test -e " + run.dir.str("go") +
                             "; do sleep 0.05; done; [ $SORTIE_ATTEMPT != 1 ]";
  auto words = run.job(script, {"--detach", "--set", "recovery.max_restarts=1"}, "CITY");
  std::string variable = "CITY=Z\xFCrich", what = "variable CITY has bytes that are not UTF-8";
  SUBCASE("a variable") {}
  SUBCASE("an argument") {
    variable = "CITY=Z\u00FCrich";
    words.push_back("\xFF");
    what = "word 4 of runner.program has bytes that are not UTF-8";
  }
  const Finished started = testing::run(run.argv(words, variable));
  REQUIRE_MESSAGE(started.code == 0, started.output);
  run.kill_supervisor();
  std::ofstream(run.dir / "go") << "\n";
  const Finished adopted = run.sortie({"attach", "--adopt", "last"});
  CHECK_MESSAGE(adopted.code != 0, adopted.output);
  CHECK_MESSAGE(has(adopted.output, what), adopted.output);
  CHECK_FALSE(fs::exists(run.run() / "attempts/2/plan.json"));
}

TEST_CASE("adopt: an attempt ended when its supervisor died, and not when the run is adopted") {
  const UnwatchedRun run;
  auto words = run.job("[ $SORTIE_ATTEMPT != 1 ] || exec sleep 1000",
                       {"--detach", "--set", "recovery.max_restarts=1"});
  std::ranges::replace(words, "runner.on_launcher_loss=hold 60s", "runner.on_launcher_loss=kill");
  const Finished started = testing::run(run.argv(words, "NO_TOKEN=1"));
  REQUIRE_MESSAGE(started.code == 0, started.output);
  run.kill_supervisor();
  // Two hours ago it began, one hour ago its supervisor died.
  std::istringstream lines(test::read_text(run.run() / "events.jsonl"));
  std::string earlier;
  for (std::string line; std::getline(lines, line);) {
    auto event = nlohmann::ordered_json::parse(line);
    event["time"] = event["time"].get<double>() - 7200;
    earlier += event.dump() + "\n";
  }
  test::write_text(run.run() / "events.jsonl", earlier);
  const auto death = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const auto& entry : fs::recursive_directory_iterator(run.run()))
    if (!entry.is_symlink() && !entry.is_socket()) fs::last_write_time(entry.path(), death);
  fs::last_write_time(run.run(), death);
  const Finished adopted = run.sortie({"attach", "--adopt", "last"});
  CHECK_MESSAGE(adopted.code == 0, adopted.output);
  const auto report = nlohmann::json::parse(run.sortie({"report", "--json", "last"}).output);
  REQUIRE(report["attempts"].size() == 2);
  const double lasted = report["attempts"][0]["ended_s"].get<double>();
  CHECK(lasted > 3600 - 60);
  CHECK(lasted < 3600 + 120);
}

TEST_CASE("stop: a run that lost its supervisor is adopted and ended, since hosts hold its ranks") {
  const UnwatchedRun run;
  testing::Child attached(run.argv(run.job("echo up; exec sleep 1000"), "NO_TOKEN=1"),
                          run.dir.str("shown"));
  run.wait_until("its rank", [&] { return has(test::read_text(run.dir / "shown"), "up\n"); });
  pid_t rank = 0;
  run.wait_until("its rank in the journal", [&] {
    rank = run.status()["hosts"][0]["ranks"][0]["pid"].get<pid_t>();
    return rank > 0;
  });
  run.kill_supervisor();
  CHECK(::kill(rank, 0) == 0);
  SUBCASE("from here") {
    const Finished stopped = run.sortie({"stop", "last"});
    CHECK_MESSAGE(stopped.code == 0, stopped.output);
    CHECK_MESSAGE(has(stopped.output, "ended with exit code 143"), stopped.output);
    CHECK(::kill(rank, 0) != 0);
  }
  SUBCASE("from here, without the file of its supervisor") {
    fs::remove(supervisor_file(run.run(), 1));
    const Finished stopped = run.sortie({"stop", "last"});
    CHECK_MESSAGE(stopped.code == 0, stopped.output);
    CHECK(::kill(rank, 0) != 0);
  }
  SUBCASE("its config can not be read: what to do, and the rank lives") {
    fs::rename(run.run() / "config.toml", run.dir / "away");
    const Finished stopped = run.sortie({"stop", "last"});
    fs::rename(run.dir / "away", run.run() / "config.toml");
    CHECK(stopped.code == 5);
    CHECK_MESSAGE(has(stopped.output, "config.toml"), stopped.output);
    CHECK(::kill(rank, 0) == 0);
  }
}

TEST_CASE("stop, adopt: a supervisor without a trace in its folder is not taken for a dead one") {
  const UnwatchedRun run;
  const Finished started =
      testing::run(run.argv(run.job("exec sleep 1000", {"--detach"}), "NO_TOKEN=1"));
  REQUIRE_MESSAGE(started.code == 0, started.output);
  const pid_t supervisor = latest_supervisor(run.run()).pid;
  for (const char* name : {"supervisor-1", "control-1.sock"}) fs::remove(run.run() / name);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"stop", "last"}, {"attach", "--adopt", "last"}}) {
    const Finished refused = run.sortie(words);
    CHECK(refused.code == 5);
    CHECK_MESSAGE(
        has(refused.output, "its files were removed, but a process has locked its folder"),
        refused.output);
  }
  REQUIRE(::kill(supervisor, SIGTERM) == 0);
  run.wait_until("the end", [&] { return fs::exists(run.run() / "result.json"); });
}

TEST_CASE("stop: a run that can not be adopted here says how long its ranks are held") {
  const test::ScopedTempDir dir;
  const fs::path run = dir.path() / "sortie/runs/20260104-000000-dddd";
  test::write_text(run / "plan.json",
                   R"({"argv":["a"],"hosts":[{"name":"h1","ranks":[{"rank":0}]}]})");
  test::write_text(run / "config.toml", "[runner]\non_launcher_loss = \"hold 1h\"\n");
  const auto stop = [&](const std::string& machine, double hours_ago) {
    test::write_text(run / "supervisor-1",
                     R"({"pid":1,"machine":")" + machine + R"(","started":1})");
    const auto ago = std::chrono::seconds(static_cast<int>(hours_ago * 3600));
    for (const fs::path& file : {run, run / "plan.json", run / "config.toml"})
      fs::last_write_time(file, fs::file_time_type::clock::now() - ago);
    return testing::run(
        {"/usr/bin/env", "XDG_STATE_HOME=" + dir.path().string(), SORTIE_BINARY, "stop", "dddd"});
  };
  const Finished elsewhere = stop("elsewhere", 0.49);
  CHECK(elsewhere.code == 5);
  for (const char* part : {"its supervisor ran on elsewhere", "for 40m", " attach --adopt 2026",
                           " stop 20260104-000000-dddd"})
    CHECK_MESSAGE(has(elsewhere.output, part), elsewhere.output);
  const Finished over = stop(machine_name(), 3);
  CHECK(over.code == 5);
  CHECK_MESSAGE(has(over.output, "have held its ranks for 1h00m; there is nothing to stop"),
                over.output);
}

}  // namespace
}  // namespace sortie::launcher
