// `sortie run --detach`, and the verbs that find the run later. Real processes on this machine.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::has;

namespace fs = std::filesystem;
using testing::Finished;

struct Machine {
  test::ScopedTempDir dir;
  std::vector<std::string> argv(std::vector<std::string> words) const {
    words.insert(words.begin(), {"/usr/bin/env", "XDG_STATE_HOME=" + dir.str("state"),
                                 "/usr/bin/timeout", "30", SORTIE_BINARY});
    return words;
  }
  Finished sortie(const std::vector<std::string>& words) const { return testing::run(argv(words)); }
  Finished detach(const std::string& script, int slots = 1) const {
    return sortie({"run", "--detach", "--slots", std::to_string(slots), "--set", "runner.mpi=off",
                   "--set", "runner.grace=2s", "--", "/bin/sh", "-c", script});
  }
  fs::path run() const { return fs::path(dir.str("state")) / "sortie/runs/latest"; }
  ~Machine() {
    if (fs::exists(run() / "plan.json") && !fs::exists(run() / "result.json"))
      (void)sortie({"stop", "--now", "last"});
  }
};

TEST_CASE("detach: the run lives on, is listed, followed, attached to and stopped") {
  const Machine machine;
  const Finished started = machine.detach("echo up $RANK; exec sleep 100", 2);
  REQUIRE_MESSAGE(started.code == 0, started.output);
  CHECK(has(started.output, "sortie attach 20"));
  const Finished listed = machine.sortie({"ps", "--json"});
  const auto runs = nlohmann::json::parse(listed.output)["runs"];
  REQUIRE(runs.size() == 1);
  CHECK(runs[0]["state"] == "running");
  CHECK(runs[0]["ranks"] == 2);
  const auto status = nlohmann::json::parse(machine.sortie({"status", "--json", "last"}).output);
  CHECK(status["answers"] == true);
  CHECK(status["hosts"][0]["ranks"][1]["state"] == "running");
  testing::Child first(machine.argv({"attach", "--from-start", "last"}), machine.dir.str("first"));
  testing::Child logs(machine.argv({"logs", "-f", "--rank", "1", "last"}), machine.dir.str("logs"));
  while (!has(test::read_text(machine.dir / "first"), "[1 localhost] up 1"))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const Finished stopped = machine.sortie({"stop", "last"});
  CHECK(stopped.code == 0);
  CHECK(has(stopped.output, "ended with exit code 143"));
  for (testing::Child* child : {&first, &logs})
    while (child->running()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(has(test::read_text(machine.dir / "first"), "ended with exit code 143"));
  CHECK(test::read_text(machine.dir / "logs") == "[1 localhost] up 1\n");
  CHECK(machine.sortie({"attach", "last"}).code == 143);
  CHECK(has(machine.sortie({"stop", "last"}).output, "had ended already"));
  CHECK_FALSE(fs::exists(machine.run() / "control-1.sock"));
}

TEST_CASE("detach: a start that fails is the command's own failure") {
  const Machine machine;
  const Finished missing = machine.sortie({"run", "--detach", "--", "/no/such/program"});
  CHECK(missing.code == 3);
  CHECK(has(missing.output, "cannot start /no/such/program"));
  const Finished nowhere =
      machine.sortie({"run", "--detach", "--hosts", "nowhere.invalid", "--", "true"});
  CHECK(nowhere.code == 4);
  CHECK(has(nowhere.output, "nowhere.invalid: resolve"));
  CHECK(machine.sortie({"attach", "last"}).code == 4);
  CHECK(has(machine.sortie({"ps"}).output, "no run is alive"));
}

TEST_CASE("attach: the exit code of a run that ended before, and Ctrl-C that leaves it running") {
  const Machine machine;
  REQUIRE(machine.detach("exit 7").code == 0);
  CHECK(machine.sortie({"attach", "last"}).code == 7);
  REQUIRE(machine.detach("sleep 100").code == 0);
  const std::string shown = machine.dir.str("shown");
  testing::Child attached({"/usr/bin/env", "XDG_STATE_HOME=" + machine.dir.str("state"),
                           SORTIE_BINARY, "attach", "last"},
                          shown);
  while (!has(test::read_text(shown), "attached to"))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  REQUIRE(::kill(attached.pid(), SIGINT) == 0);
  siginfo_t left{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(attached.pid()), &left, WEXITED | WNOWAIT) == 0);
  CHECK(left.si_code == CLD_EXITED);
  CHECK(left.si_status == 130);
  CHECK(has(test::read_text(shown), "detached; "));
  CHECK(has(machine.sortie({"ps"}).output, "running"));
}

TEST_CASE("a supervisor that was killed leaves a lost run, and attach says so with exit code 5") {
  const Machine machine;
  REQUIRE(machine.detach("sleep 100").code == 0);
  testing::Child attached(machine.argv({"attach", "last"}), machine.dir.str("attached"));
  while (!has(test::read_text(machine.dir / "attached"), "attached to"))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto status = nlohmann::json::parse(machine.sortie({"status", "--json", "last"}).output);
  ::kill(status["supervisor"]["pid"].get<pid_t>(), SIGKILL);
  while (attached.running()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(has(test::read_text(machine.dir / "attached"), "died without a result"));
  CHECK(machine.sortie({"attach", "last"}).code == 5);
  CHECK(has(machine.sortie({"ps"}).output, "lost"));
  CHECK(machine.sortie({"stop", "last"}).code == 5);
  const auto rank = status["hosts"][0]["ranks"][0]["pid"].get<pid_t>();
  for (int i = 0; i < 3000 && ::kill(rank, 0) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(::kill(rank, 0) != 0);  // ended by its runner
}

}  // namespace
}  // namespace sortie::launcher
