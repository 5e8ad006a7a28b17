// LaunchPlan: what is started where. make_plan() uses no file, host or clock; only the cost of a
// model comes from the trainer, via LauncherFacts::ask_trainer.
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
  int slot = 0;              // device number
  Environment env;           // in addition to LaunchPlan::env
  std::string cpus;          // "0-3"; empty if not yet known, or not bound
  std::int64_t threads = 0;  // compute threads; 0 if unknown
};

struct HostPlan {
  std::string name;
  std::uint32_t node_rank = 0;
  std::vector<RankPlan> ranks;
  std::uint32_t cpus = 0;             // for all its ranks; 0 if unknown
  std::uint64_t memory_bytes = 0;     // 0 if unknown
  std::optional<std::uint32_t> gpus;  // known on this machine, or after a survey
  bool local() const { return name == "localhost"; }
};

struct LaunchPlan {
  std::uint32_t attempt = 1;  // the attempt of this plan; other attempts may have other hosts
  std::vector<HostPlan> hosts;
  std::vector<wire::NodeRun> nodes;  // `hosts` folded, for all of them
  std::vector<std::string> argv;
  std::string work_dir;
  Environment env;                             // of every rank
  std::set<std::string, std::less<>> secrets;  // names in env whose values are never shown
  std::uint32_t world_size = 0;
  std::string master_addr;       // empty: chosen at start
  std::string surveyed_addr;     // address that will be chosen; set after a survey (survey.h)
  std::int64_t master_port = 0;  // 0: chosen at start
  std::string interface;         // network interface for ranks; empty = any
  std::string tunnel;            // "wireguard": a tunnel is made at start; empty = none
  std::string cpu_binding;       // policy
  std::string binding_here;      // its result on this machine; empty = no rank runs here
  std::string mpi;
  /// The containers, without values known only at start; nullopt = bare processes.
  std::optional<wire::ContainerSpec> container;
  std::vector<std::pair<std::string, std::string>> stage;  // path here, name on the hosts
  // Only for Sortie's trainer:
  std::optional<config::BatchPlan> batch;
  std::optional<config::Mesh> mesh;  // if a replica of the model spans several ranks
  std::optional<ModelPlan> model;
  bool keeps_memory = false;  // hosts hold memory for checkpoints
  // Likely mistakes; the job starts nevertheless.
  std::vector<std::string> warnings;
  std::vector<std::string> model_warnings;   // by plan_model()
  std::vector<std::string> config_warnings;  // found when the config was loaded
  /// The config as TOML for sortie-train, of [runner] only `stage`; empty for other programs.
  std::string trainer_config;
  std::vector<std::string> beside_preset;  // "num_layers = 2": keys that differ from model.preset
};

/// Inputs of a plan besides the config: facts about this machine.
struct LauncherFacts {
  std::string trainer;                    // path of sortie-train
  std::string work_dir;                   // current folder
  Environment environment;                // source for runner.env_passthrough
  std::optional<cpu::Topology> topology;  // of this machine, for ranks on localhost
  std::uint64_t memory_bytes = 0;         // of this machine; 0 = unknown
  AskTrainer ask_trainer = {};            // empty: plans have no model
};

/// Makes the plan. Global ranks count over hosts and their slots. Errors: batch sizes that do not
/// fit the number of ranks, and paths under no mount (both only for the trainer); features that the
/// container engine lacks. For a job with sites: `hosts` are those of one site, and `job` is the
/// job of that site (launcher/sites).
Result<LaunchPlan> make_plan(const config::JobConfig& job,
                             const std::vector<config::HostSlots>& hosts,
                             const LauncherFacts& facts);

/// Returns the warnings of the plan: all but those of the config.
std::vector<std::string> warnings_of(const LaunchPlan& plan);

/// Returns for each rank the index of its host in `plan.hosts`.
std::vector<std::size_t> host_of_each_rank(const LaunchPlan& plan);

/// Whether ranks keep checkpoints in the memory of their hosts.
bool keeps_memory(const config::JobConfig& job);

/// Returns the part of the plan for one host. `peers`: addresses of the other hosts, used on the
/// host of rank 0. `stage_folder`: folder of the staged files on that host, which replaces {stage}.
wire::JobSpec make_job_spec(const LaunchPlan& plan, const HostPlan& host,
                            const config::JobConfig& job, const std::string& run_id,
                            std::vector<std::string> peers, const std::string& stage_folder = "");

/// Limit of the output in flight from a host, in bytes. It shrinks with the number of hosts, so
/// that a stalled disk of this machine does not fill its memory (256 MiB for all hosts, but between
/// 64 KiB and 4 MiB for each).
std::uint32_t output_window(std::size_t hosts);

/// The plan as text and as JSON ({"schema":"sortie/plan/1", ...}). Values of secrets are replaced
/// by config::kSecretShown.
std::string plan_text(const LaunchPlan& plan);
nlohmann::ordered_json plan_json(const LaunchPlan& plan);
/// Invalid UTF-8, which arguments of a program may contain, becomes U+FFFD.
std::string plan_json_text(const LaunchPlan& plan);
/// Returns the value of `name` for display: config::kSecretShown for a secret.
std::string_view shown_value(const LaunchPlan& plan, const std::string& name,
                             const std::string& value);
/// Returns the SHA-256 of everything that determines what is started, including the config of the
/// trainer. Of secrets only the names count, because a hash of a short value reveals it.
std::string plan_hash(const LaunchPlan& plan);

/// Whether `text` matches `pattern`, in which '*' matches any text.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace sortie::launcher
