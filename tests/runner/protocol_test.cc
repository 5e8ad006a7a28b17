// The handshake, and every invalid message of a launcher.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runner/job/job_check.h"
#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST_CASE("Hello is answered with version and build, JobReady tells the host's facts") {
  RunnerClient client;
  const auto begin = steady_clock::now();
  client.send(wire::Hello{wire::kProtocolVersion, "abc"});
  const auto hello = client.expect<wire::Hello>();
  REQUIRE(hello);
  MESSAGE("exec to Hello: "
          << std::chrono::duration<double, std::milli>(steady_clock::now() - begin).count()
          << " ms");
  CHECK(hello->protocol_version == wire::kProtocolVersion);
  CHECK(hello->build == "abc");
  const wire::JobSpec job = make_job({"true"});
  client.send(job);
  const auto ready = client.expect<wire::JobReady>();
  REQUIRE(ready);
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  CHECK(ready->hostname == name);
  CHECK(ready->cpus >= 1);
  CHECK(ready->memory_bytes > (64u << 20));
  CHECK(ready->kernel.starts_with("Linux "));
  const bool cgroup_told = ready->cgroup.starts_with("v2 /") || ready->cgroup.starts_with("none: ");
  CHECK(cgroup_told);
  CHECK(ready->pmix == "none: off");
}

TEST_CASE("a runner installed under a hash answers with it and refuses another") {
  const std::filesystem::path folder = "/tmp/sortie-test-cache-" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  const std::string binary = folder / "runner-0123abcd";
  std::filesystem::copy_file(SORTIE_RUNNER_BINARY, binary);
  {
    RunnerClient client(binary);
    client.send(wire::Hello{wire::kProtocolVersion, "0123abcd"});
    CHECK(client.expect<wire::Hello>()->build == "0123abcd");
  }
  {
    RunnerClient client(binary);
    client.send(wire::Hello{wire::kProtocolVersion, "ffff"});
    CHECK(client.expect<wire::Hello>()->build == "0123abcd");
    const auto error = client.expect<wire::RunnerError>();
    REQUIRE(error);
    CHECK(error->code == "runner");
    CHECK(error->message == "this runner is build 0123abcd, the launcher expects ffff");
    CHECK(client.wait_exit()->code == 1);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("another protocol version: Hello, RunnerError, end") {
  RunnerClient client;
  client.send(wire::Hello{wire::kProtocolVersion + 1, "abc"});
  REQUIRE(client.expect<wire::Hello>());
  const auto error = client.expect<wire::RunnerError>();
  REQUIRE(error);
  CHECK(error->code == "protocol");
  CHECK(client.wait_exit()->code == 1);
}

TEST_CASE("orders out of turn end the conversation with a reason") {
  const wire::JobSpec job = make_job({"true"});
  SUBCASE("a job before Hello") {
    RunnerClient client;
    client.send(job);
    CHECK(client.expect<wire::RunnerError>()->message == "the first message must be Hello");
    CHECK(client.wait_exit()->code == 1);
  }
  SUBCASE("Start before a job") {
    RunnerClient client;
    client.send(wire::Hello{});
    client.send(wire::Start{});
    CHECK(client.expect<wire::RunnerError>()->message == "an order for a job before JobSpec");
    CHECK(client.wait_exit()->code == 1);
  }
  SUBCASE("two jobs") {
    RunnerClient client;
    REQUIRE(client.prepare(job));
    client.send(job);
    CHECK(client.expect<wire::RunnerError>()->message == "JobSpec twice, or after another order");
    CHECK(client.wait_exit()->code == 1);
  }
  SUBCASE("Goodbye while ranks run") {
    wire::JobSpec sleeping = make_job({"sleep", "30"});
    RunnerClient client;
    REQUIRE(client.start(sleeping));
    REQUIRE(client.expect<wire::RankStarted>());
    client.send(wire::Goodbye{});
    CHECK(client.expect<wire::RunnerError>()->message == "Goodbye while ranks run");
    CHECK(client.wait_exit()->code == 1);
    CHECK(remains(sleeping) == "");
  }
  SUBCASE("a PMIx message for a job without PMIx") {
    RunnerClient client;
    REQUIRE(client.prepare(job));
    client.send(wire::PmixFenceDone{"k", 0, ""});
    CHECK(client.expect<wire::RunnerError>()->code == "protocol");
    CHECK(client.wait_exit()->code == 1);
  }
  CHECK(remains(job) == "");
}

TEST_CASE("end of input before anything was said is no error") {
  RunnerClient client;
  client.close_input();
  CHECK(client.wait_exit()->success());
}

TEST_CASE("without --stdio the runner says how it is meant to be started") {
  const std::string runner = SORTIE_RUNNER_BINARY;
  CHECK(std::system((runner + " 2>&1 | grep -q '^usage: sortie-runner --stdio'").c_str()) == 0);
  CHECK(std::system((runner + " 2>/dev/null").c_str()) == 2 << 8);
  CHECK(std::system((runner + " --stdio </dev/null").c_str()) == 0);  // immediate end of input
  CHECK(std::system((runner + " --stdio <&- >&- 2>&-").c_str()) == 0);
}

#ifdef SORTIE_RUNNER_IS_STATIC
TEST_CASE("the runner needs no library of the host") {
  const std::string runner = SORTIE_RUNNER_BINARY;
  CHECK(std::system(("ldd " + runner + " 2>&1 | grep -q 'not a dynamic executable'").c_str()) == 0);
  MESSAGE("size: " << std::filesystem::file_size(runner) << " bytes");
}
#endif

TEST_CASE("a second runner of the same run, attempt and node is refused") {
  const wire::JobSpec job = make_job({"true"});
  RunnerClient first;
  REQUIRE(first.prepare(job));
  RunnerClient second;
  second.send(wire::Hello{});
  second.send(job);
  const auto error = second.expect<wire::RunnerError>();
  REQUIRE(error);
  CHECK(error->code == "runner");
  CHECK(error->message.ends_with("another runner of this run and attempt is alive here"));
  CHECK(second.wait_exit()->code == 1);
  first.send(wire::Start{});
  REQUIRE(first.wait_finished());
  CHECK(first.exited.at(0).code == 0);
  first.send(wire::Goodbye{});
  CHECK(first.wait_exit()->success());
  CHECK(remains(job) == "");
}

TEST_CASE("a base folder that is a planted link is refused") {
  const std::filesystem::path home = "/tmp/sortie-test-xdg-" + std::to_string(::getpid());
  std::filesystem::create_directory(home);
  ::chmod(home.c_str(), 0700);
  std::filesystem::create_directory_symlink("/tmp",
                                            home / ("sortie-" + std::to_string(::geteuid())));
  const wire::JobSpec job = make_job({"true"});
  RunnerClient client(SORTIE_RUNNER_BINARY, {"PATH=/usr/bin", "XDG_RUNTIME_DIR=" + home.string()});
  client.send(wire::Hello{});
  client.send(job);
  const auto error = client.expect<wire::RunnerError>();
  REQUIRE(error);
  CHECK(error->code == "io");
  CHECK(error->message.find("not a private folder of this user") != std::string::npos);
  std::filesystem::remove_all(home);
}

TEST_CASE("a bad JobSpec is refused with the field's name") {
  const wire::JobSpec good = make_job({"true"}, 2);
  REQUIRE(runner::check_job(good));
  struct Case {
    const char* expected;
    void (*spoil)(wire::JobSpec&);
  };
  const Case cases[] = {
      {"job: run_id: not of the form [a-z0-9-]{1,64}", [](auto& j) { j.run_id = "../x"; }},
      {"job: run_id: not of the form [a-z0-9-]{1,64}", [](auto& j) { j.run_id = ""; }},
      {"job: run_id: not of the form [a-z0-9-]{1,64}", [](auto& j) { j.run_id.assign(65, 'a'); }},
      {"job: attempt: 0, counts from 1", [](auto& j) { j.attempt = 0; }},
      {"job: host: empty, longer than 255 bytes or with a zero byte", [](auto& j) { j.host = ""; }},
      {"job: argv: no program", [](auto& j) { j.argv.clear(); }},
      {"job: argv: no program", [](auto& j) { j.argv = {""}; }},
      {"job: argv: an argument holds a zero byte",
       [](auto& j) {
         j.argv = {"x", std::string("a\0b", 3)};
       }},
      {"job: work_dir: holds a zero byte", [](auto& j) { j.work_dir = std::string("/\0", 2); }},
      {"job: env: a name is empty or holds '=' or a zero byte",
       [](auto& j) {
         j.env = {{"", "x"}};
       }},
      {"job: env: a name is empty or holds '=' or a zero byte",
       [](auto& j) {
         j.env = {{"A=B", "x"}};
       }},
      {"job: env: A holds a zero byte",
       [](auto& j) {
         j.env = {{"A", std::string(1, '\0')}};
       }},
      {"job: rank 1: env: a name is empty or holds '=' or a zero byte",
       [](auto& j) {
         j.ranks[1].env = {{"=", ""}};
       }},
      {"job: ranks: 0 of them, must be 1 to 4096", [](auto& j) { j.ranks.clear(); }},
      {"job: ranks: 5000 of them, must be 1 to 4096", [](auto& j) { j.ranks.resize(5000); }},
      {"job: world_size: 1 does not fit 2 ranks (limit 1048576)",
       [](auto& j) { j.world_size = 1; }},
      {"job: rank 2: outside the world of 2", [](auto& j) { j.ranks[1].rank = 2; }},
      {"job: rank 0: twice", [](auto& j) { j.ranks[1].rank = 0; }},
      {"job: rank 1: local_rank 0 is taken", [](auto& j) { j.ranks[1].local_rank = 0; }},
      {"job: rank 1: local_rank 2 of 2 local ranks", [](auto& j) { j.ranks[1].local_rank = 2; }},
      {"job: grace_ms: 4294967295 is more than a day", [](auto& j) { j.grace_ms = ~0u; }},
      {"job: heartbeat: interval 0 ms and timeout 20000 ms; the timeout must be the larger one, "
       "both "
       "1 ms to a day",
       [](auto& j) { j.heartbeat_interval_ms = 0; }},
      {"job: heartbeat: interval 200 ms and timeout 200 ms; the timeout must be the larger one, "
       "both 1 ms to a day",
       [](auto& j) { j.heartbeat_timeout_ms = 200; }},
      {"job: output_window: 0 is not within 65536 to 1073741824",
       [](auto& j) { j.output_window = 0; }},
      {"job: mpi: 3 is not 0, 1 or 2", [](auto& j) { j.mpi = 3; }},
      {"job: list of hosts: an entry counts no host or no rank",
       [](auto& j) { j.nodes.front().ranks = 0; }},
  };
  for (const Case& one : cases) {
    wire::JobSpec job = good;
    one.spoil(job);
    const Result<> result = runner::check_job(job);
    CAPTURE(one.expected);
    REQUIRE_FALSE(result);
    CHECK(result.error().message == one.expected);
    CHECK(result.error().code == ErrorCode::protocol);
  }
  // The same with the real binary: an error value, not a crash.
  wire::JobSpec job = good;
  job.ranks[1].rank = 0;
  RunnerClient client;
  client.send(wire::Hello{});
  client.send(job);
  CHECK(client.expect<wire::RunnerError>()->message == "job: rank 0: twice");
  CHECK(client.wait_exit()->code == 1);
}
