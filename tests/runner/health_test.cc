// sortie-health alongside the ranks of a real runner: its findings reach the launcher, and it never
// makes a job fail.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "runner/helper/health_helper.h"
#include "runner/process/process_tree.h"
#include "tests/support/runner_client.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;

namespace {

/// A runner whose sortie-health reads a kernel log written by the test.
struct WatchedHost {
  WatchedHost() {
    write_text(folder / "kmsg", "");
    client = std::make_unique<RunnerClient>(SORTIE_RUNNER_BINARY, environment());
  }
  std::vector<std::string> environment() const {
    return {"PATH=/usr/bin:/bin", "HOME=" + folder.path().string(),
            "SORTIE_HEALTH_KMSG=" + folder.str("kmsg"), "SORTIE_HEALTH_TICK_MS=20"};
  }
  void kernel(const std::string& message) const {
    std::ofstream(folder / "kmsg", std::ios::app) << "4,1,1000,-;" << message << "\n";
  }
  /// The next finding of this kind.
  nlohmann::json finding(const std::string& kind) const {
    for (int i = 0; i < 20; ++i) {
      const auto event = client->expect<wire::HealthEvent>();
      if (!event) break;
      auto json = nlohmann::json::parse(event->json, nullptr, false);
      REQUIRE(json.is_object());
      if (json["kind"] == kind) return json;
    }
    FAIL_CHECK("no finding of kind " << kind);
    return nlohmann::json::object();
  }
  ScopedTempDir folder;
  std::unique_ptr<RunnerClient> client;
};

wire::JobSpec watched_job() {
  wire::JobSpec job = make_job({"/bin/sh", "-c", "until test -e \"$GATE\"; do sleep 0.02; done"});
  job.health = 1;
  return job;
}

/// The sortie-health process, a direct child of the runner; -1 if there is none.
pid_t helper_of(pid_t runner) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || parent_if_alive(pid) != runner)
      continue;  // processes come and go while /proc is read
    const std::string command = read_text(entry.path() / "cmdline");
    if (command.starts_with(std::string("sortie-health") + '\0')) return pid;
  }
  return -1;
}

bool is_gone(pid_t pid, milliseconds limit = RunnerClient::kPatience) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (::kill(pid, 0) == 0) {
    if (std::chrono::steady_clock::now() > until) return false;
    ::usleep(5000);
  }
  return true;
}

}  // namespace

TEST_CASE("what sortie-health finds reaches the launcher, numbered, while the ranks run") {
  WatchedHost host;
  wire::JobSpec job = watched_job();
  job.env = {{"GATE", host.folder.str("gate")}};
  REQUIRE(host.client->start(job));
  CHECK(host.finding("sources")["n"] == 1);
  host.kernel("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.");
  const auto xid = host.finding("xid");
  CHECK(xid["n"] == 2);
  CHECK(xid["type"] == "health");
  CHECK(xid["code"] == 79);
  CHECK(xid["device"] == "0000:3b:00.0");
  const pid_t helper = helper_of(host.client->pid());
  REQUIRE(helper > 0);
  write_text(host.folder / "gate", "");
  REQUIRE(host.client->wait_finished());
  CHECK(host.client->exited.at(0).code == 0);
  CHECK(host.client->errors.empty());
  host.client->send(wire::Goodbye{});
  CHECK(host.client->wait_exit()->success());
  CHECK(is_gone(helper));
  CHECK(remains(job) == "");
}

TEST_CASE("a job without it has no such process") {
  WatchedHost host;
  wire::JobSpec job = watched_job();
  job.env = {{"GATE", host.folder.str("gate")}};
  job.health = 0;
  REQUIRE(host.client->start(job));
  REQUIRE(host.client->expect<wire::RankStarted>());
  CHECK(helper_of(host.client->pid()) == -1);
  const std::size_t beats = host.client->beats;
  REQUIRE(host.client->wait_until([&] { return host.client->beats >= beats + 3; }));
  CHECK(helper_of(host.client->pid()) == -1);
  write_text(host.folder / "gate", "");
  CHECK(host.client->wait_finished());
}

TEST_CASE("sortie-health is killed: that is said, the job goes on, it comes back") {
  WatchedHost host;
  wire::JobSpec job = watched_job();
  job.env = {{"GATE", host.folder.str("gate")}};
  REQUIRE(host.client->start(job));
  host.finding("sources");
  const pid_t helper = helper_of(host.client->pid());
  REQUIRE(helper > 0);
  REQUIRE(::kill(helper, SIGKILL) == 0);
  const auto lost = host.finding("helper_lost");
  CHECK(lost["source"] == "runner");
  CHECK(lost["text"].get<std::string>().find("signal 9") != std::string::npos);
  // Arrives after runner::HealthHelper::kRestartPause.
  CHECK(host.finding("sources")["n"] == 3);
  host.kernel("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault");
  CHECK(host.finding("xid")["code"] == 31);
  CHECK(host.client->exited.empty());
  write_text(host.folder / "gate", "");
  REQUIRE(host.client->wait_finished());
  CHECK(host.client->exited.at(0).code == 0);
  host.client->send(wire::Goodbye{});
  CHECK(host.client->wait_exit()->success());
  CHECK(remains(job) == "");
}

TEST_CASE("the runner is killed: nothing of sortie-health is left") {
  WatchedHost host;
  wire::JobSpec job = watched_job();
  job.env = {{"GATE", host.folder.str("gate")}};
  REQUIRE(host.client->start(job));
  host.finding("sources");
  const pid_t helper = helper_of(host.client->pid());
  REQUIRE(helper > 0);
  host.client->signal(SIGKILL);
  CHECK(is_gone(helper));
  CHECK(remains(job) == "");
}

TEST_CASE("a keeper is killed: what is swept then is not sortie-health") {
  WatchedHost host;
  wire::JobSpec job = watched_job();
  job.env = {{"GATE", host.folder.str("gate")}};
  REQUIRE(host.client->start(job));
  host.finding("sources");
  const pid_t helper = helper_of(host.client->pid());
  REQUIRE(helper > 0);
  while (!host.client->pids.contains(0)) REQUIRE(host.client->next());
  ::kill(parent_of(host.client->pids.at(0)), SIGKILL);
  REQUIRE(host.client->wait_finished());
  CHECK(host.client->exited.at(0).signaled == 1);
  for (const wire::RunnerError& error : host.client->errors) CHECK(error.message == "");
}

TEST_CASE("a launcher that comes back is told again, with the age of each finding") {
  WatchedHost host;
  wire::JobSpec job = watched_job();
  job.env = {{"GATE", host.folder.str("gate")}};
  job.hold_ms = 20'000;
  REQUIRE(host.client->start(job));
  host.finding("sources");
  host.kernel("EXT4-fs error (device sda1): ext4_find_entry: reading directory");
  CHECK_FALSE(host.finding("disk").contains("age_ms"));
  host.client->pump(milliseconds(300));
  host.client->close_input();
  host.client->close_output();
  RunnerClient again(SORTIE_RUNNER_BINARY, host.environment());  // the same base for run folders
  again.send(wire::Hello{wire::kProtocolVersion, ""});
  REQUIRE(again.expect<wire::Hello>());
  wire::Adopt adopt;
  adopt.protocol_version = wire::kProtocolVersion;
  adopt.run_id = job.run_id;
  adopt.attempt = job.attempt;
  adopt.node_rank = job.node_rank;
  adopt.epoch = 2;
  adopt.link = 1;
  again.send(adopt);
  REQUIRE(again.expect<wire::Adopted>());
  for (const char* kind : {"sources", "disk"}) {
    const auto event = again.expect<wire::HealthEvent>();
    REQUIRE(event);
    const auto finding = nlohmann::json::parse(event->json);
    CHECK(finding["kind"] == kind);
    CHECK(finding["age_ms"] >= 250);
  }
  write_text(host.folder / "gate", "");
  CHECK(again.wait_finished());
  again.send(wire::Goodbye{});
}

TEST_CASE("the words that sortie-health is started with") {
  const char* const environment[] = {"PATH=/bin",
                                     "SORTIE_HEALTH_KMSG=/k",
                                     "SORTIE_HEALTH_NVML=/n.so",
                                     "SORTIE_HEALTH_OTHER=x",
                                     "XSORTIE_HEALTH_ROOT=/r",
                                     nullptr};
  CHECK(runner::health_argv({"/tmp", "/work"}, const_cast<char* const*>(environment)) ==
        std::vector<std::string>{"sortie-health", "--folder", "/tmp", "--folder", "/work", "--kmsg",
                                 "/k", "--nvml", "/n.so"});
}
