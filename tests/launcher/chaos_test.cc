// `sortie chaos`: which faults it injects, and that they affect only ranks of the run.
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "launcher/chaos/fault.h"
#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

using test::contains;
using test::shell;
using testing::Finished;

const std::vector<Victim> kRunning = {
    {0, "h1", 100, "", "run-7"}, {1, "h1", 101, "", "run-7"}, {2, "h2", 100, "", "run-7"}};

TEST_CASE("chaos: the same faults for the same seed, all kinds and all ranks in time") {
  const auto kinds = *parse_faults("kill,stop,supervisor,kill");
  CHECK(kinds.size() == 3);
  FaultSource one(7, kinds), again(7, kinds), other(8, kinds);
  std::set<std::string> seen;
  int differs = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string text = fault_text(*one.next(kRunning));
    CHECK(text == fault_text(*again.next(kRunning)));
    if (text != fault_text(*other.next(kRunning))) ++differs;
    seen.insert(text);
  }
  CHECK(seen.size() == 2 * kRunning.size() + 1);
  CHECK(seen.contains("stop rank 2 on h2 (pid 100)"));
  CHECK(seen.contains("supervisor killed"));
  CHECK(differs > 100);
}

TEST_CASE("chaos: a link is that of a rank's host") {
  FaultSource source(7, *parse_faults("link"));
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) seen.insert(fault_text(*source.next(kRunning)));
  CHECK(seen == std::set<std::string>{"link to h1 cut", "link to h2 cut"});
  CHECK_FALSE(source.next({}));
}

TEST_CASE("chaos: of a rank of a site the site is named") {
  CHECK(fault_text({FaultKind::kill, Victim{0, "h3", 7, "oslo", "run-7-s1"}}) ==
        "kill rank 0 of site oslo on h3 (pid 7)");
}

TEST_CASE("chaos: what can not happen does not, and changes nothing of what comes later") {
  FaultSource ranks(7, *parse_faults("kill,term")), again(7, *parse_faults("kill,term"));
  CHECK_FALSE(ranks.next({}));
  again.next(kRunning);
  CHECK(fault_text(*ranks.next(kRunning)) == fault_text(*again.next(kRunning)));
  FaultSource both(7, *parse_faults("kill,supervisor"));
  for (int i = 0; i < 20; ++i) CHECK(both.next({})->kind == FaultKind::supervisor);
  for (const char* text : {"", "kill,", ",kill", "links", "kill stop"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_faults(text));
  }
}

TEST_CASE("chaos: the command touches processes of the run alone") {
  const auto child = [](const char* run) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::execle("/bin/sleep", "sleep", "100", static_cast<char*>(nullptr),
               std::vector<char*>{const_cast<char*>(run), nullptr}.data());
      ::_exit(127);
    }
    return pid;
  };
  const auto order = [](pid_t pid) {
    return testing::run(fault_command(
        {FaultKind::kill, Victim{0, "h", static_cast<std::uint32_t>(pid), "", "run-7"}}));
  };
  // The id of the other run begins with this run's id.
  const pid_t other = child("SORTIE_RUN_ID=run-77");
  const pid_t mine = child("SORTIE_RUN_ID=run-7");
  REQUIRE((other > 0 && mine > 0));
  // Before exec the children have the environment of this test.
  const auto is_sleep = [](pid_t pid) {
    return test::read_text("/proc/" + std::to_string(pid) + "/comm") == "sleep\n";
  };
  while (!is_sleep(other) || !is_sleep(mine)) std::this_thread::yield();
  Finished done = order(other);
  CHECK(done.code == 0);
  CHECK(contains(done.output, " is no longer a process of the run\n"));
  CHECK(::kill(other, 0) == 0);
  done = order(mine);
  CHECK(contains(done.output, "  sent SIGKILL to "));
  int status = 0;
  CHECK(::waitpid(mine, &status, 0) == mine);
  CHECK(WIFSIGNALED(status));
  CHECK(contains(order(mine).output, " is no longer a process of the run\n"));
  ::kill(other, SIGKILL);
  CHECK(::waitpid(other, &status, 0) == other);
}

TEST_CASE("chaos in a run on this machine: a rank dies, and the run with it") {
  const test::ScopedTempDir dir;
  const std::string command = "XDG_STATE_HOME=" + dir.str("state") + " " + SORTIE_BINARY + " ";
  CHECK(shell(command + "chaos").code == 2);  // no run exists
  REQUIRE(shell(command + "run --detach --slots 2 --set runner.mpi=off -- sleep 1000").code == 0);
  const Finished unasked = shell(command + "chaos last < /dev/null");
  CHECK(unasked.code == 2);
  CHECK(contains(unasked.output, "use --yes"));
  for (const char* wrong : {"--every 0s", "--every x", "--faults links",
                            "--faults link --link-down 0s", "--faults link --link-down 2h"})
    CHECK(shell(command + "chaos last --yes " + wrong).code == 2);
  CHECK(shell(command + "status --json | grep -c '\"state\": \"running\"'").output == "3\n");
  const Finished chaos = shell(command + "chaos last --every 200ms --seed 3 --yes");
  CAPTURE(chaos.output);
  CHECK(chaos.code == 0);
  CHECK(contains(chaos.output, "kill every 200ms, --seed 3\n1: kill rank "));
  CHECK(contains(chaos.output, "  sent SIGKILL to "));
  CHECK(contains(chaos.output, " is ended 137\n"));
  CHECK(shell(command + "chaos last --yes").code == 2);  // the run has ended
}

TEST_CASE(
    "chaos in a run on this machine: its link is cut, its ranks end, and the supervisor says why") {
  const test::ScopedTempDir dir;
  const std::string command = "XDG_STATE_HOME=" + dir.str("state") + " " + SORTIE_BINARY + " ";
  REQUIRE(shell(command + "run --detach --slots 2 --set runner.mpi=off "
                          "--set runner.heartbeat_interval=100ms "
                          "--set runner.heartbeat_timeout=3s -- sleep 1000")
              .code == 0);
  const Finished chaos =
      shell(command + "chaos last --faults link --link-down 8s --every 100ms --count 1 --yes");
  CAPTURE(chaos.output);
  CHECK(chaos.code == 0);
  CHECK(contains(chaos.output, "1: link to localhost cut for 8s\n"));
  const Finished attached = shell(command + "attach last");
  CHECK(attached.code == 5);
  CHECK(contains(attached.output, "no heartbeat"));
  CHECK(contains(shell(command + "report last").output, "`sortie chaos` cut the link for 8.0 s"));
}

}  // namespace
}  // namespace sortie::launcher
