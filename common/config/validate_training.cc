// Rules about the optimizer and the trainer.
#include <fmt/core.h>

#include <algorithm>

#include "common/config/forms.h"
#include "common/config/mesh.h"
#include "common/config/outer.h"
#include "common/config/validate.h"
#include "common/config/validation_sets.h"

namespace sortie::config {
namespace {

using Violations = std::vector<Violation>;

/// Rule O2: keys that only the other optimizer reads must not be set.
void check_optimizer_keys(const OptimizerConfig& optimizer, Violations& found) {
  const OptimizerConfig defaults;
  const bool demo = optimizer.name == "demo";
  const std::pair<const char*, bool> of_demo[] = {
      {"optimizer.momentum", optimizer.momentum != defaults.momentum},
      {"optimizer.chunk", optimizer.chunk != defaults.chunk},
      {"optimizer.top_k", optimizer.top_k != defaults.top_k}};
  const std::pair<const char*, bool> of_adamw[] = {
      {"optimizer.beta1", optimizer.beta1 != defaults.beta1},
      {"optimizer.beta2", optimizer.beta2 != defaults.beta2},
      {"optimizer.eps", optimizer.eps != defaults.eps},
      {"optimizer.moments", optimizer.moments != defaults.moments}};
  const auto check = [&](const auto& keys, const char* reader) {
    for (const auto& [key, set] : keys)
      if (set)
        found.push_back({"O2",
                         {key, "optimizer.name"},
                         fmt::format("optimizer.name = \"{}\" has no such setting; remove it, or "
                                     "set optimizer.name = \"{}\"",
                                     optimizer.name, reader),
                         /*unread=*/true});
  };
  if (demo)
    check(of_adamw, "adamw");
  else
    check(of_demo, "demo");
}

/// Rules O3 and O4: limits of DeMo's messages, and settings that DeMo does not support.
void check_demo(const JobConfig& job, Violations& found) {
  const OptimizerConfig& optimizer = job.optimizer;
  if (optimizer.name != "demo") return;
  const std::int64_t block = optimizer.chunk * optimizer.chunk;
  if (optimizer.top_k > block)
    found.push_back(
        {"O3",
         {"optimizer.top_k", "optimizer.chunk"},
         fmt::format("{} coefficients are more than a block of {} x {} has; use at most "
                     "{}",
                     optimizer.top_k, optimizer.chunk, optimizer.chunk, block)});
  const auto refuse = [&](const char* key, std::string why) {
    found.push_back({"O4", {key, "optimizer.name"}, std::move(why)});
  };
  const TopologyConfig& topology = job.topology;
  if (topology.parameter_sharding != "none")
    refuse("topology.parameter_sharding",
           fmt::format("\"{}\" keeps a share of one optimizer state on each rank, and with "
                       "optimizer.name = \"demo\" every rank has a momentum of its own; use "
                       "\"none\"",
                       topology.parameter_sharding));
  if (topology.expert_parallel_size > 1)
    refuse(
        "topology.expert_parallel_size",
        "with optimizer.name = \"demo\" the ranks that hold one expert have to be those that hold "
        "all else; use 1");
  if (job.outer.every > 0 || asks_for_rounds(job))
    refuse(job.outer.every > 0 ? "outer.every" : "topology.gradient_compression",
           "rounds between sites train with AdamW in them; remove it, or optimizer.name = "
           "\"demo\"");
  if (job.trainer.memory_checkpoint_interval > 0)
    refuse("trainer.memory_checkpoint_interval",
           "hosts keep each other's state in memory by what replicas have alike, and with "
           "optimizer.name = \"demo\" every rank has a momentum of its own; set it to 0");
}

/// Checks the policy that `key` sets for bad steps. A rollback goes back at least `least` steps.
void check_policy(const TrainerConfig& trainer, const std::string& key, const std::string& policy,
                  std::string_view others, std::int64_t least, Violations& found) {
  const std::int64_t steps = rollback_steps(policy);
  if (steps == 0) {
    if (check_step_policy(policy).empty() && !others.contains(policy))
      found.push_back({"C3",
                       {key},
                       fmt::format("\"{}\" is no policy of this key; use {} or \"rollback N\"",
                                   policy, others)});
    return;
  }
  if (trainer.save_dir.empty() || trainer.save_interval == 0) {
    const std::string missing = trainer.save_dir.empty() ? "save_dir" : "save_interval";
    found.push_back({"C3",
                     {key, "trainer." + missing},
                     fmt::format("\"{}\" goes back to a checkpoint, but trainer.{} is not set; "
                                 "set it",
                                 policy, missing)});
    return;
  }
  // Distance from the newest checkpoint before a step to the one `back` steps earlier.
  const std::int64_t back = std::max(steps, least);
  const std::int64_t needed = (back - 1 + trainer.save_interval - 1) / trainer.save_interval + 1;
  if (trainer.keep_last > 0 && trainer.keep_last < needed)
    found.push_back(
        {"C3",
         {key, "trainer.keep_last", "trainer.save_interval"},
         fmt::format("\"{}\" needs a checkpoint of {} steps before, but trainer.keep_last = {} "
                     "with save_interval = {} does not keep it; use at least keep_last = {}",
                     policy, back, trainer.keep_last, trainer.save_interval, needed)});
}

/// Rules about the handling of bad steps and checkpoints.
void check_policies(const TrainerConfig& trainer, Violations& found) {
  check_policy(trainer, "trainer.on_nonfinite", trainer.on_nonfinite, "\"skip\", \"stop\"", 1,
               found);
  check_policy(trainer, "trainer.on_loss_spike", trainer.on_loss_spike,
               "\"ignore\", \"skip\", \"stop\"", 1, found);
  check_policy(trainer, "trainer.on_replica_mismatch", trainer.on_replica_mismatch, "\"stop\"",
               trainer.replica_check_interval, found);
  if (rollback_steps(trainer.on_replica_mismatch) > 0 && trainer.replica_check_interval == 0)
    found.push_back({"C4",
                     {"trainer.on_replica_mismatch", "trainer.replica_check_interval"},
                     "replicas are compared every trainer.replica_check_interval steps, and that "
                     "is not set; set it"});
  if (trainer.scrub_interval.count() > 0 && trainer.save_dir.empty())
    found.push_back({"C5",
                     {"trainer.scrub_interval", "trainer.save_dir"},
                     "there are no checkpoints to check, because trainer.save_dir is empty; set "
                     "it"});
}

/// Checkpoints in memory end with the run: only restarts of the same run can load them.
void check_memory_checkpoints(const JobConfig& job, Violations& found) {
  const TrainerConfig& trainer = job.trainer;
  if (trainer.memory_checkpoint_interval == 0) return;
  if (trainer.save_dir.empty())
    found.push_back({"C6",
                     {"trainer.memory_checkpoint_interval", "trainer.save_dir"},
                     "checkpoints in memory end with the run, and save_dir says which attempt the "
                     "run belongs to; set trainer.save_dir"});
  if (job.recovery.max_restarts == 0)
    found.push_back({"C7",
                     {"trainer.memory_checkpoint_interval", "recovery.max_restarts"},
                     "checkpoints in memory are for restarts of the same run, and "
                     "recovery.max_restarts = 0 allows none; set it"});
  if (cuts_model(job.topology) || job.topology.parameter_sharding != "none")
    found.push_back(
        {"C8",
         {"trainer.memory_checkpoint_interval", "topology.tensor_parallel_size",
          "topology.pipeline_parallel_size", "topology.expert_parallel_size",
          "topology.parameter_sharding"},
         "hosts keep each other's state in memory by what replicas have alike, and here "
         "no rank has the whole state; set it to 0"});
}

void check_trainer(const JobConfig& job, Violations& found) {
  const TrainerConfig& trainer = job.trainer;
  check_memory_checkpoints(job, found);
  if (trainer.replica_check_interval > 0 && job.topology.parameter_sharding == "full")
    found.push_back({"C9",
                     {"trainer.replica_check_interval", "topology.parameter_sharding"},
                     "no two replicas have the same weights where each keeps a share of them, so "
                     "there is nothing to compare; set it to 0"});
  if (job.model.precision == "fp8" && trainer.device == "cpu")
    found.push_back({"C10",
                     {"model.precision", "trainer.device"},
                     "\"fp8\" needs GPUs of compute capability 8.9 or newer; set trainer.device = "
                     "\"cuda\", or model.precision = \"bf16\""});
  if (job.model.fp8_scaling == "delayed" && job.model.precision != "fp8")
    found.push_back({"C11",
                     {"model.fp8_scaling", "model.precision"},
                     "\"delayed\" is a scaling of products in FP8, and there are none; set "
                     "model.precision = \"fp8\", or remove it",
                     /*unread=*/true});
  if (job.model.fp8_scaling == "delayed" &&
      (trainer.memory_checkpoint_interval > 0 || job.outer.every > 0 || asks_for_rounds(job)))
    found.push_back({"C12",
                     {"model.fp8_scaling", "trainer.memory_checkpoint_interval", "outer.every",
                      "topology.gradient_compression"},
                     "checkpoints in memory and rounds between sites do not have the state of "
                     "\"delayed\" scaling; use \"current\""});
  if (trainer.save_interval > 0 && trainer.save_dir.empty())
    found.push_back({"C1",
                     {"trainer.save_interval", "trainer.save_dir"},
                     fmt::format("{} asks for checkpoints, but trainer.save_dir is empty; set it",
                                 trainer.save_interval)});
  if (!trainer.load_weights_from.empty() && !trainer.load_dir.empty())
    found.push_back({"C2",
                     {"trainer.load_weights_from", "trainer.load_dir"},
                     "trainer.load_dir starts from a checkpoint with its optimizer and progress, "
                     "this from its weights alone; remove one of the two"});
  check_policies(trainer, found);
  if (trainer.eval_interval > 0 && validation_sets(job.data).empty())
    found.push_back(
        {"D2",
         {"trainer.eval_interval", "data.validation_data_prefixes"},
         fmt::format("{} asks for validation, but {} is empty; set it", trainer.eval_interval,
                     job.data.chat_files.empty() ? "data.validation_data_prefixes"
                                                 : "data.validation_chat_files")});
  if (trainer.train_epochs == 0 && job.profiler.profile_steps > 0 &&
      job.profiler.profile_start_at_step > trainer.train_iterations)
    found.push_back({"P1",
                     {"profiler.profile_start_at_step", "trainer.train_iterations"},
                     fmt::format("{} is after the last step, trainer.train_iterations = {}; use "
                                 "less",
                                 job.profiler.profile_start_at_step, trainer.train_iterations)});
}

}  // namespace

std::vector<Violation> check_training(const JobConfig& job) {
  Violations found;
  for (Violation& violation : check_schedules(job)) found.push_back(std::move(violation));
  check_optimizer_keys(job.optimizer, found);
  check_demo(job, found);
  check_trainer(job, found);
  return found;
}

}  // namespace sortie::config
