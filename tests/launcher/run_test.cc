// `sortie run` on this machine: real processes, no sshd.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/child.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::has;

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::Finished;

struct State {
  test::ScopedTempDir dir;
  // Failures are noted for all runs of a user: not in the state of the one who tests.
  test::ScopedVariable home{"XDG_STATE_HOME", dir.str("state")};
  std::vector<std::string> command(std::vector<std::string> program, int slots = 1) const {
    std::vector<std::string> argv = {SORTIE_BINARY, "run",
                                     "--slots",     std::to_string(slots),
                                     "--set",       "logger.log_dir=" + dir.path().string(),
                                     "--set",       "runner.mpi=off"};
    argv.push_back("--");
    argv.insert(argv.end(), program.begin(), program.end());
    return argv;
  }
  fs::path run() const { return dir.path() / "runs" / "latest"; }
};

bool wait_for(const auto& condition, milliseconds limit = milliseconds(60000)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return true;
}

TEST_CASE("a run whose folder can not be filled leaves none") {
  const State state;
  // Any write to a file fails, as on a full disk.
  const Finished result = testing::run(
      {"/bin/sh", "-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\" 2>&1 | cat", "sh", SORTIE_BINARY,
       "run", "--set", "logger.log_dir=" + state.dir.path().string(), "--", "true"});
  CHECK_MESSAGE(has(result.output, "File too large"), result.output);
  REQUIRE(fs::exists(state.dir / "runs"));
  CHECK(fs::is_empty(state.dir / "runs"));
}

TEST_CASE("a work folder that is set must exist, and no rank runs elsewhere") {
  const State state;
  const auto run_in = [&](const std::string& folder) {
    return testing::run({SORTIE_BINARY, "run", "--set", "runner.work_dir=" + folder, "--set",
                         "logger.log_dir=" + state.dir.path().string(), "--", "pwd", "-P"});
  };
  const Finished absent = run_in(state.dir.str("absent"));
  CHECK(absent.code == 3);
  CHECK(has(absent.output, "localhost: "));
  CHECK(has(absent.output, "runner.work_dir: " + state.dir.str("absent") +
                               ": No such file or directory; create that folder"));
  const Finished there = run_in("/usr");
  CHECK(there.code == 0);
  CHECK(has(there.output, "/usr\n"));
  // The launcher's own folder was deleted.
  const Finished deleted =
      testing::run({"/bin/sh", "-c",
                    "cd \"$1\" && shift && mkdir gone && cd gone && rmdir ../gone && exec \"$@\"",
                    "sh", state.dir.path().string(), SORTIE_BINARY, "run", "--set",
                    "logger.log_dir=" + state.dir.path().string(), "--", "true"});
  CHECK(deleted.code == 0);
  CHECK(has(deleted.output, "warning: the current folder does not exist any more"));
}

TEST_CASE("a run leaves everything behind in its folder") {
  const State state;
  const Finished result =
      testing::run(state.command({"/bin/sh", "-c", "echo hello $RANK; echo oops >&2"}, 2));
  CHECK(result.code == 0);
  CHECK(has(result.output, "[0 localhost] hello 0\n"));
  CHECK(has(result.output, "[1 localhost] hello 1\n"));
  CHECK(has(result.output, "[1 localhost] oops\n"));
  for (const char* name :
       {"config.toml", "plan.json", "events.jsonl", "logs/rank-0.out", "logs/rank-1.err"})
    CHECK_MESSAGE(fs::exists(state.run() / name), name);
  CHECK(test::read_text(state.run() / "logs/rank-1.out") == "hello 1\n");
  CHECK(nlohmann::json::parse(test::read_text(state.run() / "plan.json"))["world_size"] == 2);
}

TEST_CASE("the exit code is that of the rank, the report has its last words") {
  const State state;
  const Finished three = testing::run(state.command({"/bin/sh", "-c", "echo too bad >&2; exit 3"}));
  CHECK(three.code == 3);
  CHECK(has(three.output, "failed with exit code 3\n  its last lines on stderr:\n    too bad\n"));
  const Finished killed = testing::run(state.command({"/bin/sh", "-c", "kill -9 $$"}));
  CHECK(killed.code == 137);
  CHECK(testing::run(state.command({"/nonexistent/program"})).code == 3);  // spawn: preflight
}

/// Starts a run, sends `number` to sortie once the program is ready, and returns sortie's exit
/// code. The program exits by itself only after the signal, and only if `is_ignored`.
int signal_a_run(const State& state, const std::string& env_option, int number,
                 bool is_ignored = false) {
  const std::string marker = state.dir.str("ready");
  std::vector<std::string> argv = {"/usr/bin/env", env_option};
  for (const std::string& word :
       state.command({"/bin/sh", "-c",
                      ": > \"$0\"; until [ -e \"$0.go\" ]; do sleep 0.05; done; exit 0", marker}))
    argv.push_back(word);
  testing::Child child(argv, state.dir.str("log"));
  REQUIRE(wait_for([&] { return fs::exists(marker); }));
  ::kill(child.pid(), number);
  if (is_ignored) test::write_text(marker + ".go", "");
  siginfo_t info{};
  REQUIRE(wait_for([&] {
    return ::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOHANG | WNOWAIT) ==
               0 &&
           info.si_pid != 0;
  }));
  return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

TEST_CASE("signals end a run, but not those that the parent has had ignored") {
  CHECK(signal_a_run(State(), "--default-signal=INT", SIGINT) == 130);
  CHECK(signal_a_run(State(), "--default-signal=HUP", SIGHUP) == 129);
  CHECK(signal_a_run(State(), "--ignore-signal=HUP", SIGHUP, true) == 0);  // as nohup does
}

}  // namespace
}  // namespace sortie::launcher
