// Runs without a supervisor whose ranks may still be held by hosts: which ones `prune` keeps, and
// why.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "launcher/control/prune.h"
#include "launcher/control/supervisor_lock.h"
#include "launcher/run/run_folder.h"
#include "tests/support/patience.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using test::has;

/// A run started on `machine` that has no supervisor any more. Its files are three days old.
struct LostRun {
  static constexpr const char* kId = "20260104-000000-dddd";
  test::ScopedTempDir dir;
  fs::path run = dir.path() / "runs" / kId;

  explicit LostRun(const std::string& on_launcher_loss,
                   const std::string& machine = machine_name()) {
    const std::string plan = R"({"argv":["a"],"hosts":[{"name":"h1","ranks":[{"rank":0}]}]})";
    for (const char* folder : {"", "attempts/2", "sites/oslo", "sites/oslo/attempts/2"}) {
      test::write_text(run / folder / "plan.json", plan);
      for (const char* name : {"events.jsonl", "metrics.jsonl", "logs/rank-0.out", "logs/times"})
        test::write_text(run / folder / name, "");
    }
    test::write_text(run / "sites/names", "oslo\n");
    test::write_text(run / "config.toml",
                     "[runner]\non_launcher_loss = \"" + on_launcher_loss + "\"\n");
    test::write_text(run / "supervisor-1",
                     R"({"pid":1,"machine":")" + machine + R"(","started":1})");
    for (const auto& entry : fs::recursive_directory_iterator(run)) sign(entry.path(), 72);
    sign(run, 72);
  }
  static void sign(const fs::path& file, double hours_ago) {
    const std::chrono::duration<double, std::ratio<3600>> age(hours_ago);
    fs::last_write_time(file, fs::file_time_type::clock::now() -
                                  std::chrono::duration_cast<std::chrono::seconds>(age));
  }
  /// Output of `prune --older-than 12h`.
  std::string prune_old() const {
    const auto said = prune({dir.path().string(), -1, "12h", false});
    return said ? *said : said.error().message;
  }
};

TEST_CASE("prune: what the ranks of any attempt and site write is a sign of life") {
  for (const char* folder : {"", "attempts/2", "sites/oslo", "sites/oslo/attempts/2"})
    for (const char* name : {"metrics.jsonl", "logs/rank-0.out", "logs/times"}) {
      if (std::string(folder).ends_with("2") && std::string(name) == "metrics.jsonl") continue;
      CAPTURE(folder);
      CAPTURE(name);
      const LostRun lost("hold 2h");
      LostRun::sign(lost.run / folder / name, 1.005);
      const std::string said = lost.prune_old();
      CHECK_MESSAGE(has(said, "last sign of life 1h00m ago"), said);
      CHECK(fs::exists(lost.run));
    }
  const LostRun lost("hold 2h");
  CHECK(has(lost.prune_old(), "1 of 1 runs removed"));
  CHECK_FALSE(fs::exists(lost.run));
}

TEST_CASE("prune: a run that hosts may hold says for how long, and what can be done with it") {
  const LostRun lost("hold 4h");
  LostRun::sign(lost.run / "logs/times", 2.99);
  const std::string said = lost.prune_old();
  for (const char* part :
       {"its hosts may hold ranks for 1h10m more", "attach --adopt 20260104-000000-dddd",
        "stop 20260104-000000-dddd", "it can go in 21h00m"})
    CHECK_MESSAGE(has(said, part), said);
  LostRun::sign(lost.run / "logs/times", 4.99);
  const std::string later = lost.prune_old();
  CHECK_MESSAGE(has(later, "its hosts may have ranks; it can go in 19h00m"), later);
}

TEST_CASE("prune: a run stays as long as its hosts may hold ranks, though that is a day") {
  const LostRun lost("hold 24h"), unknown("rubbish"), none("kill");
  for (const LostRun* each : {&lost, &unknown, &none})
    LostRun::sign(each->run / "logs/times", 24.06);
  CHECK(has(lost.prune_old(), "its hosts may hold ranks for 6m"));
  CHECK(has(unknown.prune_old(), "0 of 1 runs removed"));
  CHECK(has(none.prune_old(), "1 of 1 runs removed"));
}

TEST_CASE("prune: a run of another machine may live there, whatever its lock looks like here") {
  const LostRun lost("kill", "elsewhere");
  LostRun::sign(lost.run / "logs/times", 13);
  const std::string said = lost.prune_old();
  CHECK_MESSAGE(has(said, "its supervisor may live on elsewhere"), said);
  CHECK(fs::exists(lost.run));
}

TEST_CASE("a supervisor whose ranks are silent leaves a sign of life all the same") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  const fs::path logs = folder->path() / "logs";
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(48);
  fs::last_write_time(logs, old);
  const auto begin = std::chrono::steady_clock::now();
  while (fs::last_write_time(logs) < old + std::chrono::hours(1) &&
         std::chrono::steady_clock::now() - begin < test::patient(std::chrono::milliseconds(5000)))
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(fs::last_write_time(logs) > old + std::chrono::hours(47));
}

}  // namespace
}  // namespace sortie::launcher
