// Containers in a plan: the orders for hosts, and output for people and programs, without secrets.
#include "launcher/plan/plan_container.h"
#include "tests/launcher/environment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sortie::launcher {
namespace {

const std::vector<config::HostSlots> kHosts = {{"h1", {0, 1}}, {"h2", {5, 2}}};

config::JobConfig container_job() {
  config::JobConfig job;
  job.runner.program = {"./ring", "a b"};
  job.runner.container.engine = "docker";
  job.runner.container.image = "trainer:1";
  return job;
}

LaunchPlan plan_of(const config::JobConfig& job) {
  auto plan = make_plan(job, kHosts, {});
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
  return std::move(*plan);
}

TEST_CASE("the table as hosts get it") {
  config::JobConfig job = container_job();
  config::ContainerConfig& table = job.runner.container;
  table.mounts = {{"/host/data", "/data", "ro"}, {"/host/ckpt", "/ckpt"}};
  table.shm_size = "16GiB";
  table.memory = "1.5g";
  table.cpus = 1.5;
  table.capabilities = {"CAP_IPC_LOCK"};
  table.env = {{"A", "x"}, {"HF_TOKEN", "hush"}};
  const LaunchPlan plan = plan_of(job);
  const wire::JobSpec spec = make_job_spec(plan, plan.hosts[1], job, "r1", {}, "/cache/stage/x");
  const wire::ContainerSpec& container = spec.container;
  CHECK(container.engine == "docker");
  CHECK(container.image == "trainer:1");
  REQUIRE(container.mounts.size() == 3);
  CHECK(container.mounts[0].options == "ro");
  CHECK(container.mounts[1].options == "rw");
  CHECK(container.mounts[2].source == "/cache/stage/x");  // staged files, at the same path
  CHECK(container.mounts[2].target == "/cache/stage/x");
  CHECK(container.mounts[2].options == "ro");
  CHECK(container.shm_bytes == std::uint64_t{16} << 30);
  CHECK(container.rank_memory_bytes == std::uint64_t{3} << 29);
  CHECK(container.rank_cpus_milli == 1500);
  CHECK(container.capabilities == std::vector<std::string>{"IPC_LOCK"});
  CHECK(container.entrypoint.empty());
  CHECK(value_of(spec.env, "A") == "x");
  CHECK(value_of(spec.env, "HF_TOKEN") == "hush");
  CHECK(spec.argv == std::vector<std::string>{"./ring", "a b"});
  CHECK(plan.secrets.contains("HF_TOKEN"));
  job.runner.container = {};
  CHECK(!plan_of(job).container);
}

TEST_CASE("an entrypoint: the image's, none, or another") {
  config::JobConfig job = container_job();
  CHECK(container_spec(job.runner).entrypoint.empty());
  job.runner.container.entrypoint = {};
  CHECK(container_spec(job.runner).entrypoint == std::vector<std::string>{""});
  job.runner.container.entrypoint = {"/init", "-v"};
  CHECK(container_spec(job.runner).entrypoint == std::vector<std::string>{"/init", "-v"});
}

TEST_CASE("runner.work_dir is the working folder inside, unless the table names one") {
  config::JobConfig job = container_job();
  CHECK(container_spec(job.runner).workdir.empty());
  job.runner.work_dir = "/work";
  CHECK(container_spec(job.runner).workdir == "/work");
}

TEST_CASE("devices are counted as the container has them") {
  config::JobConfig job = container_job();
  const auto devices = [&](std::size_t host, std::size_t rank, const char* name) {
    return value_of(plan_of(job).hosts[host].ranks[rank].env, name);
  };
  CHECK(devices(1, 0, "CUDA_VISIBLE_DEVICES") == "5,2");  // the runner renumbers them
  CHECK(devices(1, 0, "ROCR_VISIBLE_DEVICES") == "5,2");
  job.runner.devices = "rank";
  CHECK(devices(1, 1, "CUDA_VISIBLE_DEVICES") == "2");
  job.runner.devices = "host";
  job.runner.container.scope = "rank";
  CHECK(devices(1, 0, "CUDA_VISIBLE_DEVICES") == "5");
  job.runner.container.scope = "host";
  job.runner.container.gpus = "all";
  CHECK(devices(1, 0, "CUDA_VISIBLE_DEVICES") == "5,2");
}

TEST_CASE("the plan shows each host's commands, and no secret and no variable in them") {
  config::JobConfig job = container_job();
  job.runner.container.mounts = {{"/host/my data", "/data", "ro"}};
  job.runner.container.env = {{"HF_TOKEN", "hush"}};
  const LaunchPlan plan = plan_of(job);
  const std::string text = plan_text(plan);
  CAPTURE(text);
  CHECK(text.find("hush") == std::string::npos);
  CHECK(text.find("  image     trainer:1\n") != std::string::npos);
  CHECK(text.find("    docker run --detach --rm --name 'sortie-<run>-a1-n0' ") !=
        std::string::npos);
  CHECK(text.find("-n1' ") != std::string::npos);
  CHECK(text.find("--user '<uid>:<gid>'") != std::string::npos);
  CHECK(text.find("'type=bind,source=/host/my data,target=/data,readonly'") != std::string::npos);
  CHECK(text.find("'<id of trainer:1>' container-init ") != std::string::npos);
  const auto parsed = nlohmann::json::parse(plan_json_text(plan));
  CHECK(parsed["container"]["engine"] == "docker");
  CHECK(parsed["container"]["scope"] == "host");
  REQUIRE(parsed["hosts"][0]["containers"].size() == 1);
  const std::vector<std::string> command = parsed["hosts"][0]["containers"][0];
  CHECK(command[0] == "docker");
  CHECK(std::ranges::find(command, "type=bind,source=/host/my data,target=/data,readonly") !=
        command.end());
  CHECK(parsed.dump().find("hush") == std::string::npos);
}

TEST_CASE("one container per rank is one command per rank") {
  config::JobConfig job = container_job();
  job.runner.container.scope = "rank";
  const LaunchPlan plan = plan_of(job);
  const auto commands = container_commands(plan, plan.hosts[1]);
  REQUIRE(commands);
  REQUIRE(commands->size() == 2);
  const auto holds = [&](std::size_t index, const std::string& word) {
    return std::ranges::find((*commands)[index], word) != (*commands)[index].end();
  };
  CHECK(holds(0, "sortie-<run>-a1-n1-r2"));
  CHECK(holds(1, "sortie-<run>-a1-n1-r3"));
  CHECK(holds(1, "container:sortie-<run>-a1-n1-r2"));  // shares /dev/shm of the first container
}

TEST_CASE("the hash of a plan knows the containers, and not the values of secrets") {
  config::JobConfig job = container_job();
  const std::string before = plan_hash(plan_of(job));
  job.runner.container.mounts = {{"/a", "/b"}};
  const std::string mounted = plan_hash(plan_of(job));
  CHECK(mounted != before);
  job.runner.container.env["X_TOKEN"] = "1";
  const std::string secret = plan_hash(plan_of(job));
  job.runner.container.env["X_TOKEN"] = "2";
  CHECK(plan_hash(plan_of(job)) == secret);
}

TEST_CASE("a training job's program is the image's, and its paths are under mounts") {
  config::JobConfig job;
  job.data.data_prefixes = {"/data/text"};
  job.runner.container.engine = "docker";
  job.runner.container.image = "trainer:1";
  const LauncherFacts facts{"/opt/sortie/bin/sortie-train", "/work", {}, {}};
  const auto bad = make_plan(job, kHosts, facts);
  REQUIRE(!bad);
  CHECK(bad.error().code == ErrorCode::config);
  CHECK(bad.error().message.starts_with("data.data_prefixes: \"/data/text\" is under no mount"));
  job.runner.container.mounts = {{"/host/data", "/data", "ro"}};
  const auto plan = make_plan(job, kHosts, facts);
  REQUIRE(plan);
  CHECK(plan->argv == std::vector<std::string>{"sortie-train", "train"});
}

TEST_CASE(
    "runners refuse MPI off the host's network, and the plan refuses hosts without a network") {
  config::JobConfig job = container_job();
  const auto error_of = [&job](const std::vector<config::HostSlots>& hosts) {
    const auto plan = make_plan(job, hosts, {});
    return plan ? std::string() : plan.error().message;
  };
  job.runner.container.network = "bridge";
  CHECK(plan_of(job).mpi == "auto");
  job.runner.container.network = "none";
  CHECK(error_of(kHosts) ==
        "runner.container.network: \"none\" keeps the ranks of 2 hosts from each other; use "
        "\"host\", or set runner.mpi = \"off\" for ranks that need no others");
  const auto alone = make_plan(job, {kHosts.front()}, {});
  REQUIRE(alone);
  CHECK(alone->mpi == "auto");
  job.runner.mpi = "off";
  CHECK(error_of(kHosts) == "");
  job.runner.program.clear();
  CHECK(error_of(kHosts) ==
        "runner.container.network: \"none\" keeps the ranks of 2 hosts from each other; use "
        "\"host\"");
}

}  // namespace
}  // namespace sortie::launcher
