// Ends of jobs in containers, whichever process dies first: no container is left.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "common/wire/left_behind.h"
#include "runner/job/node_facts.h"
#include "tests/support/docker_engine.h"
#include "tests/support/runner_client.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::test;
using Ms = std::chrono::milliseconds;

namespace {

using sortie::test::has;

namespace fs = std::filesystem;

wire::JobSpec ending_job(std::vector<std::string> argv, std::uint32_t ranks = 1) {
  wire::JobSpec job = make_job(std::move(argv), ranks);
  job.container.engine = "docker";
  job.container.image = DockerEngine::kImage;
  job.container.image_id = DockerEngine::get().image_id(DockerEngine::kImage);
  return job;
}

std::string left_at_end_of(const wire::JobSpec& job) {
  const std::string containers = DockerEngine::get().containers_left();
  return containers + remains(job);
}

/// Containers that exist after Finished, and everything left after Goodbye; empty if there is
/// nothing.
std::string left_after(RunnerClient& client, const wire::JobSpec& job) {
  const std::string containers = DockerEngine::get().containers();
  client.send(wire::Goodbye{});
  client.wait_exit();
  return containers + left_at_end_of(job);
}

/// Starts the job and waits until every rank has written a line.
void start(RunnerClient& client, const wire::JobSpec& job) {
  REQUIRE(client.start(job));
  REQUIRE(client.wait_up(job.ranks.size()));
}

std::string name_of(const wire::JobSpec& job) {
  return "sortie-" + job.run_id + "-a1-n0";
}

}  // namespace

TEST_CASE("a rank that ignores TERM is killed after the grace, with all that it has started") {
  const wire::JobSpec job = ending_job({"rank-helper", "ignore-term"}, 2);
  RunnerClient client;
  start(client, job);
  client.send(wire::Stop{300, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited[0].code == SIGKILL);
  CHECK(client.exited[0].stopped == 1);
  CHECK(left_after(client, job) == "");

  const wire::JobSpec daemons = ending_job({"rank-helper", "daemons-exit", "3"});
  RunnerClient second;
  REQUIRE(second.run(daemons));
  CHECK(second.exited[0].leftovers_killed == 3);
  CHECK(left_at_end_of(daemons) == "");
}

TEST_CASE("the launcher is gone") {
  const wire::JobSpec job = ending_job({"rank-helper", "sleep"}, 2);
  RunnerClient client;
  start(client, job);
  client.close_input();
  const auto status = client.wait_exit();
  REQUIRE(status);
  CHECK(status->code == 5);
  CHECK(DockerEngine::get().containers() == "");
  CHECK(left_at_end_of(job) == "");
}

TEST_CASE("the runner is killed: ranks, containers and folder go") {
  for (const auto scope : {wire::ContainerScope::host, wire::ContainerScope::rank}) {
    wire::JobSpec job = ending_job({"rank-helper", "daemons", "2"}, 2);
    job.container.scope = scope;
    RunnerClient client;
    start(client, job);
    client.signal(SIGKILL);
    client.wait_exit();
    CHECK(left_at_end_of(job) == "");
  }
}

TEST_CASE("the runner is killed while its container is paused") {
  const wire::JobSpec job = ending_job({"rank-helper", "sleep"});
  RunnerClient client;
  start(client, job);
  CHECK(DockerEngine::get().run({"pause", name_of(job)}) == name_of(job));
  client.signal(SIGKILL);
  client.wait_exit();
  std::string left;
  for (int i = 0; i < 3 && !(left = DockerEngine::get().containers_left()).empty(); ++i) {
  }
  CHECK(left == "");
  CHECK(remains(job) == "");
}

TEST_CASE("a paused container without runner and guard is removed by the next job on the host") {
  const wire::JobSpec job = ending_job({"rank-helper", "sleep"});
  RunnerClient client;
  start(client, job);
  CHECK(DockerEngine::get().run({"pause", name_of(job)}) == name_of(job));
  client.signal(SIGSTOP);
  for (const pid_t child : children_of(client.pid())) ::kill(child, SIGKILL);
  const wire::JobSpec next = ending_job({"true"});
  RunnerClient second;
  REQUIRE(second.run(next));
  CHECK(has(DockerEngine::get().containers(), name_of(job)));  // its runner lives
  client.signal(SIGKILL);
  client.wait_exit();
  const wire::JobSpec last = ending_job({"true"});
  RunnerClient third;
  REQUIRE(third.run(last));
  CHECK_FALSE(has(DockerEngine::get().containers(), name_of(job)));
  RunnerClient fourth;  // the folder, which the container held when the third began
  REQUIRE(fourth.run(ending_job({"true"})));
  CHECK(left_at_end_of(job) == "");
}

TEST_CASE("docker kill: an end from outside, told as such") {
  const wire::JobSpec job = ending_job({"rank-helper", "sleep"}, 2);
  RunnerClient client;
  start(client, job);
  CHECK(DockerEngine::get().run({"kill", name_of(job)}) == name_of(job));
  REQUIRE(client.wait_finished());
  REQUIRE(client.errors.size() == 2);
  CHECK(client.errors[0].code == "lost");
  CHECK(has(client.errors[0].message,
            "container " + name_of(job) + " was ended from outside the run"));
  CHECK(client.exited[0].signaled == 1);
  CHECK(client.exited[0].code == SIGKILL);
  CHECK(client.exited[0].stopped == 0);
  CHECK(client.exited[0].oom_killed == 0);
  CHECK(left_after(client, job) == "");
}

TEST_CASE("docker stop: the ranks are asked, and have their grace") {
  const wire::JobSpec job = ending_job({"rank-helper", "exit-on-term"}, 2);
  RunnerClient client;
  start(client, job);
  DockerEngine::get().run({"stop", "--time", "8", name_of(job)});
  REQUIRE(client.wait_finished());
  CHECK(client.exited[0].code == 42);
  REQUIRE(!client.errors.empty());
  CHECK(has(client.errors[0].message, "is being ended from outside the run: it got SIGTERM"));
  CHECK(left_after(client, job) == "");
}

TEST_CASE("a keeper is killed inside: its rank goes with it, and no other") {
  const wire::JobSpec job = ending_job({"rank-helper", "daemons", "2"}, 2);
  RunnerClient client;
  start(client, job);
  const std::string stat =
      run_program({"ps", "-o", "ppid=", "-p", std::to_string(client.pids[0])}).output;
  ::kill(std::atoi(stat.c_str()), SIGKILL);
  REQUIRE(client.wait_until([&] { return client.exited.contains(0); }));
  CHECK(client.exited[0].code == SIGKILL);
  CHECK_FALSE(client.exited.contains(1));
  client.send(wire::Stop{0, "test"});
  REQUIRE(client.wait_finished());
  CHECK(left_after(client, job) == "");
}

TEST_CASE("a lost runner and guard: the sweep finds the rest") {
  const wire::JobSpec job = ending_job({"rank-helper", "sleep"});
  RunnerClient client;
  start(client, job);
  client.signal(SIGSTOP);
  RunnerClient sweeper;
  sweeper.send(wire::Hello{wire::kProtocolVersion, ""});
  sweeper.send(wire::Sweep{job.run_id, 500, "", "docker"});
  const auto swept = sweeper.expect<wire::Swept>();
  REQUIRE(swept);
  CHECK(swept->left == std::vector<std::string>{});
  CHECK(DockerEngine::get().containers() == "");
  client.wait_exit();
  CHECK(left_at_end_of(job) == "");
}

TEST_CASE("containers that nobody holds are removed by the next job on the host") {
  const DockerEngine& engine = DockerEngine::get();
  engine.run({"run", "--detach", "--network", "host", "--name", "left-behind", "--label",
              "sortie.run=older", "--label", "sortie.uid=" + std::to_string(::geteuid()), "--label",
              "sortie.folder=/tmp/sortie-0/older-1-0", DockerEngine::kImage, "sleep", "100"});
  engine.run({"run", "--detach", "--network", "host", "--name", "other-user", "--label",
              "sortie.run=theirs", "--label", "sortie.uid=4711", "--label",
              "sortie.folder=/tmp/sortie-4711/theirs-1-0", DockerEngine::kImage, "sleep", "100"});
  CHECK(has(engine.containers(), "left-behind"));
  const wire::JobSpec job = ending_job({"true"});
  RunnerClient client;
  REQUIRE(client.run(job));
  CHECK_FALSE(has(engine.containers(), "left-behind"));
  CHECK(has(engine.containers(), "other-user Up"));
  engine.run({"rm", "--force", "other-user"});
  CHECK(left_at_end_of(job) == "");
}

TEST_CASE("containers of another pid namespace stay, those of an earlier boot go once they rest") {
  const DockerEngine& engine = DockerEngine::get();
  const std::string& here = runner::machine_id();
  const std::string boot = here.substr(0, here.find('/'));
  const auto put = [&](const std::string& name, const std::string& machine,
                       std::vector<std::string> argv) {
    std::vector<std::string> words = {"run",
                                      "--detach",
                                      "--network",
                                      "host",
                                      "--name",
                                      name,
                                      "--label",
                                      "sortie.run=other",
                                      "--label",
                                      "sortie.uid=" + std::to_string(::geteuid()),
                                      "--label",
                                      "sortie.folder=/tmp/sortie-0/other-1-0",
                                      "--label",
                                      "sortie.machine=" + machine,
                                      DockerEngine::kImage};
    words.insert(words.end(), argv.begin(), argv.end());
    engine.run(words);
  };
  put("other-space", boot + "/1", {"sleep", "100"});
  put("other-boot-runs", "0/1", {"sleep", "100"});
  put("other-boot-rests", "0/1", {"true"});
  put("own", here, {"sleep", "100"});
  engine.run({"wait", "other-boot-rests"});
  const wire::JobSpec job = ending_job({"true"});
  RunnerClient client;
  REQUIRE(client.run(job));
  CHECK(has(engine.containers(), "other-space Up"));
  CHECK(has(engine.containers(), "other-boot-runs Up"));
  CHECK_FALSE(has(engine.containers(), "other-boot-rests"));
  CHECK_FALSE(has(engine.containers(), "own"));
  engine.run({"rm", "--force", "other-space", "other-boot-runs"});
  CHECK(left_at_end_of(job) == "");
}

TEST_CASE("a later attempt fences an earlier one") {
  wire::JobSpec job = ending_job({"rank-helper", "sleep"});
  RunnerClient client;
  start(client, job);
  client.signal(SIGSTOP);
  wire::JobSpec again = job;
  again.attempt = 2;
  again.argv = {"true"};
  RunnerClient second;
  REQUIRE(second.run(again));
  CHECK(second.exited[0].code == 0);
  client.signal(SIGKILL);
  client.signal(SIGCONT);
  client.wait_exit();
  CHECK(left_at_end_of(job) == "");
}

TEST_CASE("the engine ends in order, or is killed, while ranks run") {
  DockerEngine& engine = DockerEngine::get();
  for (const int signal : {SIGTERM, SIGKILL}) {
    const wire::JobSpec job = ending_job({"rank-helper", "exit-on-term"}, 2);
    RunnerClient client;
    start(client, job);
    engine.stop(signal);
    if (signal == SIGKILL) client.send(wire::Stop{500, "test"});
    engine.start();
    CHECK(client.wait_finished(Ms(30000)));
    CHECK(left_after(client, job) == "");
  }
}

TEST_CASE("an engine that stays away: its container is named, with the command that removes it") {
  DockerEngine& engine = DockerEngine::get();
  const wire::JobSpec job = ending_job({"rank-helper", "exit-on-term"});
  RunnerClient client;
  start(client, job);
  engine.stop(SIGKILL);
  client.send(wire::Stop{500, "test"});
  CHECK(client.wait_finished(Ms(30000)));
  engine.start();
  REQUIRE(client.errors.size() == 1);
  CHECK(client.errors[0].code == wire::kLeftBehind);
  INFO(client.errors[0].message);
  CHECK(client.errors[0].message.starts_with("container still there: " + name_of(job) +
                                             ": docker: the engine does not run here"));
  CHECK(client.errors[0].message.ends_with("; remove it with `docker rm --force --volumes " +
                                           name_of(job) + "`"));
  engine.run({"rm", "--force", "--volumes", name_of(job)});
  CHECK(left_after(client, job) == "");
}

TEST_CASE("an engine that does not run, or that this user may not use") {
  wire::JobSpec job = ending_job({"true"});
  const std::string host = ::getenv("DOCKER_HOST");
  ::setenv("DOCKER_HOST", "unix:///tmp/no-engine.sock", 1);
  RunnerClient client;
  ::setenv("DOCKER_HOST", host.c_str(), 1);
  CHECK_FALSE(client.prepare(job));
  client.wait_exit();
  REQUIRE(client.errors.size() == 1);
  CHECK(client.errors[0].message ==
        "docker: the engine does not run here, no process listens at /tmp/no-engine.sock; start it "
        "(systemctl start docker)");
  fs::permissions(fs::path(DockerEngine::get().socket()).parent_path(),
                  static_cast<fs::perms>(0755));
  RunnerClient stranger(SORTIE_RUNNER_BINARY, {}, true);
  CHECK_FALSE(stranger.prepare(job));
  stranger.wait_exit();
  REQUIRE(stranger.errors.size() == 1);
  CHECK_MESSAGE(has(stranger.errors[0].message, "docker: this user may not use the engine: "),
                stranger.errors[0].message);
  CHECK(has(stranger.errors[0].message, DockerEngine::get().socket()));
}
