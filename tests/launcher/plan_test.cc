// The plan as a table: hosts and environments of ranks, and how they are shown.
#include "launcher/plan/plan.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/wire/codec.h"
#include "common/wire/node_list.h"
#include "tests/launcher/environment.h"

namespace sortie::launcher {
namespace {

config::JobConfig program_job() {
  config::JobConfig job;
  job.runner.program = {"./ring", "--size", "8"};
  return job;
}

config::JobConfig trainer_job() {
  config::JobConfig job;
  job.data.data_prefixes = {"/data/text"};
  return job;
}

LauncherFacts facts() {
  return {"/opt/sortie/bin/sortie-train", "/work", {}, {}};
}

const std::vector<config::HostSlots> kTwoHosts = {{"h1", {0, 1}}, {"h2", {0, 2, 5}}};

TEST_CASE("more hosts to go on with than there are: a warning, where there are restarts") {
  config::JobConfig job = program_job();
  job.recovery.min_hosts = 3;
  CHECK(make_plan(job, kTwoHosts, facts())->warnings.empty());
  job.recovery.max_restarts = 1;
  CHECK(make_plan(job, kTwoHosts, facts())->warnings ==
        std::vector<std::string>{"recovery.min_hosts: 3 are more hosts than the 2 of the job: it "
                                 "never continues on fewer"});
}

TEST_CASE("ranks count over hosts and their slots, in order") {
  const LaunchPlan plan = *make_plan(program_job(), kTwoHosts, facts());
  CHECK(plan.world_size == 5);
  REQUIRE(plan.hosts.size() == 2);
  struct Row {
    std::size_t host, index;
    std::string rank, local, node, local_world, devices;
  };
  for (const Row& row :
       {Row{0, 0, "0", "0", "0", "2", "0,1"}, Row{0, 1, "1", "1", "0", "2", "0,1"},
        Row{1, 0, "2", "0", "1", "3", "0,2,5"}, Row{1, 1, "3", "1", "1", "3", "0,2,5"},
        Row{1, 2, "4", "2", "1", "3", "0,2,5"}}) {
    CAPTURE(row.rank);
    const RankPlan& rank = plan.hosts[row.host].ranks[row.index];
    CHECK(std::to_string(rank.rank) == row.rank);
    CHECK(value_of(rank.env, "RANK") == row.rank);
    CHECK(value_of(rank.env, "WORLD_SIZE") == "5");
    CHECK(value_of(rank.env, "LOCAL_RANK") == row.local);
    CHECK(value_of(rank.env, "LOCAL_WORLD_SIZE") == row.local_world);
    CHECK(value_of(rank.env, "NODE_RANK") == row.node);
    CHECK(value_of(rank.env, "GROUP_RANK") == row.node);
    CHECK(value_of(rank.env, "GROUP_WORLD_SIZE") == "2");
    CHECK(value_of(rank.env, "ROLE_NAME") == "default");
    CHECK(value_of(rank.env, "ROLE_RANK") == row.rank);
    CHECK(value_of(rank.env, "ROLE_WORLD_SIZE") == "5");
    CHECK(value_of(rank.env, "CUDA_VISIBLE_DEVICES") == row.devices);
    CHECK(value_of(rank.env, "ROCR_VISIBLE_DEVICES") == row.devices);
  }
}

TEST_CASE("the devices that a rank sees") {
  config::JobConfig job = program_job();
  const auto devices = [&](const char* name) {
    return value_of(make_plan(job, kTwoHosts, facts())->hosts[1].ranks[2].env, name);
  };
  CHECK(devices("CUDA_VISIBLE_DEVICES") == "0,2,5");  // LOCAL_RANK 2 selects device 5
  CHECK(devices("CUDA_DEVICE_ORDER") == "PCI_BUS_ID");
  job.runner.devices = "rank";
  CHECK(devices("CUDA_VISIBLE_DEVICES") == "5");
  CHECK(devices("ROCR_VISIBLE_DEVICES") == "5");
  job.runner.env["CUDA_VISIBLE_DEVICES"] = "7";  // a value set by the user stays
  CHECK(devices("CUDA_VISIBLE_DEVICES") == "(unset)");
  CHECK(devices("CUDA_DEVICE_ORDER") == "(unset)");  // nor is the order of its numbers changed
  CHECK(devices("ROCR_VISIBLE_DEVICES") == "5");
  job.runner.env.erase("CUDA_VISIBLE_DEVICES");
  job.runner.env["CUDA_DEVICE_ORDER"] = "FASTEST_FIRST";
  CHECK(devices("CUDA_VISIBLE_DEVICES") == "5");
  CHECK(devices("CUDA_DEVICE_ORDER") == "(unset)");
  job.runner.devices = "all";
  CHECK(devices("ROCR_VISIBLE_DEVICES") == "(unset)");
}

TEST_CASE("for this machine the plan shows the CPUs") {
  config::JobConfig job = program_job();
  LauncherFacts here = facts();
  here.topology = cpu::Topology{{{0, {0}}, {0, {1}}, {1, {2}}, {1, {3}}}, {}};
  const std::vector<config::HostSlots> hosts = {{"localhost", {0, 1}}, {"h2", {0, 1}}};
  const LaunchPlan plan = *make_plan(job, hosts, here);
  CHECK(plan.hosts[0].ranks[1].cpus == "2-3");
  CHECK(plan.hosts[1].ranks[1].cpus.empty());
  const std::string text = plan_text(plan);
  CHECK(text.find("  host       rank  local    slot  cpus\n"
                  "  localhost     0      0       -  0-1\n"
                  "                1      1       -  2-3\n"
                  "  h2            2      0       0\n") != text.npos);
  CHECK(text.find("  cpus      auto, here: core: 2 ranks on 4 cores, 2 NUMA nodes\n") != text.npos);
  CHECK(plan_json(plan)["hosts"][0]["ranks"][1]["cpus"] == "2-3");
  CHECK(plan_hash(plan) == plan_hash(*make_plan(job, hosts, facts())));  // the same on any machine
  job.runner.cpu_binding = "none";
  CHECK(plan_text(*make_plan(job, hosts, here)).find("  cpus      none, here: none: off\n") !=
        text.npos);
}

TEST_CASE("variables of the config win over those passed through") {
  config::JobConfig job = program_job();
  job.runner.env = {{"NCCL_DEBUG", "INFO"}, {"MODE", "x"}};
  LauncherFacts here = facts();
  here.environment = {
      {"NCCL_DEBUG", "WARN"}, {"NCCL_IB_HCA", "mlx5"}, {"HOME", "/root"}, {"UCX_TLS", "tcp"}};
  const LaunchPlan plan = *make_plan(job, kTwoHosts, here);
  CHECK(plan.env ==
        Environment{
            {"MODE", "x"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_IB_HCA", "mlx5"}, {"UCX_TLS", "tcp"}});
}

TEST_CASE("a star in a name pattern stands for any text") {
  for (const auto& [pattern, text, matches] : {std::tuple{"NCCL_*", "NCCL_DEBUG", true},
                                               {"NCCL_*", "NCCL_", true},
                                               {"NCCL_*", "NCCL", false},
                                               {"*", "", true},
                                               {"*_DIR", "A_DIR_B_DIR", true},
                                               {"A*B*C", "AxBByC", true},
                                               {"A*B*C", "AxC", false},
                                               {"EXACT", "EXACT", true},
                                               {"EXACT", "EXACTLY", false},
                                               {"", "", true},
                                               {"", "x", false},
                                               {"a**b", "ab", true}}) {
    CAPTURE(pattern);
    CAPTURE(text);
    CHECK(matches_pattern(pattern, text) == matches);
  }
  // Must not try all ways to split the text, whose number is exponential.
  std::string pattern;
  for (int i = 0; i < 30; ++i) pattern += "a*";
  CHECK_FALSE(matches_pattern(pattern + "b", std::string(2000, 'a')));
}

TEST_CASE("secrets are shown nowhere, and the hash gives no value away") {
  config::JobConfig job = program_job();
  job.runner.env = {{"HF_TOKEN", "hunter2"}, {"PLAIN", "visible"}};
  job.runner.secret_env = {{"ORDINARY", "hunter2"}};
  job.runner.env_passthrough = {"MY_*"};
  LauncherFacts with_key = facts();
  with_key.environment = {{"MY_API_KEY", "hunter2"}, {"MY_DEBUG", "visible"}};
  const LaunchPlan plan = *make_plan(job, kTwoHosts, with_key);
  CHECK(plan.env == Environment{{"HF_TOKEN", "hunter2"},
                                {"MY_API_KEY", "hunter2"},
                                {"MY_DEBUG", "visible"},
                                {"ORDINARY", "hunter2"},
                                {"PLAIN", "visible"}});
  for (const std::string& text : {plan_text(plan), plan_json(plan).dump()}) {
    CHECK(text.find("hunter2") == text.npos);
    CHECK(text.find("(secret)") != text.npos);
    CHECK(text.find("visible") != text.npos);
  }
  job.runner.env["HF_TOKEN"] = "hunter3";
  CHECK(plan_hash(*make_plan(job, kTwoHosts, with_key)) == plan_hash(plan));
  job.runner.secret_env["ANOTHER"] = "x";
  CHECK(plan_hash(*make_plan(job, kTwoHosts, with_key)) != plan_hash(plan));
  const wire::JobSpec spec = make_job_spec(plan, plan.hosts[0], job, "id", {});
  CHECK(value_of(spec.env, "HF_TOKEN") == "hunter2");  // the ranks get the values
  CHECK(spec.config_toml.find("hunter2") == spec.config_toml.npos);
}

TEST_CASE("the hash tells plans apart that differ in one thing") {
  const auto hash = [](auto change) {
    config::JobConfig job = program_job();
    std::vector<config::HostSlots> hosts = kTwoHosts;
    change(job, hosts);
    return plan_hash(*make_plan(job, hosts, facts()));
  };
  using Job = config::JobConfig&;
  using Hosts = std::vector<config::HostSlots>&;
  std::vector<std::string> seen = {hash([](Job, Hosts) {})};
  CHECK(seen[0].size() == 64);
  CHECK(hash([](Job, Hosts) {}) == seen[0]);
  seen.push_back(hash([](Job job, Hosts) { job.runner.program = {"./ring", "--size 8"}; }));
  // The same words as an argument in one plan and as a variable in the other.
  seen.push_back(hash([](Job job, Hosts) { job.runner.program = {"p", "A", "b"}; }));
  seen.push_back(hash([](Job job, Hosts) {
    job.runner.program = {"p"};
    job.runner.env = {{"A", "b"}};
  }));
  seen.push_back(hash([](Job job, Hosts) { job.runner.work_dir = "/elsewhere"; }));
  seen.push_back(hash([](Job job, Hosts) { job.runner.master_port = 1; }));
  seen.push_back(hash([](Job job, Hosts) { job.runner.mpi = "off"; }));
  seen.push_back(hash([](Job job, Hosts) { job.runner.devices = "rank"; }));
  seen.push_back(hash([](Job job, Hosts) { job.runner.cpu_binding = "none"; }));
  seen.push_back(hash([](Job job, Hosts) { job.runner.network.interface = "eth0"; }));
  seen.push_back(hash([](Job, Hosts hosts) { hosts[1].slots = {0, 2, 4}; }));
  seen.push_back(hash([](Job, Hosts hosts) { hosts[1].name = "h3"; }));
  std::ranges::sort(seen);
  CHECK(std::ranges::adjacent_find(seen) == seen.end());
}

TEST_CASE("a trainer's batch has to fit the ranks, and all problems come at once") {
  config::JobConfig job = trainer_job();
  job.topology.micro_batch_size = 2;
  job.topology.global_batch_size = 24;
  SUBCASE("fits") {
    const LaunchPlan plan = *make_plan(job, {{"h", {0, 1, 2}}}, facts());
    REQUIRE(plan.batch);
    CHECK(*plan.batch == config::BatchPlan{3, 2, 4, 24});
    CHECK(plan.argv == std::vector<std::string>{"/opt/sortie/bin/sortie-train", "train"});
    CHECK(plan_text(plan).find("24 = micro 2 x accumulation 4 x data parallel 3") !=
          std::string::npos);
    CHECK(plan_json(plan)["batch"]["gradient_accumulation_steps"] == 4);
  }
  SUBCASE("does not fit, and there is nothing to train on") {
    job.data.data_prefixes.clear();
    const auto plan = make_plan(job, kTwoHosts, facts());
    REQUIRE_FALSE(plan);
    CHECK(plan.error().code == ErrorCode::config);
    CHECK(plan.error().message.starts_with("data.data_prefixes: no token files to train on"));
    CHECK(plan.error().message.find("\ntopology.global_batch_size: 24 is no multiple of 10") !=
          std::string::npos);
  }
  SUBCASE("another program has no batch") {
    job.runner.program = {"true"};
    CHECK_FALSE(make_plan(job, kTwoHosts, facts())->batch);
  }
}

TEST_CASE("a program that no exec can take is refused before a host is touched") {
  config::JobConfig job = program_job();
  job.runner.program.push_back(std::string(3u << 20, 'x'));
  const auto plan = make_plan(job, kTwoHosts, facts());
  REQUIRE_FALSE(plan);
  CHECK(plan.error().code == ErrorCode::config);
  CHECK(plan.error().message.find("runner.program") != std::string::npos);
}

TEST_CASE("the plan for people") {
  config::JobConfig job = program_job();
  job.runner.program = {"./ring", "two words", "it's", "", "tab\there"};
  const LaunchPlan plan = *make_plan(job, kTwoHosts, facts());
  const std::string text = plan_text(plan);
  CHECK(
      text.starts_with("5 ranks on 2 hosts\n\n"
                       "  host  rank  local    slot\n"
                       "  h1       0      0       0\n"
                       "           1      1       1\n"
                       "  h2       2      0       0\n"
                       "           3      1       2\n"
                       "           4      2       5\n\n"));
  // A line that a shell parses as the same arguments.
  CHECK(text.find("  program   ./ring 'two words' 'it'\\''s' '' 'tab\there'\n") != text.npos);
  CHECK(text.find("  folder    /work\n") != text.npos);
  CHECK(text.find("  master    <chosen at start: address of h1 towards the other hosts>:<chosen "
                  "at start: free on h1>\n  cpus      auto\n") != text.npos);
  job.runner.network.interface = "ib0";
  job.runner.master_port = 29500;
  const std::string other = plan_text(*make_plan(job, kTwoHosts, facts()));
  CHECK(other.find("  master    <chosen at start: address of h1 on ib0>:29500\n"
                   "  network   ib0\n") != other.npos);
  CHECK(text.find("  hash      " + plan_hash(plan).substr(0, 16)) != text.npos);
  CHECK(
      plan_text(*make_plan(job, {{"localhost", {0}}}, facts())).starts_with("1 rank on 1 host\n"));
}

TEST_CASE("a plan names devices where there are some, and slots where nobody knows") {
  const auto table = [](const LaunchPlan& plan) {
    const std::string text = plan_text(plan);
    return text.substr(0, text.find("\n\n  program"));
  };
  LauncherFacts here = facts();
  here.topology = cpu::Topology{{{0, {0}}, {0, {1}}}, {}};
  config::JobConfig job = program_job();
  job.runner.cpu_binding = "none";
  const LaunchPlan bare = *make_plan(job, {{"localhost", {0, 1}}}, here);
  CHECK(bare.hosts[0].gpus == 0u);
  CHECK(table(bare) ==
        "2 ranks on 1 host\n\n"
        "  host       rank  local\n"
        "  localhost     0      0\n"
        "                1      1");
  CHECK(plan_json(bare)["hosts"][0]["gpus"] == 0);
  here.topology->gpus.resize(2);
  CHECK(table(*make_plan(job, {{"localhost", {0, 1}}}, here)) ==
        "2 ranks on 1 host\n\n"
        "  host       rank  local  device\n"
        "  localhost     0      0       0\n"
        "                1      1       1");
  LaunchPlan two = *make_plan(job, kTwoHosts, here);
  CHECK_FALSE(plan_json(two)["hosts"][0].contains("gpus"));
  CHECK(table(two).find("slot") != std::string::npos);
  for (HostPlan& host : two.hosts) host.gpus = 0;  // as the hosts reported
  CHECK(table(two).starts_with("5 ranks on 2 hosts\n\n  host  rank  local\n  h1       0      0\n"));
  two.hosts[0].gpus = 8;
  CHECK(table(two).find("device\n  h1       0      0       0\n") != std::string::npos);
  CHECK(table(two).ends_with("      -"));
  CHECK(plan_json(two)["hosts"][0]["gpus"] == 8);
}

TEST_CASE("the hash of a training covers the config that the trainer reads, whole") {
  const auto hash = [](auto change) {
    config::JobConfig job = trainer_job();
    change(job);
    return plan_hash(*make_plan(job, {{"localhost", {0}}}, facts()));
  };
  using Job = config::JobConfig&;
  const std::string plain = hash([](Job) {});
  CHECK(hash([](Job) {}) == plain);
  std::vector<std::string> seen = {plain};
  seen.push_back(hash([](Job job) { job.model.num_layers = 5; }));
  seen.push_back(hash([](Job job) { job.model.norm_epsilon = 1e-6; }));
  seen.push_back(hash([](Job job) { job.data.data_prefixes = {"/data/other"}; }));
  seen.push_back(hash([](Job job) { job.optimizer.beta2 = 0.99; }));
  seen.push_back(hash([](Job job) { job.trainer.seed = 1; }));
  seen.push_back(hash([](Job job) { job.learning_rate_scheduler.learning_rate = 1e-3; }));
  std::ranges::sort(seen);
  CHECK(std::ranges::adjacent_find(seen) == seen.end());
  // The hash covers only those keys of [runner] that determine the start. The others are not part
  // of the training.
  CHECK(hash([](Job job) { job.runner.heartbeat_interval = std::chrono::seconds(1); }) == plain);
}

TEST_CASE("the plan as JSON") {
  const LaunchPlan plan = *make_plan(program_job(), kTwoHosts, facts());
  const auto parsed = plan_json(plan);
  CHECK(parsed["schema"] == "sortie/plan/1");
  CHECK(parsed["world_size"] == 5);
  CHECK(parsed["argv"] == plan.argv);
  CHECK(parsed["env"].is_object());
  CHECK_FALSE(parsed.contains("batch"));
  REQUIRE(parsed["hosts"].size() == 2);
  CHECK(parsed["hosts"][1]["name"] == "h2");
  CHECK(parsed["hosts"][1]["ranks"][2]["rank"] == 4);
  CHECK(parsed["hosts"][1]["ranks"][2]["slot"] == 5);
  CHECK(parsed["hosts"][1]["ranks"][2]["env"]["LOCAL_RANK"] == "2");
  CHECK(nlohmann::json::parse(plan_json_text(plan)) == nlohmann::json(parsed));
  config::JobConfig job = program_job();
  job.runner.program = {"./ring", "\xff"};  // arguments may contain any bytes
  CHECK(nlohmann::json::parse(plan_json_text(*make_plan(job, kTwoHosts, facts())))["argv"][1] ==
        "\xef\xbf\xbd");
}

TEST_CASE("the list of hosts that each host gets does not grow with regular names") {
  config::JobConfig job = program_job();
  const auto bytes = [&](int count) {
    std::vector<config::HostSlots> hosts;
    for (int i = 0; i < count; ++i) hosts.push_back({fmt::format("node{:05d}", i), {0, 1, 2, 3}});
    const LaunchPlan plan = *make_plan(job, hosts, facts());
    const wire::JobSpec spec = make_job_spec(plan, plan.hosts[1], job, "id-1", {});
    CHECK(wire::expand_nodes(spec.nodes)->size() == hosts.size());
    return wire::encode(spec).size();
  };
  CHECK(bytes(4000) < bytes(2) + 100);
}

TEST_CASE("an argument or a variable that no program can be started with is an error of the plan") {
  constexpr std::size_t kMost = 128u << 10;  // with the terminating NUL
  config::JobConfig job = program_job();
  job.runner.program = {"./ring", std::string(kMost - 1, 'x')};
  CHECK(make_plan(job, kTwoHosts, facts()));
  job.runner.program[1] += 'x';
  CHECK(
      make_plan(job, kTwoHosts, facts()).error().message ==
      "runner.program: argument 1 has 131072 bytes; Linux accepts at most 131071 in one argument; "
      "put it into a file");
  job = program_job();
  job.runner.env["LIST"] = std::string(kMost - 6, 'x');  // less "LIST=" and the NUL
  CHECK(make_plan(job, kTwoHosts, facts()));
  job.runner.env["LIST"] += 'x';
  const auto refused = make_plan(job, kTwoHosts, facts());
  REQUIRE(!refused);
  CHECK(refused.error().code == ErrorCode::config);
  CHECK(refused.error().message ==
        "runner.env: LIST has 131067 bytes; Linux accepts at most 131070 in one variable, name "
        "included; put it into a file");
}

TEST_CASE("arguments that leave no room for the variables of Sortie are an error of the plan") {
  config::JobConfig job = program_job();
  job.runner.program = std::vector<std::string>(15, std::string(131'000, 'x'));
  CHECK(make_plan(job, kTwoHosts, facts()));
  job.runner.program.push_back(job.runner.program.front());
  const auto refused = make_plan(job, kTwoHosts, facts());
  REQUIRE(!refused);
  CHECK(refused.error().code == ErrorCode::config);
  CHECK_MESSAGE(
      refused.error().message.starts_with("runner.program: 2096144 bytes of arguments and "),
      refused.error().message);
  CHECK_MESSAGE(refused.error().message.ends_with(
                    " bytes of environment, together more than 2031616: Linux starts a program "
                    "with at most 2097152, of which 65536 are for the variables that the host and "
                    "Sortie add; put them into a file"),
                refused.error().message);
}

TEST_CASE("a host's slice of the plan") {
  config::JobConfig job = trainer_job();
  job.runner.grace = std::chrono::seconds(3);
  job.runner.mpi = "on";
  const LaunchPlan plan = *make_plan(job, kTwoHosts, facts());
  const wire::JobSpec spec = make_job_spec(plan, plan.hosts[1], job, "id-1", {"10.0.0.7"});
  CHECK(spec.run_id == "id-1");
  CHECK(spec.host == "h2");
  CHECK(spec.node_rank == 1);
  CHECK(spec.world_size == 5);
  CHECK(spec.grace_ms == 3000);
  CHECK(spec.heartbeat_interval_ms == 2000);
  CHECK(spec.heartbeat_timeout_ms == 10000);
  CHECK(spec.mpi == 2);
  CHECK(*wire::expand_nodes(spec.nodes) == wire::NodeList{{"h1", 2}, {"h2", 3}});
  REQUIRE(spec.ranks.size() == 3);
  CHECK(spec.ranks[2].rank == 4);
  CHECK(spec.ranks[2].local_rank == 2);
  CHECK(spec.ranks[2].slot == 5);
  CHECK(spec.peers.empty());  // only rank 0's host gets them
  CHECK(spec.master_port == 0);
  CHECK(spec.cpu_binding == wire::CpuBinding::automatic);
  CHECK(value_of(spec.env, "TORCHELASTIC_RUN_ID") == "id-1");
  CHECK(value_of(spec.env, "TORCHELASTIC_RESTART_COUNT") == "0");
  CHECK(value_of(spec.env, "TORCHELASTIC_MAX_RESTARTS") == "0");
  CHECK(value_of(spec.env, "TORCHELASTIC_USE_AGENT_STORE") == "False");
  CHECK(spec.config_toml.find("data_prefixes = [\"/data/text\"]") != std::string::npos);

  job.runner.master_port = 29500;
  job.runner.cpu_binding = "numa";
  job.runner.mpi = "off";
  job.runner.program = {"true"};
  const LaunchPlan other = *make_plan(job, kTwoHosts, facts());
  const wire::JobSpec slice = make_job_spec(other, other.hosts[0], job, "id-1", {"10.0.0.7"});
  CHECK(slice.peers == std::vector<std::string>{"10.0.0.7"});
  CHECK(slice.master_port == 29500);
  CHECK(slice.cpu_binding == wire::CpuBinding::numa);
  CHECK(slice.mpi == 0);
  CHECK(slice.config_toml.empty());  // only the trainer reads one
}

}  // namespace
}  // namespace sortie::launcher
