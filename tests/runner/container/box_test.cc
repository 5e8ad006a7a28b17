// Ranks in real containers: their environment, and how their end is reported. Real runner, real
// dockerd.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/docker_engine.h"
#include "tests/support/runner_client.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::test;

namespace {

using sortie::test::has;

namespace fs = std::filesystem;

wire::JobSpec box_job(std::vector<std::string> argv, std::uint32_t ranks = 1) {
  wire::JobSpec job = make_job(std::move(argv), ranks);
  job.container.engine = "docker";
  job.container.image = DockerEngine::kImage;
  job.container.image_id = DockerEngine::get().image_id(DockerEngine::kImage);
  return job;
}

/// Processes, folders and containers left by the job; empty if there are none.
std::string left_of(const wire::JobSpec& job) {
  return remains(job) + DockerEngine::get().containers_left();
}

/// The one error with which the runner rejects the job.
std::string refused(const wire::JobSpec& job) {
  RunnerClient client;
  if (client.prepare(job)) return "not refused";
  client.wait_exit();
  if (client.errors.size() != 1) return std::to_string(client.errors.size()) + " errors";
  return client.errors[0].code + ": " + client.errors[0].message;
}

}  // namespace

TEST_CASE("one container for all ranks: output, exit codes and nothing left") {
  const wire::JobSpec job = box_job({"rank-helper", "by-rank"}, 3);
  RunnerClient client;
  REQUIRE(client.run(job));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    CHECK(client.exited[rank].code == 10 + rank);
    CHECK(client.exited[rank].signaled == 0);
  }
  CHECK(client.errors.empty());
  CHECK(left_of(job) == "");
}

TEST_CASE("argv, environment and output are the same bytes inside") {
  const std::string nasty = "a b'c\"d$(id)`x`\\\n\t{a: b} \xff\xfe \x01*";
  wire::JobSpec job = box_job({"rank-helper", "show", nasty, "", "--x=\xc3\xa4"});
  job.env = {{"JOB", nasty}, {"SORTIE_RUN_ID", "forged"}, {"BIG", std::string(100000, 'b')}};
  RunnerClient client(SORTIE_RUNNER_BINARY,
                      {"PATH=" + std::string(::getenv("PATH")), "HOME=/root", "SECRET=1",
                       "LC_ALL=C", "DOCKER_HOST=" + std::string(::getenv("DOCKER_HOST"))});
  REQUIRE(client.run(job));
  using namespace std::string_literals;
  CHECK(client.out[0].starts_with("arg rank-helper\0arg show\0arg "s + nasty +
                                  "\0arg \0arg --x=\xc3\xa4\0env "s));
  const auto env = shown_environment(client.out[0]);
  CHECK(env.at("JOB") == nasty);
  CHECK(env.at("BIG").size() == 100000);
  CHECK(env.at("SORTIE_RUN_ID") == job.run_id);
  CHECK(env.at("FROM_IMAGE") == "a 'b'");
  CHECK(env.at("PATH") == "/opt/tools:/bin");
  CHECK_FALSE(env.contains("SECRET"));
  CHECK_FALSE(env.contains("LC_ALL"));

  wire::JobSpec bytes = box_job({"rank-helper", "binary"});
  RunnerClient second;
  REQUIRE(second.run(bytes));
  CHECK(second.out[0].size() == 256);
  CHECK(second.out[0] == second.err[0]);
  CHECK(left_of(job) + left_of(bytes) == "");
}

TEST_CASE("a rank finds the same state inside as outside, and the image's folder") {
  wire::JobSpec job = box_job({"rank-helper", "state"});
  job.work_dir = "/usr";
  RunnerClient client;
  REQUIRE(client.run(job));
  const std::string& state = client.out[0];
  CHECK(has(state,
            "fds 0 1 2 \nstdin /dev/null\ncwd /home/image\nblocked 0 handled 0\numask 022\n"
            "leader 1 1\n"));
  job = box_job({"pwd"});
  job.container.workdir = "/opt/tools";
  RunnerClient second;
  REQUIRE(second.run(job));
  CHECK(second.out[0] == "/opt/tools\n");
}

TEST_CASE("the pid that is told is the host's, and events arrive") {
  wire::JobSpec job = box_job({"rank-helper", "sleep"}, 2);
  RunnerClient client;
  REQUIRE(client.start(job));
  REQUIRE(client.wait_up(2));
  for (const auto& [rank, pid] : client.pids) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
    const std::string environment((std::istreambuf_iterator<char>(file)), {});
    CHECK(has(environment, "RANK=" + std::to_string(rank)));
  }
  client.send(wire::Stop{500, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited[1].signaled == 1);
  CHECK(client.exited[1].code == SIGTERM);
  CHECK(client.exited[1].stopped == 1);
  client.send(wire::Goodbye{});
  client.wait_exit();
  CHECK(left_of(job) == "");

  wire::JobSpec talker = box_job({"rank-helper", "events"});
  RunnerClient second;
  REQUIRE(second.run(talker));
  REQUIRE(second.events[0].size() >= 2);
  CHECK(second.events[0][0] == "{\"step\":1,\"loss\":2.5}");

  RunnerClient third;
  wire::JobSpec asker = box_job({"rank-helper", "ask"});
  REQUIRE(third.start(asker));
  REQUIRE(third.wait_until([&] { return third.events[0].size() == 1; }));
  third.send(wire::RankAnswer{0, "{\"number\":1}"});
  REQUIRE(third.wait_finished());
  CHECK(third.out[0] == "{\"number\":1}\n");
  third.send(wire::Goodbye{});
  third.wait_exit();
  CHECK(left_of(asker) == "");
}

TEST_CASE("one container per rank, with one /dev/shm among them") {
  wire::JobSpec job = box_job({"sh", "-c",
                               "if [ $RANK = 0 ]; then echo here > /dev/shm/x; sleep 1; else "
                               "for i in $(seq 1 300); do test -e /dev/shm/x && break; sleep 0.1; "
                               "done; cat /dev/shm/x; stat -f -c %b*%S /dev/shm; fi; ls /proc | "
                               "head -n 1; echo $OMPI_MCA_btl_vader_single_copy_mechanism"},
                              2);
  job.container.scope = wire::ContainerScope::rank;
  job.container.shm_bytes = 8u << 20;
  RunnerClient client;
  REQUIRE(client.prepare(job));  // containers are up before ranks, gone with the last one
  const std::string names = DockerEngine::get().containers();
  CHECK(has(names, "sortie-" + job.run_id + "-a1-n0-r0 Up"));
  CHECK(has(names, "sortie-" + job.run_id + "-a1-n0-r1 Up"));
  client.send(wire::Start{});
  REQUIRE(client.wait_finished());
  CHECK(client.out[1] == "here\n2048*4096\n1\nnone\n");
  CHECK(client.exited[1].code == 0);
  client.send(wire::Goodbye{});
  client.wait_exit();
  CHECK(left_of(job) == "");
}

TEST_CASE("mounts, user, groups, limits and the entrypoint") {
  const fs::path folder = "/tmp/sortie-mount-" + std::to_string(::getpid());
  fs::create_directories(folder / "a, b");
  std::ofstream(folder / "a, b" / "data") << "content\n";
  fs::permissions(folder, static_cast<fs::perms>(0777));
  wire::JobSpec job = box_job({"-c",
                               "cat /data/data; touch /data/new || echo sealed; touch /out/made; "
                               "id -u; id -g; cat /sys/fs/cgroup/memory/memory.limit_in_bytes"},
                              2);
  job.container.mounts = {{folder / "a, b", "/data", "ro"}, {folder, "/out", "rw"}};
  job.container.entrypoint = {"/bin/sh"};
  job.container.user = "1234:2345";
  job.container.rank_memory_bytes = 64u << 20;
  RunnerClient client;
  REQUIRE(client.run(job));
  CHECK(client.out[0] == "content\nsealed\n1234\n2345\n134217728\n");
  struct stat info {};
  CHECK(::stat((folder / "made").c_str(), &info) == 0);
  CHECK(info.st_uid == 1234);
  fs::remove_all(folder);
  CHECK(left_of(job) == "");

  wire::JobSpec own = box_job({"exit", "7"});
  own.container.image = DockerEngine::kEntryImage;
  own.container.image_id = DockerEngine::get().image_id(DockerEngine::kEntryImage);
  RunnerClient second;
  REQUIRE(second.run(own));
  CHECK(second.exited[0].code == 7);
  own.argv = {"sh", "-c", "exit 8"};
  own.container.entrypoint = {""};
  own.run_id += "b";
  RunnerClient third;
  REQUIRE(third.run(own));
  CHECK(third.exited[0].code == 8);
}

TEST_CASE("a program that is not in the image, or can not be run") {
  struct Case {
    std::vector<std::string> argv;
    std::uint32_t code;
    const char* says;
  };
  for (const Case& one : {Case{{"no-such-program"}, 127, "not in PATH=/opt/tools:/bin"},
                          Case{{"/no/such"}, 127, "it must be in the image, or under a mount"},
                          Case{{"/opt/tools/broken"}, 127, "its interpreter"},
                          Case{{"/opt/tools/plain"}, 126, "needs execute permission"}}) {
    const wire::JobSpec job = box_job(one.argv);
    RunnerClient client;
    REQUIRE(client.run(job));
    CHECK(client.exited[0].code == one.code);
    REQUIRE(client.errors.size() == 1);
    CHECK(client.errors[0].code == "spawn");
    CHECK_MESSAGE(has(client.errors[0].message, one.says), client.errors[0].message);
    CHECK(has(client.errors[0].message, "image sortie-test:1, container sortie-"));
    CHECK(left_of(job) == "");
  }
}

TEST_CASE("an OOM kill is told with the limit") {
  wire::JobSpec job = box_job({"rank-helper", "eat", "200"});
  job.container.rank_memory_bytes = 48u << 20;
  RunnerClient client;
  REQUIRE(client.run(job));
  CHECK(client.exited[0].signaled == 1);
  CHECK(client.exited[0].code == SIGKILL);
  CHECK(client.exited[0].oom_killed == 1);
  CHECK(client.exited[0].memory_limit_bytes == 48u << 20);
  CHECK(left_of(job) == "");
}

TEST_CASE("what can not be: one clear error and no container") {
  wire::JobSpec job = box_job({"true"});
  job.container.mounts = {
      {"/no/such/a", "/a", "ro"}, {"/tmp", "/b", "rw"}, {"/no/such/c", "/c", ""}};
  CHECK(refused(job) ==
        "unsupported: container: mounts: not on this host: /no/such/a (No such file or directory), "
        "/no/such/c (No such file or directory); make it, or name the path that this host has");
  job = box_job({"true"});
  job.container.image = "absent:1";
  job.container.image_id.clear();
  CHECK(has(refused(job), "not_found: image absent:1: is not here, and pull = \"never\""));
  job = box_job({"true"});
  job.container.extra_args = {"--no-such-option"};
  CHECK(has(refused(job), "exit code 125: docker: run: unknown flag: --no-such-option"));
  job = box_job({"true"});
  job.container.extra_args = {"--no-such-rlimit"};  // not one of those that are wishes
  job.container.ulimits = {{"memlock", "-1"}};
  job.container.ulimits_are_wishes = 1;
  CHECK(has(refused(job), "exit code 125: docker: run: unknown flag: --no-such-rlimit"));
  job = box_job({"true"});
  job.container.gpus = "slots";
  CHECK(refused(job) == "unsupported: container: gpus = \"slots\", and this host has no GPU");
  job = box_job({"true"});
  job.container.engine = "nerdctl";
  CHECK(has(refused(job), "unsupported: container engine: nerdctl is not installed here"));
  job = box_job({"true"});
  job.container.network = "none";
  job.mpi = 2;
  CHECK(has(refused(job), "MPI ranks in containers need network = \"host\""));
  CHECK(DockerEngine::get().containers_left() == "");
}

TEST_CASE("stdin of a rank") {
  wire::JobSpec job = box_job({"cat"});
  job.input_window = 1u << 16;
  RunnerClient client;
  REQUIRE(client.start(job));
  client.send(wire::Input{"some\n", 0});
  client.send(wire::Input{"bytes", 1});
  REQUIRE(client.wait_finished());
  CHECK(client.out[0] == "some\nbytes");
}

TEST_CASE("much output, without a daemon in its way") {
  const wire::JobSpec job = box_job({"rank-helper", "pattern", "33554432"});
  RunnerClient client;
  REQUIRE(client.run(job));
  CHECK(client.out[0].size() == 33554432);
}
