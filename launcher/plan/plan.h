// LaunchPlan: what would be started where. make_plan touches no file, host or clock; what a model
// costs it asks of the trainer, as LauncherFacts says.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/config/hostlist.h"
#include "common/config/mesh.h"
#include "common/config/schema.h"
#include "common/config/validate.h"
#include "common/cpu/binding.h"
#include "common/wire/message.h"
#include "launcher/plan/plan_model.h"

namespace sortie::launcher {

using Environment = wire::Environment;

struct RankPlan {
  std::uint32_t rank = 0;  // global
  std::uint32_t local_rank = 0;
  int slot = 0;              // device id
  Environment env;           // on top of LaunchPlan::env
  std::string cpus;          // "0-3", where that is known already and the rank is bound
  std::int64_t threads = 0;  // that it will be told to use, where that is known
};

struct HostPlan {
  std::string name;
  std::uint32_t node_rank = 0;
  std::vector<RankPlan> ranks;
  std::uint32_t cpus = 0;             // for all its ranks, where that is known
  std::uint64_t memory_bytes = 0;     // likewise
  std::optional<std::uint32_t> gpus;  // where that is known: on this machine, or once asked
  bool local() const { return name == "localhost"; }
};

struct LaunchPlan {
  std::uint32_t attempt = 1;  // that it is for; plans of other attempts may have other hosts
  std::vector<HostPlan> hosts;
  std::vector<wire::NodeRun> nodes;  // `hosts` folded, once for all of them (wire/node_list.h)
  std::vector<std::string> argv;
  std::string work_dir;
  Environment env;                             // of every rank
  std::set<std::string, std::less<>> secrets;  // names in env whose values are shown nowhere
  std::uint32_t world_size = 0;
  std::string master_addr;       // empty: chosen when the hosts are ready
  std::string surveyed_addr;     // what would be chosen, where the hosts were asked (survey.h)
  std::int64_t master_port = 0;  // 0: likewise
  std::string interface;         // of the network that ranks shall use; empty = any
  std::string tunnel;            // "wireguard": that network is made at the start; empty = none
  std::string cpu_binding;       // the policy
  std::string binding_here;      // what it comes to on this machine; empty = no rank is here
  std::string mpi;
  /// Without what is known only at the start; none = bare processes.
  std::optional<wire::ContainerSpec> container;
  std::vector<std::pair<std::string, std::string>> stage;  // path here, name on the hosts
  // When the program is Sortie's trainer.
  std::optional<config::BatchPlan> batch;
  std::optional<config::Mesh> mesh;  // where a replica of the model is more than one rank
  std::optional<ModelPlan> model;
  bool keeps_memory = false;                 // hosts hold memory for checkpoints
  std::vector<std::string> warnings;         // likely mistakes; the job starts all the same
  std::vector<std::string> config_warnings;  // what the config may not have meant
  /// What sortie-train reads of the config, of [runner] what is staged, as TOML; empty for others.
  std::string trainer_config;
  std::vector<std::string> beside_preset;  // "num_layers = 2": keys that differ from model.preset
};

/// What the plan depends on besides the config: facts of the machine on which sortie runs.
struct LauncherFacts {
  std::string trainer;                    // path of sortie-train
  std::string work_dir;                   // current folder
  Environment environment;                // for runner.env_passthrough
  std::optional<cpu::Topology> topology;  // of this machine, for ranks on localhost
  std::uint64_t memory_bytes = 0;         // likewise; 0 = not known
  AskTrainer ask_trainer = {};            // empty: plans have no model
};

/// Global rank = running count over hosts and their slots. Errors: batch sizes that do not fit the
/// number of ranks and paths under no mount (trainer jobs only), what an engine can not do.
/// Of a job with sites: the hosts of one of them, and the job as it is there (launcher/sites).
Result<LaunchPlan> make_plan(const config::JobConfig& job,
                             const std::vector<config::HostSlots>& hosts,
                             const LauncherFacts& facts);

/// By rank: the index of its host in `plan.hosts`.
std::vector<std::size_t> host_of_each_rank(const LaunchPlan& plan);

/// Whether ranks keep checkpoints in the memory of their hosts.
bool keeps_memory(const config::JobConfig& job);

/// The runner's slice for one host. `peers`: where the other hosts were reached; used for rank 0's.
/// `stage_folder`: where that host has the staged files, for every {stage}.
wire::JobSpec make_job_spec(const LaunchPlan& plan, const HostPlan& host,
                            const config::JobConfig& job, const std::string& run_id,
                            std::vector<std::string> peers, const std::string& stage_folder = "");

/// How many bytes of output a host may have under way: less the more hosts there are, so that a
/// disk that stalls here does not fill the memory (256 MiB for all, but 64 KiB for each).
std::uint32_t output_window(std::size_t hosts);

/// The plan for people, and as JSON ({"schema":"sortie/plan/1", ...}), with config::kSecretShown
/// for the values of secrets.
std::string plan_text(const LaunchPlan& plan);
nlohmann::ordered_json plan_json(const LaunchPlan& plan);
/// Bytes that are no UTF-8, which a program's arguments may hold, become U+FFFD.
std::string plan_json_text(const LaunchPlan& plan);
/// The value of `name` as people may see it: config::kSecretShown for a secret.
std::string_view shown_value(const LaunchPlan& plan, const std::string& name,
                             const std::string& value);
/// SHA-256 of everything that decides what is started, the trainer's config included; of secrets
/// the names alone, since a hash of a short value gives it away.
std::string plan_hash(const LaunchPlan& plan);

/// True when `text` matches `pattern`, in which '*' stands for any text.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace sortie::launcher
