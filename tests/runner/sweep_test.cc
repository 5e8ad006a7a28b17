// A sweep: a new runner ends what a lost one left, and nothing else.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "common/base/fd.h"
#include "runner/cleanup/run_folder.h"
#include "tests/runner/job_helpers.h"
#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

std::string cgroup_of(const wire::JobReady& ready) {
  return ready.cgroup.starts_with("v2 ") ? ready.cgroup.substr(3) : std::string();
}

Fd handle_of(pid_t pid) {
  Fd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  REQUIRE(handle);
  return handle;
}

/// Waits until the process has closed its files. Returns false after kPatience.
bool wait_ended(const Fd& handle) {
  pollfd end{handle.get(), POLLIN, 0};
  return ::poll(&end, 1, static_cast<int>(milliseconds(RunnerClient::kPatience).count())) == 1;
}

/// Sweeps as the launcher does on a host that it lost and has reached again.
std::optional<wire::Swept> sweep(const wire::JobSpec& job, const std::string& cgroup,
                                 bool unprivileged, std::uint32_t patience_ms = 1000) {
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, unprivileged);
  client.send(wire::Hello{});
  client.send(wire::Sweep{job.run_id, patience_ms, cgroup, ""});
  auto swept = client.expect<wire::Swept>();
  const auto status = client.wait_exit();
  CHECK((status && status->success()));
  return swept;
}

}  // namespace

TEST_CASE_TEMPLATE("swept: what runner and keeper left that were killed together", User, AsTestUser,
                   WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "daemons", "3"}, 2);
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  const auto ready = client.prepare(job);
  REQUIRE(ready);
  client.send(wire::Start{});
  REQUIRE(client.wait_up(2));
  std::vector<pid_t> keepers;
  for (const auto& [rank, pid] : client.pids) keepers.push_back(parent_of(pid));
  for (const pid_t keeper : keepers) ::kill(keeper, SIGSTOP);
  client.signal(SIGKILL);
  for (const pid_t keeper : keepers) ::kill(keeper, SIGKILL);
  client.pump(milliseconds(200));
  REQUIRE(processes_with("SORTIE_RUN_ID=" + job.run_id).size() >= 3);
  const auto swept = sweep(job, cgroup_of(*ready), User::kUnprivileged);
  REQUIRE(swept);
  CHECK(swept->left.empty());
  CHECK(all_gone("SORTIE_RUN_ID=" + job.run_id, milliseconds(0)));
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE(
    "runner and keeper killed together: the rank itself dies with them, the rest "
    "is swept",
    User, AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "ignore-term"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  const auto ready = client.prepare(job);
  REQUIRE(ready);
  client.send(wire::Start{});
  REQUIRE(client.wait_up(1));
  const pid_t keeper = parent_of(client.pids.at(0));
  ::kill(keeper, SIGSTOP);  // so that it can not react
  client.signal(SIGKILL);
  ::kill(keeper, SIGKILL);
  CHECK(all_gone("SORTIE_RUN_ID=" + job.run_id, RunnerClient::kPatience));
  const auto swept = sweep(job, cgroup_of(*ready), User::kUnprivileged);
  REQUIRE(swept);
  CHECK(swept->killed == 0);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("swept: a frozen runner, whose keepers then end their ranks in order", User,
                   AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "ignore-term"}, 2);
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  client.signal(SIGSTOP);
  const auto begin = steady_clock::now();
  const auto swept = sweep(job, "", User::kUnprivileged, 60000);
  REQUIRE(swept);
  const double took = seconds_since(begin);
  // Only the runner is killed. Its keepers do the rest, unless they get no CPU in time.
  CHECK((swept->killed == 1 || took > 1.9));
  CHECK(swept->left.empty());
  CHECK(took > 0.9);  // ranks had a second between TERM and KILL
  CHECK(all_gone("SORTIE_RUN_ID=" + job.run_id, milliseconds(0)));
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("swept: nothing of other runs, and a runner that works has the patience", User,
                   AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "sleep"}),
                other = make_job({public_helper(), "sleep"});
  other.run_id = "x" + job.run_id;
  other.heartbeat_timeout_ms = 120000;  // its launcher sends nothing during the sweep
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged),
      other_client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  start_and_wait_up(other_client, other);
  const auto begin = steady_clock::now();
  const auto swept = sweep(job, "", User::kUnprivileged, 500);
  REQUIRE(swept);
  CHECK(seconds_since(begin) > 0.45);
  CHECK(::kill(client.pids.at(0), 0) != 0);
  CHECK(remains(job) == "");
  CHECK(::kill(other_client.pids.at(0), 0) == 0);
  other_client.send(wire::Stop{100, "test"});
  CHECK(other_client.wait_finished());
  other_client.send(wire::Goodbye{});
  CHECK(other_client.wait_exit());
}

TEST_CASE(
    "runner and keepers killed together: the next run removes folder and cgroup, but not those "
    "of a run that is about to start") {
  REQUIRE(::geteuid() == 0);  // cgroups need root
  wire::JobSpec lost = make_job({public_helper(), "sleep"}, 2), waiting = lost, next = lost;
  waiting.run_id = lost.run_id + "-w";
  waiting.heartbeat_timeout_ms = 120000;  // its launcher sends nothing until the others are done
  next.run_id = lost.run_id + "-n";
  RunnerClient lost_client(SORTIE_RUNNER_BINARY), waiting_client(SORTIE_RUNNER_BINARY);
  start_and_wait_up(lost_client, lost);
  const auto ready = waiting_client.prepare(waiting);
  REQUIRE(ready);
  std::vector<pid_t> pids;
  std::vector<Fd> ends;
  for (const auto& [rank, pid] : lost_client.pids) pids.insert(pids.end(), {parent_of(pid), pid});
  for (const pid_t pid : pids) ends.push_back(handle_of(pid));
  // The test holds it until it has checked: otherwise runners of concurrent tests would clean up.
  const std::string name = runner::run_folder_name(lost.run_id, lost.attempt, lost.node_rank);
  Fd hold(
      ::open((runner::run_folder_base() + '/' + name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(hold.get(), LOCK_SH) == 0);
  for (const pid_t pid : pids) ::kill(pid, SIGSTOP);
  lost_client.signal(SIGKILL);
  for (const pid_t pid : pids) ::kill(pid, SIGKILL);
  // A killed process holds the folder until it gets CPU time to end.
  REQUIRE(lost_client.wait_exit());
  for (const Fd& end : ends) REQUIRE(wait_ended(end));
  REQUIRE(all_gone("SORTIE_RUN_ID=" + lost.run_id, RunnerClient::kPatience));
  const std::string left = remains(lost, milliseconds(0));
  REQUIRE(left.find("/tmp/") != std::string::npos);
  REQUIRE((cgroup_of(*ready).empty() || left.find("cgroup") != std::string::npos));
  hold.reset();

  RunnerClient next_client(SORTIE_RUNNER_BINARY);
  REQUIRE(next_client.prepare(next));
  CHECK(remains(lost, milliseconds(0)) == "");
  waiting_client.send(wire::Start{});
  REQUIRE(waiting_client.wait_up(2));
  for (RunnerClient* client : {&waiting_client, &next_client}) {
    client->send(wire::Stop{100, "test"});
    client->send(wire::Goodbye{});
    CHECK(client->wait_exit());
  }
  CHECK(remains(waiting) == "");
  CHECK(remains(next) == "");
}
