// However a job ends, nothing is left: no process, no folder, no cgroup.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include "runner/process/process_tree.h"
#include "tests/runner/job_helpers.h"
#include "tests/support/cpu_time.h"
#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

void say_goodbye(RunnerClient& client) {
  client.send(wire::Goodbye{});
  const auto status = client.wait_exit();
  REQUIRE(status);
  CHECK(status->success());
}

/// The most recently assigned PID.
long newest_pid() {
  std::ifstream load("/proc/loadavg");
  std::string text((std::istreambuf_iterator<char>(load)), {});
  return std::stol(text.substr(text.rfind(' ')));
}

/// Waits until the fork storm is running; fails the test otherwise.
void require_storm(RunnerClient& client) {
  const long before = newest_pid();
  REQUIRE(client.wait_until([&] {
    const long now = newest_pid();
    return now < before || now - before > 100;  // PIDs wrap around at the kernel's limit
  }));
}

}  // namespace

TEST_CASE("a runner that is told to end and loses its launcher waits for its ranks without work") {
  wire::JobSpec job = make_job({public_helper(), "ignore-term"}, 1);
  job.grace_ms = 3000;
  RunnerClient client;
  start_and_wait_up(client, job);
  client.signal(SIGTERM);
  client.pump(milliseconds(200));
  client.close_input();
  const double before = cpu_seconds(client.pid());
  ::usleep(2'000'000);
  REQUIRE_FALSE(processes_with("SORTIE_RUN_ID=" + job.run_id).empty());
  CHECK(cpu_seconds(client.pid()) - before < 0.5);
  CHECK(client.wait_exit());
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("Stop sends TERM, and a rank that handles it ends by itself", User, AsTestUser,
                   WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "exit-on-term"}, 2);
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  client.send(wire::Stop{10000, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(0).code == 42);
  CHECK(client.exited.at(0).signaled == 0);
  CHECK(client.exited.at(0).stopped == 1);
  say_goodbye(client);
  CHECK(remains(job) == "");
}

TEST_CASE("ranks are told that there is no time for others: one is lost, or the grace is short") {
  // The shell exits with 3 if the .hurry file exists when TERM arrives, and with 4 otherwise.
  constexpr const char* kScript =
      "trap 'if [ -e \"$SORTIE_SOCKET.hurry\" ]; then exit 3; else exit 4; fi' TERM; echo up;"
      "while :; do sleep 0.02; done";
  struct Order {
    wire::Stop stop;
    int code;
  };
  for (const Order& order : {Order{{10000, "stop", 0}, 4}, Order{{10000, "rank 1 failed", 1}, 3},
                             Order{{9000, "shorter than the job's", 0}, 3}}) {
    CAPTURE(order.stop.reason);
    wire::JobSpec job = make_job({"/bin/sh", "-c", kScript}, 2);
    job.grace_ms = 10000;
    RunnerClient client(SORTIE_RUNNER_BINARY, {}, AsTestUser::kUnprivileged);
    start_and_wait_up(client, job);
    client.send(order.stop);
    REQUIRE(client.wait_finished());
    for (std::uint32_t rank = 0; rank < 2; ++rank) CHECK(client.exited.at(rank).code == order.code);
    say_goodbye(client);
    CHECK(remains(job) == "");
  }
}

TEST_CASE_TEMPLATE("a rank that was killed before Stop came was not stopped, however long it ends",
                   User, AsTestUser, WithoutCgroup) {
  // Peers notice the end of a killed rank, and fail, before it is a zombie: the kernel frees its
  // memory meanwhile.
  wire::JobSpec job = make_job({public_helper(), "eat", "1024"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  const pid_t pid = client.pids.at(0);
  REQUIRE(::kill(pid, SIGKILL) == 0);
  while (!runner::is_ending(pid) && runner::process_state(pid) != '?') std::this_thread::yield();
  client.send(wire::Stop{10000, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(0).signaled == 1);
  CHECK(client.exited.at(0).code == SIGKILL);
  CHECK(client.exited.at(0).stopped == 0);
}

TEST_CASE_TEMPLATE("what ended before Stop came was not stopped: a wrapped trainer, a keeper", User,
                   AsTestUser, WithoutCgroup) {
  // `exit` keeps the shell from becoming the trainer. A killed keeper's rank is killed by the
  // runner.
  wire::JobSpec job = make_job({"/bin/sh", "-c", "\"$0\" eat 256; exit $?", public_helper()});
  bool of_keeper = false;
  SUBCASE("the trainer of a wrapper script") {}
  SUBCASE("a keeper") {
    of_keeper = true;
    job = make_job({public_helper(), "eat", "1024"});
  }
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  const pid_t rank = client.pids.at(0);
  REQUIRE(children_of(rank).size() == (of_keeper ? 0 : 1));
  const pid_t trainer = of_keeper ? rank : children_of(rank).front();
  REQUIRE(::kill(of_keeper ? parent_of(rank) : trainer, SIGKILL) == 0);
  while (!runner::is_ending(trainer) && runner::process_state(trainer) != '?')
    std::this_thread::yield();
  client.send(wire::Stop{10000, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(0).signaled == (of_keeper ? 1 : 0));
  CHECK(client.exited.at(0).code == (of_keeper ? SIGKILL : 128 + SIGKILL));
  CHECK(client.exited.at(0).stopped == 0);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("a rank that ignores TERM is killed after the grace, not before", User,
                   AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "ignore-term"});
  job.grace_ms = 120000;  // that of Stop counts; the helper would exit by itself after 60 s
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  const auto begin = steady_clock::now();
  client.send(wire::Stop{700, "test"});
  REQUIRE(client.wait_finished());
  CHECK(seconds_since(begin) >= 0.69);
  CHECK(client.exited.at(0).signaled == 1);
  CHECK(client.exited.at(0).code == SIGKILL);
  CHECK(client.exited.at(0).stopped == 1);
}

TEST_CASE_TEMPLATE("a second Stop with 0 cuts the grace short", User, AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "ignore-term"}, 2);
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  const auto begin = steady_clock::now();
  client.send(wire::Stop{55000, "first"});
  client.pump(milliseconds(200));
  CHECK(client.exited.empty());
  client.send(wire::Stop{0, "second"});
  REQUIRE(client.wait_finished());
  CHECK(seconds_since(begin) < 50);
  say_goodbye(client);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("a stopped (SIGSTOP) rank still gets its TERM", User, AsTestUser,
                   WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "exit-on-term"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  ::kill(client.pids.at(0), SIGSTOP);
  client.send(wire::Stop{10000, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(0).code == 42);
}

TEST_CASE_TEMPLATE("the trainer behind a wrapper script has the whole grace", User, AsTestUser,
                   WithoutCgroup) {
  // The shell dies of TERM at once. Its child has received TERM too and needs half a second.
  wire::JobSpec job = make_job({"sh", "-c",
                                "sh -c 'trap \"sleep 0.5; echo saved; exit 0\" TERM; echo up; "
                                "while :; do sleep 0.05; done'; true"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  client.send(wire::Stop{10000, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.out[0] == "up\nsaved\n");
  say_goodbye(client);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("daemons that a rank has left are gone before its end is told", User, AsTestUser,
                   WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "daemons-exit", "20"}, 2);
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  REQUIRE(client.start(job));
  REQUIRE(client.wait_finished());
  CHECK(processes_with("SORTIE_RUN_ID=" + job.run_id).empty());
  CHECK(client.exited.at(0).code == 0);
  CHECK(client.exited.at(0).leftovers_killed == 20);
  CHECK(client.exited.at(1).leftovers_killed == 20);
  say_goodbye(client);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("nohup, setsid and background jobs of a shell are gone with it", User,
                   AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({"sh", "-c",
                                "nohup sleep 60 >/dev/null 2>&1 & setsid sleep 60 & (setsid sh -c "
                                "'trap \"\" TERM HUP; sleep 60' &) ; echo up; exit 3"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  REQUIRE(client.start(job));
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(0).code == 3);
  CHECK(client.exited.at(0).leftovers_killed >= 3);
  say_goodbye(client);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("a fork storm is ended", User, AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "storm", "4", "60"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  require_storm(client);
  const auto begin = steady_clock::now();
  client.send(wire::Stop{100, "test"});
  REQUIRE(client.wait_finished());
  MESSAGE("storm ended after " << seconds_since(begin) << " s");
  for (const auto& [rank, exited] : client.exited) CHECK(exited.stopped == 1);
  say_goodbye(client);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("runner killed: ranks and their daemons are gone soon", User, AsTestUser,
                   WithoutCgroup) {
  for (const std::string action : {"sleep", "ignore-term", "daemons"}) {
    CAPTURE(action);
    wire::JobSpec job = make_job({public_helper(), action, "10"}, 2);
    RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
    start_and_wait_up(client, job);
    client.signal(SIGKILL);
    const auto begin = steady_clock::now();
    CHECK(all_gone("SORTIE_RUN_ID=" + job.run_id, RunnerClient::kPatience));
    MESSAGE(action << ": gone " << seconds_since(begin) << " s after the runner");
    CHECK(remains(job) == "");  // keepers also remove folder and cgroup
  }
}

TEST_CASE_TEMPLATE("a fork storm whose runner is killed is ended", User, AsTestUser,
                   WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "storm", "4", "60"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  require_storm(client);
  client.signal(SIGKILL);
  CHECK(all_gone("SORTIE_RUN_ID=" + job.run_id, RunnerClient::kPatience));
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("keeper killed: its rank and daemons are gone and reported, the others live on",
                   User, AsTestUser, WithoutCgroup) {
  for (const std::string action : {"sleep", "daemons", "storm"}) {
    CAPTURE(action);
    wire::JobSpec job = make_job({public_helper(), action, "4"}, 2);
    RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
    start_and_wait_up(client, job);
    ::kill(parent_of(client.pids.at(1)), SIGKILL);
    REQUIRE(client.expect<wire::RankExited>());
    REQUIRE(client.exited.contains(1));
    CHECK(client.exited.at(1).signaled == 1);
    CHECK(client.exited.at(1).code == SIGKILL);
    CHECK(client.exited.at(1).stopped == 0);
    CHECK(client.exited.size() == 1);
    CHECK(::kill(client.pids.at(0), 0) == 0);
    for (pid_t pid : processes_with("SORTIE_RUN_ID=" + job.run_id)) {
      std::ifstream environment("/proc/" + std::to_string(pid) + "/environ");
      const std::string text((std::istreambuf_iterator<char>(environment)), {});
      CHECK(text.find(std::string("RANK=1\0", 7)) == std::string::npos);
    }
    client.send(wire::Stop{100, "test"});
    REQUIRE(client.wait_finished());
    say_goodbye(client);
    CHECK(remains(job) == "");
  }
}

TEST_CASE_TEMPLATE("a keeper that somebody froze is woken, so that its rank can be ended", User,
                   AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "sleep"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  ::kill(parent_of(client.pids.at(0)), SIGSTOP);
  client.send(wire::Stop{100, "test"});
  CHECK(client.wait_finished());
  say_goodbye(client);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE(
    "what a lost attempt left is killed when the next one starts, a newer one is not", User,
    AsTestUser, WithoutCgroup) {
  wire::JobSpec old_job = make_job({public_helper(), "daemons", "3"});
  RunnerClient old_client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(old_client, old_job);
  // Kills keeper and runner at once: the daemons survive, as after a crash of both.
  const pid_t keeper = parent_of(old_client.pids.at(0));
  ::kill(keeper, SIGSTOP);
  old_client.signal(SIGKILL);
  ::kill(keeper, SIGKILL);
  old_client.pump(milliseconds(200));
  REQUIRE(processes_with("SORTIE_RUN_ID=" + old_job.run_id).size() >= 3);

  wire::JobSpec same = make_job({"true"});
  same.run_id = old_job.run_id;
  same.node_rank = 7;  // another host's runner of this attempt, on one machine as on a testbed
  RunnerClient same_client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  REQUIRE(same_client.run(same));
  CHECK(processes_with("SORTIE_RUN_ID=" + old_job.run_id).size() >= 3);

  wire::JobSpec next = same;
  next.attempt = 2;
  next.node_rank = 0;
  RunnerClient next_client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  REQUIRE(next_client.prepare(next));
  CHECK(processes_with("SORTIE_RUN_ID=" + old_job.run_id).empty());
  next_client.send(wire::Start{});
  REQUIRE(next_client.wait_finished());
  next_client.send(wire::Goodbye{});
  CHECK(next_client.wait_exit()->success());
  CHECK(remains(next) == "");
  CHECK(remains(old_job) == "");  // the leftovers of the old runner are removed too
}

TEST_CASE_TEMPLATE("end of input: the launcher is gone, ranks are stopped", User, AsTestUser,
                   WithoutCgroup) {
  for (const std::string action : {"sleep", "ignore-term", "daemons"}) {
    CAPTURE(action);
    wire::JobSpec job = make_job({public_helper(), action, "5"}, 2);
    RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
    start_and_wait_up(client, job);
    client.close_input();
    const auto begin = steady_clock::now();
    const auto status = client.wait_exit();
    REQUIRE(status);
    CHECK(status->code == 5);
    MESSAGE(action << ": " << seconds_since(begin) << " s");  // grace of the job: 1 s
    CHECK(remains(job) == "");
  }
}

TEST_CASE_TEMPLATE("output closed too: a rank that floods it does not keep the runner", User,
                   AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "pattern", "100000000000"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  REQUIRE(client.start(job));
  client.pump(milliseconds(300));
  client.close_output();
  client.close_input();
  CHECK(client.wait_exit()->code == 5);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("missed heartbeats: the launcher is gone, ranks are stopped", User, AsTestUser,
                   WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "sleep"});
  job.heartbeat_interval_ms = 100;
  job.heartbeat_timeout_ms = 4000;  // longer than a busy machine may stall
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  client.pump(milliseconds(5000));
  CHECK(client.exited.empty());  // heartbeats arrive, so nothing happens
  client.send_heartbeats = false;
  const auto begin = steady_clock::now();
  const auto status = client.wait_exit();
  REQUIRE(status);
  CHECK(status->code == 5);
  CHECK(seconds_since(begin) > 3.8);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE(
    "a runner that was frozen does not take its own sleep for the launcher's silence", User,
    AsTestUser, WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "sleep"});
  job.heartbeat_interval_ms = 100;
  job.heartbeat_timeout_ms = 4000;
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  start_and_wait_up(client, job);
  client.send_heartbeats = false;  // simulates suspend of the whole machine, launcher included
  client.signal(SIGSTOP);
  client.pump(milliseconds(5500));
  client.signal(SIGCONT);
  client.pump(milliseconds(500));  // its messages need a moment after the resume
  client.send_heartbeats = true;
  client.pump(milliseconds(4500));
  CHECK(client.exited.empty());
  CHECK_FALSE(client.end_of_stream);
  client.send(wire::Stop{0, "test"});
  REQUIRE(client.wait_finished());
  say_goodbye(client);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("TERM, INT and HUP to the runner stop the ranks and still tell the launcher",
                   User, AsTestUser, WithoutCgroup) {
  for (int number : {SIGTERM, SIGINT, SIGHUP}) {
    CAPTURE(number);
    wire::JobSpec job = make_job({public_helper(), "sleep"}, 2);
    RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
    start_and_wait_up(client, job);
    client.signal(number);
    const auto status = client.wait_exit();
    REQUIRE(status);
    CHECK(status->code == 128 + number);
    CHECK(client.exited.size() == 2);
    CHECK(client.finished);
    REQUIRE(client.errors.size() == 1);
    CHECK(client.errors[0].code == "interrupted");
    CHECK(remains(job) == "");
  }
}

TEST_CASE_TEMPLATE("garbage on the input: RunnerError, ranks ended, clean exit", User, AsTestUser,
                   WithoutCgroup) {
  wire::JobSpec job = make_job({public_helper(), "sleep"}, 2);
  const std::string garbage[] = {
      std::string("\x05\x00\x00\x00\x04\x01\x00\x00hello", 13),     // reserved byte is not 0
      std::string("\xff\xff\xff\x7f\x04\x00\x00\x00", 8),           // announces 2 GiB
      std::string("\x00\x00\x00\x00\xc8\x00\x00\x00", 8),           // unknown type
      std::string("\x02\x00\x00\x00\x04\x00\x00\x00\xff\xff", 10),  // malformed payload
      wire::encode(wire::Finished{}),              // a message that runners only send
      wire::encode(wire::OutputCredit{1u << 30}),  // more credit than bytes sent
  };
  for (const std::string& bytes : garbage) {
    wire::JobSpec one = job;
    one.run_id += std::to_string(&bytes - garbage);
    RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
    start_and_wait_up(client, one);
    client.send_heartbeats = false;
    client.send_bytes(bytes);
    const auto status = client.wait_exit();
    REQUIRE(status);
    CHECK(status->code == 1);
    REQUIRE(client.errors.size() == 1);
    CHECK(client.errors[0].code == "protocol");
    CHECK(remains(one) == "");
  }
}

TEST_CASE_TEMPLATE("the tests run with and without a cgroup", User, AsTestUser, WithoutCgroup) {
  const wire::JobSpec job = make_job({"true"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  const auto ready = client.prepare(job);
  REQUIRE(ready);
  MESSAGE(ready->cgroup);
  if (User::kUnprivileged) CHECK(ready->cgroup.starts_with("none: "));
  say_goodbye(client);
}

TEST_CASE_TEMPLATE("Stop right behind Start: every rank is accounted for", User, AsTestUser,
                   WithoutCgroup) {
  const wire::JobSpec job = make_job({public_helper(), "ignore-term"}, 100);
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  REQUIRE(client.start(job));
  client.send(wire::Stop{0, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.size() == 100);
  for (const auto& [rank, exited] : client.exited) CHECK(exited.stopped == 1);
  say_goodbye(client);
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("Stop before Start: no rank is started, Finished comes", User, AsTestUser,
                   WithoutCgroup) {
  wire::JobSpec job = make_job({"true"}, 2);
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  REQUIRE(client.prepare(job));
  client.send(wire::Stop{1000, "another host failed"});
  REQUIRE(client.wait_finished());
  client.send(wire::Start{});  // a late Start is ignored
  say_goodbye(client);
  CHECK(client.pids.empty());
  CHECK(remains(job) == "");
}

TEST_CASE_TEMPLATE("Goodbye before Start and end of input before Start clean up", User, AsTestUser,
                   WithoutCgroup) {
  wire::JobSpec job = make_job({"true"}, 2);
  RunnerClient client(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  REQUIRE(client.prepare(job));
  say_goodbye(client);
  CHECK(remains(job) == "");
  RunnerClient other(SORTIE_RUNNER_BINARY, {}, User::kUnprivileged);
  REQUIRE(other.prepare(job));
  other.close_input();
  CHECK(other.wait_exit()->code == 5);
  CHECK(remains(job) == "");
}
