// The watcher of a detached run: when it replaces a supervisor, and what the user sees of that.
// Real processes on this machine.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "launcher/control/supervisor_lock.h"
#include "launcher/control/watcher.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
using test::has;
using testing::Finished;
namespace fs = std::filesystem;

TEST_CASE("watcher: the first replacement comes at once, pauses grow, and a row has an end") {
  Replacements replacements(10);
  const auto quick = milliseconds(9'999);
  for (const int pause : {0, 500, 1000, 2000, 4000, 8000, 16'000, 30'000, 30'000, 30'000})
    CHECK(replacements.after(quick) == milliseconds(pause));
  CHECK_FALSE(replacements.after(quick));
  CHECK_FALSE(replacements.after(quick));
}

TEST_CASE("watcher: a supervisor that lived ten seconds begins a new row") {
  Replacements replacements(2);
  for (int i = 0; i < 100; ++i) CHECK(replacements.after(milliseconds(10'000)) == milliseconds(0));
  CHECK(replacements.after(milliseconds(1)) == milliseconds(500));
  CHECK_FALSE(replacements.after(milliseconds(1)));
  CHECK(replacements.after(milliseconds(10'001)) == milliseconds(0));
  CHECK_FALSE(Replacements(0).after(milliseconds(60'000)));
}

/// A detached run on this machine with on_launcher_loss = hold. It runs until open().
struct WatchedRun {
  test::ScopedTempDir dir;
  fs::path folder;

  explicit WatchedRun(const std::vector<std::string>& settings = {}) {
    std::vector<std::string> words = {"run", "--detach", "--slots", "2"};
    for (const char* setting :
         {"runner.mpi=off", "runner.grace=1s", "runner.heartbeat_interval=100ms",
          "runner.on_launcher_loss=hold 60s"})
      words.insert(words.end(), {"--set", setting});
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    words.insert(words.end(),
                 {"--", "/bin/sh", "-c",
                  "until test -e " + dir.str("go") + "; do sleep 0.05; done; echo done"});
    const Finished started = sortie(words);
    REQUIRE_MESSAGE(started.code == 0, started.output);
    folder = fs::canonical(fs::path(dir.str("state")) / "sortie/runs/latest");
  }
  ~WatchedRun() {
    if (const auto watcher = watcher_of(folder); watcher.alive) ::kill(watcher.pid, SIGCONT);
    open();
    if (!fs::exists(folder / "result.json")) (void)sortie({"stop", "--now", "last"});
  }
  std::vector<std::string> argv(std::vector<std::string> words) const {
    words.insert(words.begin(), {"/usr/bin/env", "XDG_STATE_HOME=" + dir.str("state"),
                                 "/usr/bin/timeout", "60", SORTIE_BINARY});
    return words;
  }
  Finished sortie(const std::vector<std::string>& words) const { return testing::run(argv(words)); }
  void open() const { std::ofstream(dir.path() / "go") << "\n"; }
  std::string log() const { return test::read_text(folder / "supervisor.log"); }
  std::string events() const { return test::read_text(folder / "events.jsonl"); }
  std::size_t adoptions() const {
    std::size_t count = 0;
    for (std::size_t at = 0; (at = events().find("\"event\":\"adopted\"", at)) != std::string::npos;
         ++at)
      ++count;
    return count;
  }
  void wait_until(const char* what, const std::function<bool()>& condition) const {
    for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(10));
    REQUIRE_MESSAGE(condition(), what << "\n" << log());
  }
  /// Kills the supervisor of that epoch once it is in charge.
  void kill_supervisor(unsigned epoch) const {
    wait_until("a supervisor in charge",
               [&] { return supervisor_of(folder, epoch).alive && adoptions() + 1 >= epoch; });
    REQUIRE(::kill(supervisor_of(folder, epoch).pid, SIGKILL) == 0);
  }
};

TEST_CASE("watcher: a supervisor that is killed five times is replaced five times") {
  const WatchedRun run;
  CHECK(watcher_of(run.folder).alive);
  testing::Child attached(run.argv({"attach", "--from-start", "last"}), run.dir.str("attached"));
  for (unsigned epoch = 1; epoch <= 5; ++epoch) run.kill_supervisor(epoch);
  run.wait_until("the sixth supervisor", [&] { return run.adoptions() == 5; });
  const auto watcher = watcher_of(run.folder);
  run.open();
  while (attached.running()) std::this_thread::sleep_for(milliseconds(10));
  const std::string shown = test::read_text(run.dir / "attached");
  CHECK(has(shown, "[0 localhost] done"));
  CHECK(has(shown, "[1 localhost] done"));
  CHECK(has(shown, "its watcher starts another one"));
  CHECK(has(shown, "ended with exit code 0"));
  CHECK(run.sortie({"attach", "last"}).code == 0);
  CHECK(has(run.sortie({"status", "last"}).output, "ended 0"));
  CHECK(has(run.log(), "signal 9 (SIGKILL); another one starts now"));
  CHECK(has(run.log(), "another one starts in 4000 ms"));
  run.wait_until("the end of the watcher", [&] { return ::kill(watcher.pid, 0) != 0; });
  CHECK_FALSE(fs::exists(run.folder / "watcher-1"));
}

/// True if the signal is pending for that process.
bool is_pending(pid_t pid, int signal) {
  std::istringstream lines(test::read_text("/proc/" + std::to_string(pid) + "/status"));
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("ShdPnd:"))
      return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  return false;
}

TEST_CASE("watcher: stop between two supervisors ends the run") {
  const WatchedRun run;
  for (unsigned epoch = 1; epoch <= 4; ++epoch) run.kill_supervisor(epoch);
  // The next supervisor would start in 2 s. Stopping the watcher delays it for the time of this
  // check.
  run.wait_until("the pause", [&] { return has(run.log(), "in 2000 ms"); });
  const pid_t watcher = watcher_of(run.folder).pid;
  REQUIRE(::kill(watcher, SIGSTOP) == 0);
  CHECK(has(run.sortie({"ps"}).output, "orphaned"));
  testing::Child stop(run.argv({"stop", "last"}), run.dir.str("stopped"));
  run.wait_until("the order not to wait", [&] { return is_pending(watcher, SIGUSR1); });
  REQUIRE(::kill(watcher, SIGCONT) == 0);
  siginfo_t end{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(stop.pid()), &end, WEXITED | WNOWAIT) == 0);
  const std::string stopped = test::read_text(run.dir / "stopped");
  CHECK_MESSAGE((end.si_code == CLD_EXITED && end.si_status == 0), stopped);
  CHECK(has(stopped, "ended with exit code 143"));
  run.wait_until("no watcher", [&] { return !watcher_of(run.folder).alive; });
}

TEST_CASE("watcher: a run whose supervisor's file was removed is watched, adopted and stopped") {
  const WatchedRun run;
  const SupervisorFacts first = supervisor_of(run.folder, 1);
  fs::remove(supervisor_file(run.folder, 1));
  const auto shows_it_running = [&](const char* file) {
    const std::string shown = run.sortie({"status", "last"}).output;
    for (const std::string& part :
         {std::string("  running\n"), std::string("its file ") + file + " was removed\n"})
      CHECK_MESSAGE(has(shown, part), shown);
    CHECK_MESSAGE(!has(shown, "trouble"), shown);
    CHECK_MESSAGE(!has(shown, "started     -"), shown);
  };
  shows_it_running("supervisor-1");
  SUBCASE("the first one") {}
  SUBCASE("that of the one that adopted it, too") {
    REQUIRE(::kill(first.pid, SIGKILL) == 0);
    run.wait_until("the second supervisor", [&] { return run.adoptions() == 1; });
    CHECK(supervisor_of(run.folder, 2).pid > 0);
    CHECK_MESSAGE(!has(run.log(), "can not reach this run"), run.log());
    fs::remove(supervisor_file(run.folder, 2));
    shows_it_running("supervisor-2");
  }
  const Finished stopped = run.sortie({"stop", "last"});
  CHECK_MESSAGE(stopped.code == 0, stopped.output);
  CHECK_MESSAGE(has(stopped.output, "ended with exit code 143"), stopped.output);
}

TEST_CASE("watcher: one that is killed harms nothing") {
  const WatchedRun run;
  const auto watcher = watcher_of(run.folder);
  REQUIRE(watcher.alive);
  REQUIRE(::kill(watcher.pid, SIGKILL) == 0);
  run.wait_until("its end", [&] { return !watcher_of(run.folder).alive; });
  CHECK(has(run.sortie({"ps"}).output, "running"));
  run.open();
  CHECK(run.sortie({"attach", "last"}).code == 0);
}

TEST_CASE(
    "watcher: supervisors that die at their start are given up, and the run is left to a person") {
  const WatchedRun run({"recovery.supervisor_restarts=3"});
  fs::rename(run.folder / "config.toml", run.folder / "away");
  run.kill_supervisor(1);
  run.wait_until("the end of the watcher", [&] { return has(run.log(), "4 in a row have lived"); });
  run.wait_until("no watcher", [&] { return !watcher_of(run.folder).alive; });
  CHECK(has(run.log(), "attach --adopt"));
  CHECK(has(run.log(), "config.toml"));
  const Finished attached = run.sortie({"attach", "last"});
  CHECK(attached.code == 5);
  CHECK(has(attached.output, "attach --adopt"));
  fs::rename(run.folder / "away", run.folder / "config.toml");
  run.open();
  const Finished adopted = run.sortie({"attach", "--adopt", "last"});
  CHECK_MESSAGE(adopted.code == 0, adopted.output);
}

TEST_CASE("watcher: none where nothing could go on, or where none is wanted") {
  SUBCASE("hosts end their ranks, and nothing restarts them") {
    const WatchedRun run({"runner.on_launcher_loss=kill"});
    CHECK_FALSE(watcher_of(run.folder).alive);
  }
  SUBCASE("it is turned off") {
    const WatchedRun run({"recovery.supervisor_restarts=0"});
    CHECK_FALSE(watcher_of(run.folder).alive);
  }
}

}  // namespace
}  // namespace sortie::launcher
