#include "launcher/plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "common/base/check.h"
#include "common/base/hex.h"
#include "common/config/container.h"
#include "common/config/forms.h"
#include "common/config/load.h"
#include "common/config/secret.h"
#include "common/config/stage.h"
#include "common/files/piece.h"
#include "common/wire/codec.h"
#include "common/wire/node_list.h"
#include "launcher/plan/placement.h"
#include "launcher/plan/plan_container.h"

namespace sortie::launcher {
namespace {

/// execve() accepts 2 MiB of arguments and environment, with a pointer to each string, and 128 KiB
/// per string. A host would report "Argument list too long" only when ranks start, and not for
/// which string. Part of the 2 MiB is kept free for the variables of the host and those of Sortie.
Result<> check_exec_size(const LaunchPlan& plan) {
  constexpr std::size_t kMaxExecBytes = 2u << 20, kMaxStringBytes = 128u << 10;
  constexpr std::size_t kKeptFree = 64u << 10, kPointerBytes = 8;
  std::size_t arguments = 0, variables = 0;
  for (std::size_t i = 0; i < plan.argv.size(); ++i) {
    const std::size_t bytes = plan.argv[i].size() + 1;  // with the terminating NUL
    arguments += bytes + kPointerBytes;
    if (bytes > kMaxStringBytes)
      return fail(
          ErrorCode::config,
          fmt::format("runner.program: argument {} has {} bytes; Linux accepts at most {} in "
                      "one argument; put it into a file",
                      i, bytes - 1, kMaxStringBytes - 1));
  }
  for (const auto& [name, value] : plan.env) {
    const std::size_t bytes = name.size() + value.size() + 2;
    variables += bytes + kPointerBytes;
    if (bytes > kMaxStringBytes)
      return fail(
          ErrorCode::config,
          fmt::format("runner.env: {} has {} bytes; Linux accepts at most {} in one variable, "
                      "name included; put it into a file",
                      name, value.size(), kMaxStringBytes - 2));
  }
  if (arguments + variables <= kMaxExecBytes - kKeptFree) return {};
  return fail(
      ErrorCode::config,
      fmt::format("{}: {} bytes of arguments and {} bytes of environment, together more "
                  "than {}: Linux starts a program with at most {}, of which {} are for the "
                  "variables that the host and Sortie add; put them into a file",
                  arguments > variables ? "runner.program" : "runner.env", arguments, variables,
                  kMaxExecBytes - kKeptFree, kMaxExecBytes, kKeptFree));
}

/// What each rank runs, and the files that are staged for it.
Result<> put_program(const config::JobConfig& job, const LauncherFacts& facts, LaunchPlan& plan) {
  plan.argv = job.runner.program;
  if (plan.argv.empty()) {
    const bool staged = config::is_staged(job.runner, "sortie-train");
    const bool contained = job.runner.container.used();
    plan.argv = {staged      ? fmt::format("{}/sortie-train", config::kStagePlaceholder)
                 : contained ? "sortie-train"
                             : facts.trainer,
                 "train"};
  }
  // Checked again: the program may come from the command line, after the config was checked.
  for (const config::Violation& violation : config::check_stage(job))
    return fail(ErrorCode::config,
                fmt::format("{}: {}", violation.keys.front(), violation.message));
  for (const std::string& item : job.runner.stage) {
    config::StageItem parsed = config::parse_stage_item(item);
    plan.stage.emplace_back(std::move(parsed.path), std::move(parsed.name));
  }
  return {};
}

/// Settings that are the same on all hosts.
void put_host_settings(const config::JobConfig& job, const LauncherFacts& facts, LaunchPlan& plan) {
  plan.work_dir = job.runner.work_dir.empty() ? facts.work_dir : job.runner.work_dir;
  plan.master_addr = job.runner.master_addr;
  plan.master_port = job.runner.master_port;
  plan.interface = job.runner.network.interface;
  if (job.runner.network.tunnel != "none") plan.tunnel = job.runner.network.tunnel;
  plan.cpu_binding = job.runner.cpu_binding;
  plan.mpi = job.runner.mpi;
  // With NCCL the trainer's ranks do not need MPI.
  if (plan.mpi == "auto" && job.runner.program.empty() && job.topology.backend == "nccl")
    plan.mpi = "off";
}

/// Variables that all ranks get, and which of them are secrets.
Result<> put_environment(const config::JobConfig& job, const LauncherFacts& facts,
                         LaunchPlan& plan) {
  // Variables of the config override those passed through.
  std::map<std::string, std::string> env;
  for (const auto& [name, value] : facts.environment)
    for (const std::string& pattern : job.runner.env_passthrough)
      if (matches_pattern(pattern, name)) env[name] = value;
  for (const auto& [name, value] : job.runner.env) env[name] = value;
  for (const auto& [name, value] : job.runner.container.env) env[name] = value;
  for (const auto& [name, value] : job.runner.secret_env) {
    env[name] = value;
    plan.secrets.insert(name);
  }
  plan.env.assign(env.begin(), env.end());
  for (const auto& [name, value] : plan.env)
    if (config::looks_secret(name)) plan.secrets.insert(name);
  return check_exec_size(plan);
}

/// Hosts and their ranks, numbered in the order of the config.
void put_hosts(const std::vector<config::HostSlots>& hosts, LaunchPlan& plan) {
  wire::NodeList nodes;
  for (const config::HostSlots& entry : hosts) {
    HostPlan host;
    host.name = entry.name;
    host.node_rank = static_cast<std::uint32_t>(plan.hosts.size());
    for (const int slot : entry.slots) {
      RankPlan rank;
      rank.rank = plan.world_size++;
      rank.local_rank = static_cast<std::uint32_t>(host.ranks.size());
      rank.slot = slot;
      host.ranks.push_back(std::move(rank));
    }
    nodes.emplace_back(host.name, static_cast<std::uint32_t>(host.ranks.size()));
    plan.hosts.push_back(std::move(host));
  }
  plan.nodes = wire::fold_nodes(nodes);
}

/// Warnings about settings that have no effect with this number of hosts.
void put_host_warnings(const config::JobConfig& job, LaunchPlan& plan) {
  if (!plan.tunnel.empty() && plan.hosts.size() < 2)
    plan.warnings.emplace_back(
        "runner.network.tunnel: a job on one host needs no tunnel; none is made");
  if (job.recovery.max_restarts > 0 &&
      job.recovery.min_hosts > static_cast<std::int64_t>(plan.hosts.size()))
    plan.warnings.push_back(fmt::format(
        "recovery.min_hosts: {} are more hosts than the {} of the job: it never continues on fewer",
        job.recovery.min_hosts, plan.hosts.size()));
}

/// The variables and the devices of each rank; of this machine also the cores, the number of GPUs
/// and the memory.
void put_ranks(const config::JobConfig& job, const LauncherFacts& facts, LaunchPlan& plan) {
  for (HostPlan& host : plan.hosts) {
    for (RankPlan& rank : host.ranks) {
      rank.env = {{"RANK", fmt::format("{}", rank.rank)},
                  {"WORLD_SIZE", fmt::format("{}", plan.world_size)},
                  {"LOCAL_RANK", fmt::format("{}", rank.local_rank)},
                  {"LOCAL_WORLD_SIZE", fmt::format("{}", host.ranks.size())},
                  {"NODE_RANK", fmt::format("{}", host.node_rank)},
                  {"GROUP_RANK", fmt::format("{}", host.node_rank)},
                  {"GROUP_WORLD_SIZE", fmt::format("{}", plan.hosts.size())},
                  {"ROLE_NAME", "default"},
                  {"ROLE_RANK", fmt::format("{}", rank.rank)},
                  {"ROLE_WORLD_SIZE", fmt::format("{}", plan.world_size)}};
      put_devices(job.runner, host, plan.env, rank);
    }
    if (host.local() && facts.topology) {
      show_binding(plan, host, *facts.topology);
      host.gpus = static_cast<std::uint32_t>(facts.topology->gpus.size());
    }
    if (host.local()) host.memory_bytes = facts.memory_bytes;
  }
}

/// The batch, the parallel layout, the config and the model of Sortie's own trainer.
Result<> put_training(const config::JobConfig& job, const LauncherFacts& facts, LaunchPlan& plan) {
  config::BatchOutcome outcome = config::resolve_batch(job.topology, plan.world_size);
  std::vector<config::Violation> broken = config::validate_training(job);
  const std::vector<config::Violation> mounted = config::check_mounted(job);
  broken.insert(broken.end(), mounted.begin(), mounted.end());
  broken.insert(broken.end(), outcome.violations.begin(), outcome.violations.end());
  if (!broken.empty()) {
    std::string text;
    for (const config::Violation& violation : broken)
      text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", violation.keys.front(),
                          violation.message);
    return fail(ErrorCode::config, std::move(text));
  }
  plan.batch = outcome.plan;
  if (config::cuts_model(job.topology)) {
    SORTIE_ASSIGN_OR_RETURN(plan.mesh,
                            config::Mesh::make(static_cast<int>(plan.world_size),
                                               config::mesh_sizes(job.topology, plan.world_size)));
  }
  plan.keeps_memory = keeps_memory(job);
  config::JobConfig read_by_trainer = job;
  read_by_trainer.runner = {};
  read_by_trainer.runner.stage = job.runner.stage;  // names may begin with {stage}
  plan.trainer_config = config::to_toml(read_by_trainer);
  return plan_model(job, facts.ask_trainer, plan);
}

}  // namespace

std::string_view shown_value(const LaunchPlan& plan, const std::string& name,
                             const std::string& value) {
  return plan.secrets.contains(name) ? config::kSecretShown : value;
}

bool matches_pattern(std::string_view pattern, std::string_view text) {
  // On a mismatch the last '*' matches one more byte. Extending an earlier '*' could not succeed
  // where this fails.
  std::size_t p = 0, t = 0, star = pattern.npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

Result<LaunchPlan> make_plan(const config::JobConfig& job,
                             const std::vector<config::HostSlots>& hosts,
                             const LauncherFacts& facts) {
  LaunchPlan plan;
  SORTIE_TRY(put_program(job, facts, plan));
  put_host_settings(job, facts, plan);
  const bool contained = job.runner.container.used();
  if (contained) {
    SORTIE_TRY(check_network(job.runner, hosts.size()));
    plan.container = container_spec(job.runner);
  }
  SORTIE_TRY(put_environment(job, facts, plan));
  put_hosts(hosts, plan);
  put_host_warnings(job, plan);
  put_ranks(job, facts, plan);
  if (job.runner.program.empty()) SORTIE_TRY(put_training(job, facts, plan));
  if (contained)
    if (auto commands = container_commands(plan, plan.hosts.front()); !commands)
      return std::unexpected(std::move(commands).error());
  return plan;
}

std::vector<std::string> warnings_of(const LaunchPlan& plan) {
  std::vector<std::string> all = plan.warnings;
  std::ranges::copy(plan.model_warnings, std::back_inserter(all));
  return all;
}

bool keeps_memory(const config::JobConfig& job) {
  return job.runner.program.empty() && job.trainer.memory_checkpoint_interval > 0;
}

wire::JobSpec make_job_spec(const LaunchPlan& plan, const HostPlan& host,
                            const config::JobConfig& job, const std::string& run_id,
                            std::vector<std::string> peers, const std::string& stage_folder) {
  wire::JobSpec spec;
  spec.run_id = run_id;
  spec.host = host.name;
  spec.node_rank = host.node_rank;
  spec.world_size = plan.world_size;
  spec.argv = plan.argv;
  spec.work_dir = plan.work_dir;
  spec.need_work_dir = job.runner.work_dir.empty() || plan.container ? 0 : 1;
  spec.env = plan.env;
  if (!stage_folder.empty()) {
    for (std::string& argument : spec.argv) argument = config::with_stage(argument, stage_folder);
    for (auto& [name, value] : spec.env) value = config::with_stage(value, stage_folder);
    spec.env.emplace_back("SORTIE_STAGE", stage_folder);
  }
  if (plan.container) {
    spec.container = *plan.container;
    if (!stage_folder.empty())  // same path in the container
      spec.container.mounts.push_back({stage_folder, stage_folder, "ro"});
  }
  spec.attempt = plan.attempt;
  // The variables of torchrun; rank 0 itself creates the store.
  spec.env.emplace_back("TORCHELASTIC_RUN_ID", run_id);
  spec.env.emplace_back("TORCHELASTIC_RESTART_COUNT", fmt::format("{}", spec.attempt - 1));
  spec.env.emplace_back("TORCHELASTIC_MAX_RESTARTS", fmt::format("{}", job.recovery.max_restarts));
  spec.env.emplace_back("TORCHELASTIC_USE_AGENT_STORE", "False");
  for (const RankPlan& rank : host.ranks)
    spec.ranks.push_back(
        {rank.rank, rank.local_rank, static_cast<std::uint32_t>(rank.slot), rank.env});
  if (host.node_rank == 0) {
    spec.peers = std::move(peers);
    spec.progress_file = job.recovery.progress_file;
    spec.master_port =
        plan.master_port == 0 ? wire::kAnyPort : static_cast<std::uint32_t>(plan.master_port);
  }
  spec.cpu_binding = binding_named(plan.cpu_binding);
  if (plan.batch) spec.config_toml = config::to_toml(job);
  spec.grace_ms = static_cast<std::uint32_t>(job.runner.grace.count());
  spec.heartbeat_interval_ms = static_cast<std::uint32_t>(job.runner.heartbeat_interval.count());
  spec.heartbeat_timeout_ms = static_cast<std::uint32_t>(job.runner.heartbeat_timeout.count());
  spec.hold_ms =
      static_cast<std::uint32_t>(config::launcher_hold(job.runner.on_launcher_loss).count());
  spec.output_window = output_window(plan.hosts.size());
  spec.mpi = plan.mpi == "off" ? 0 : plan.mpi == "auto" ? 1 : 2;
  if (spec.mpi != 0) spec.nodes = plan.nodes;  // only needed by PMIx
  spec.health = job.watchdog.health ? 1 : 0;
  spec.memory = keeps_memory(job) ? 1 : 0;
  const bool at_site = std::ranges::any_of(
      plan.env, [](const auto& variable) { return variable.first == "SORTIE_SITE"; });
  spec.forwards = at_site && job.outer.route == "launcher" ? 1 : 0;
  return spec;
}

std::uint32_t output_window(std::size_t hosts) {
  constexpr std::size_t kForAll = 256u << 20, kLeast = 64u << 10, kMost = 4u << 20;
  return static_cast<std::uint32_t>(
      std::clamp(kForAll / std::max<std::size_t>(hosts, 1), kLeast, kMost));
}

std::string plan_hash(const LaunchPlan& plan) {
  // Length-prefixed, so that no two plans share a text.
  std::string text;
  const auto put = [&text](std::string_view item) {
    text += fmt::format("{}:{}", item.size(), item);
  };
  put(fmt::format("{} {}", plan.argv.size(), plan.env.size()));
  for (const std::string& item : plan.argv) put(item);
  for (const auto& [name, value] : plan.env) (put(name), put(shown_value(plan, name, value)));
  put(plan.work_dir);
  put(plan.master_addr);
  put(fmt::format("{} {} {} {}", plan.master_port, plan.world_size, plan.mpi, plan.cpu_binding));
  put(plan.interface);
  if (!plan.tunnel.empty()) put("tunnel " + plan.tunnel);
  put(plan.trainer_config);
  for (const auto& [path, name] : plan.stage) (put("stage"), put(path), put(name));
  if (plan.container) {
    wire::JobSpec carrier;
    carrier.container = *plan.container;
    put(wire::encode(carrier));
  }
  for (const HostPlan& host : plan.hosts) {
    put(host.name);
    for (const RankPlan& rank : host.ranks) {
      put(fmt::format("{} {}", rank.rank, rank.slot));
      for (const auto& [name, value] : rank.env) (put(name), put(value));
    }
  }
  return hex(files::hash_bytes(text));
}

std::vector<std::size_t> host_of_each_rank(const LaunchPlan& plan) {
  std::vector<std::size_t> out(plan.world_size);
  for (std::size_t host = 0; host < plan.hosts.size(); ++host)
    for (const RankPlan& rank : plan.hosts[host].ranks) out[rank.rank] = host;
  return out;
}

}  // namespace sortie::launcher
