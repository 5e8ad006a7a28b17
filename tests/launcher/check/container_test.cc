// Checks of containers: from facts to verdicts, and parsing of a host's facts.
#include <doctest/doctest.h>

#include <algorithm>

#include "launcher/check/requests.h"
#include "tests/launcher/check/reports.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::launcher::check;
using namespace sortie::test;

namespace {

const std::string kId = "sha256:" + std::string(64, 'a');

HostResult docker_host(const std::string& name) {
  HostResult host = sound_host(name);
  ContainerFacts facts;
  facts.client = "docker";
  facts.version = "28.2.2";
  facts.root = "/var/lib/docker";
  facts.image_present = true;
  facts.image_id = kId;
  facts.free_bytes = std::uint64_t{100} << 30;
  facts.total_bytes = std::uint64_t{200} << 30;
  host.report.container = facts;
  return host;
}

Expectations docker_job() {
  Expectations expect = sound_expectations();
  expect.container = {"docker", "trainer:1", "missing", "auto", "", std::uint64_t{1} << 30, {}};
  return expect;
}

Finding found(const HostResult& host, const Expectations& expect, const std::string& check) {
  return finding_of({host}, expect, check, 0);
}

}  // namespace

TEST_CASE("a container job is checked for its engine and image, not for a program of the host") {
  const auto names = check_names(docker_job());
  for (const char* name : {"engine", "image", "image_disk", "gpu_runtime", "mounts", "port", "shm"})
    CHECK(std::ranges::find(names, name) != names.end());
  for (const char* name : {"program", "mpi"}) CHECK(std::ranges::find(names, name) == names.end());
  for (const char* name : {"engine", "image", "image_disk", "gpu_runtime", "mounts", "shm"}) {
    CAPTURE(name);
    CHECK(found(docker_host("h1"), docker_job(), name).verdict == Verdict::pass);
  }
  const auto bare = check_names(sound_expectations());
  CHECK(std::ranges::find(bare, "engine") == bare.end());
}

TEST_CASE("an engine that is not there, not allowed, or does not run: what to do about each") {
  struct Row {
    const char* problem;
    const char* fix;
  };
  for (const Row& row : {Row{"absent", "install docker there"}, Row{"denied", "group docker"},
                         Row{"root", "sign in there as root"},
                         Row{"stopped", "systemctl start docker"}, Row{"other", "docker info"}}) {
    HostResult host = docker_host("h1");
    host.report.container->problem = row.problem;
    host.report.container->error = "words of the engine";
    const Finding finding = found(host, docker_job(), "engine");
    CHECK(finding.verdict == Verdict::fail);
    CHECK(finding.reason.find("words of the engine") != std::string::npos);
    CHECK(finding.fix.find(row.fix) != std::string::npos);
    CHECK(found(host, docker_job(), "image").verdict == Verdict::none);
  }
  HostResult host = docker_host("h1");
  host.report.container->rootless = true;
  CHECK(found(host, docker_job(), "engine").reason == "docker 28.2.2, rootless");
}

TEST_CASE("an image: missing, another one than most have, room for it") {
  HostResult host = docker_host("h1");
  host.report.container->image_present = false;
  host.report.container->image_id.clear();
  Expectations expect = docker_job();
  CHECK(found(host, expect, "image").verdict == Verdict::pass);
  CHECK(found(host, expect, "image").reason == "trainer:1 is not there: the run pulls it");
  host.report.container->free_bytes = std::uint64_t{5} << 30;
  CHECK(found(host, expect, "image_disk").verdict == Verdict::warn);
  host.report.container->free_bytes = 1u << 20;
  CHECK(found(host, expect, "image_disk").verdict == Verdict::fail);
  expect.container->pull = "never";
  CHECK(found(host, expect, "image").verdict == Verdict::fail);
  CHECK(found(host, expect, "image").fix.find("sortie image push trainer:1") != std::string::npos);

  std::vector<HostResult> hosts = {docker_host("h1"), docker_host("h2"), docker_host("h3")};
  hosts[1].report.container->image_id = "sha256:" + std::string(64, 'b');
  CHECK(finding_of(hosts, docker_job(), "image", 0).verdict == Verdict::pass);
  CHECK(finding_of(hosts, docker_job(), "image", 1).verdict == Verdict::fail);
}

TEST_CASE("GPUs need the toolkit, and asking for them needs GPUs") {
  HostResult host = docker_host("h1");
  host.report.gpus = GpuFacts{};
  Expectations expect = docker_job();
  CHECK(found(host, expect, "gpu_runtime").verdict == Verdict::pass);
  expect.container->gpus = "slots";
  CHECK(found(host, expect, "gpu_runtime").verdict == Verdict::fail);
  host.report.gpus->driver = 1;
  CHECK(found(host, expect, "gpu_runtime").fix.find("nvidia-container-toolkit") !=
        std::string::npos);
  host.report.container->gpu_runtime = true;
  CHECK(found(host, expect, "gpu_runtime").verdict == Verdict::pass);
  host.report.gpus = GpuFacts{};
  host.report.gpus->rocm = 1;
  host.report.container->gpu_runtime = false;
  CHECK(found(host, expect, "gpu_runtime").verdict == Verdict::pass);
}

TEST_CASE("mounts that are not there, and shared memory that is too small") {
  HostResult host = docker_host("h1");
  host.report.container->missing_mounts = {"/host/data: No such file or directory"};
  CHECK(found(host, docker_job(), "mounts").verdict == Verdict::fail);
  CHECK(found(host, docker_job(), "mounts").reason == "/host/data: No such file or directory");
  Expectations expect = docker_job();
  expect.container->shm_bytes = 0;  // the engine's default of 64 MiB, for two ranks
  CHECK(found(host, expect, "shm").verdict == Verdict::warn);
  expect.container->shm_bytes = 1ull << 40;  // the host has 64 GiB
  CHECK(found(host, expect, "shm").verdict == Verdict::warn);
  CHECK(test::has(found(host, expect, "shm").reason, ", more than the host's memory of 64"));
  expect.container->ipc = "host";
  CHECK(found(host, expect, "shm").reason.find("in a container") == std::string::npos);
}

TEST_CASE("a host's words about its engine are read, bounded and printable") {
  HostReport report;
  REQUIRE(add_part(
      report, R"({"part":"container","client":"docker","version":"28.2.2","rootless":true,)"
              R"("root":"/var/lib/docker","free_bytes":5,"total_bytes":7,"image_present":true,)"
              R"("image_id":"sha256:\u001b[2J","missing_mounts":["/a: gone",3]})"));
  REQUIRE(report.container);
  CHECK(report.container->rootless);
  CHECK(report.container->free_bytes == 5);
  CHECK(report.container->image_id.find('\x1b') == std::string::npos);
  CHECK(report.container->missing_mounts.front() == "/a: gone");
}
