#include "trainer/state/saved_job.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>

#include "common/base/command_name.h"
#include "common/config/architectures.h"
#include "common/config/fields.h"
#include "common/config/hostlist.h"
#include "common/config/outer.h"
#include "common/config/saved.h"
#include "common/config/validate.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/models/shape.h"

namespace sortie::trainer {
namespace {

using Keys = std::set<std::string_view>;

/// Keys of [model] that decide how it is trained, or with which arithmetic, not what it computes.
const Keys& training_keys_of_model() {
  static const Keys keys = {"model.preset",
                            "model.precision",
                            "model.fp8_scaling",
                            "model.sequence_length",
                            "model.document_end_token",
                            "model.reset_positions",
                            "model.embedding_dropout",
                            "model.attention_dropout",
                            "model.residual_dropout",
                            "model.init_std",
                            "model.moe.bias_update_rate",
                            "model.moe.seq_aux_loss_coeff",
                            "model.moe.aux_loss_coeff",
                            "model.moe.capacity_factor",
                            "model.mtp.loss_coeff"};
  return keys;
}

/// Keys that do not decide the bits of a step (on which way sites send each other the same bytes),
/// or are recorded in another way (precision, ranks, what moments are kept in).
bool is_beside_the_course(std::string_view key) {
  static const Keys keys = {"model.preset",
                            "model.precision",
                            "model.init_std",
                            "topology.data_parallel_size",
                            "topology.tensor_parallel_size",
                            "topology.sequence_parallel",
                            "topology.context_parallel_size",
                            "topology.pipeline_parallel_size",
                            "topology.pipeline_interleave",
                            "topology.pipeline_schedule",
                            "topology.pipeline_stage_layers",
                            "topology.expert_parallel_size",
                            "topology.expert_tensor_parallel_size",
                            "topology.parameter_sharding",
                            "topology.activation_checkpointing_type",
                            "optimizer.moments",
                            "outer.streams",
                            "outer.route",
                            "outer.port",
                            "data.validation_data_prefixes",
                            "data.validation_chat_files",
                            "data.validation_sets",
                            "data.tokenizer"};
  if (keys.contains(key)) return true;
  if (key.starts_with("trainer.")) return key != "trainer.seed";
  return std::ranges::any_of(
      std::array{"runner.", "recovery.", "watchdog.", "logger.", "profiler."},
      [&](const char* section) { return key.starts_with(section); });
}

bool defines_model(std::string_view key) {
  return key.starts_with("lora.") ||
         (key.starts_with("model.") && !training_keys_of_model().contains(key));
}

/// Returns the model with every derived size filled in, and with the defaults for keys that the
/// architecture does not read: two ways to write one model are then equal. Patterns over layers are
/// expanded for `num_layers`.
config::ModelConfig plain_model(config::ModelConfig model, std::int64_t num_layers) {
  const config::ModelConfig defaults;
  const config::Architecture& family = config::architecture_of(model);
  const ModelShape shape = resolve_shape(model);
  model.attention_num_kv_heads = shape.kv_heads;
  model.head_dim = shape.head_dim;
  model.ffn_hidden_size = shape.ffn;
  model.num_positions = family.rope ? 0 : shape.num_positions;
  std::vector<std::string> layers;
  std::int64_t window = 0;
  for (std::int64_t layer = 0; layer < num_layers; ++layer) {
    const std::int64_t own = config::window_of_layer(model, layer);
    layers.emplace_back(own > 0 ? "local" : "global");
    window = std::max(window, own);
  }
  model.attention_layers = window > 0 ? layers : defaults.attention_layers;
  model.attention_window = window;
  if (!family.rope) model.rotary_embedding_base = defaults.rotary_embedding_base;
  if (!family.partial_rope) model.rotary_percentage = defaults.rotary_percentage;
  if (!family.rope) model.rope_scaling = defaults.rope_scaling;
  const bool linear = model.rope_scaling == "linear", yarn = model.rope_scaling == "yarn";
  const bool by_frequency = yarn || model.rope_scaling == "llama3";
  if (!linear && !by_frequency) model.rope_scaling_factor = defaults.rope_scaling_factor;
  if (!by_frequency) {
    model.rope_scaling_low_frequency = defaults.rope_scaling_low_frequency;
    model.rope_scaling_high_frequency = defaults.rope_scaling_high_frequency;
    model.rope_scaling_original_length = defaults.rope_scaling_original_length;
  }
  if (!yarn) {
    model.rope_scaling_mscale = defaults.rope_scaling_mscale;
    model.rope_scaling_mscale_all_dim = defaults.rope_scaling_mscale_all_dim;
  }
  if (!family.parallel_residual) model.parallel_residual = defaults.parallel_residual;
  model.moe.ffn_hidden_size = expert_ffn(model, shape);
  if (!family.mixture) model.moe = defaults.moe;
  if (!family.latent) model.mla = defaults.mla;
  if (!family.latent) model.mtp = defaults.mtp;
  return model;
}

config::JobConfig plain(config::JobConfig job, std::int64_t num_layers) {
  job.model = plain_model(std::move(job.model), num_layers);
  if (job.lora.rank == 0) job.lora = {};
  return job;
}

template <class Chosen>
std::vector<KeyDifference> differences_of(const config::JobConfig& saved,
                                          const config::JobConfig& now, Chosen chosen) {
  std::vector<KeyDifference> found;
  for (const config::Field& field : config::fields()) {
    if (!chosen(field.key)) continue;
    std::string was = config::value_text(field, saved), is = config::value_text(field, now);
    if (was != is) found.push_back({std::string(field.key), std::move(was), std::move(is)});
  }
  return found;
}

/// Fills in derived sizes of the batch and the end of the schedule, and the main name of the level
/// of compression between sites. One data set has no weight.
config::JobConfig plain_course(config::JobConfig job, std::int64_t ranks) {
  auto& schedule = job.learning_rate_scheduler;
  if (schedule.learning_rate_decay_iters == 0 && schedule.learning_rate_decay_style != "constant")
    schedule.learning_rate_decay_iters = job.trainer.train_iterations;
  if (const auto hosts = config::job_hosts(job.runner))
    job.topology.gradient_compression = config::gradient_compression_level(
        job.topology, static_cast<std::int64_t>(config::sites_of(*hosts).size()));
  if (job.data.data_prefixes.size() <= 1) job.data.weights.clear();
  const config::BatchOutcome batch = config::resolve_batch(job.topology, ranks);
  if (!batch.violations.empty()) return job;
  job.topology.micro_batch_size = batch.plan.micro_batch_size;
  job.topology.gradient_accumulation_steps = batch.plan.gradient_accumulation_steps;
  job.topology.global_batch_size = batch.plan.global_batch_size;
  return job;
}

}  // namespace

std::vector<KeyDifference> model_differences(const config::JobConfig& saved,
                                             const config::JobConfig& now) {
  // Two architectures read different keys: other differences mean nothing then.
  if (saved.model.architecture != now.model.architecture)
    return differences_of(saved, now,
                          [](std::string_view key) { return key == "model.architecture"; });
  // A different number of layers is one difference, not two.
  const std::int64_t layers = std::min(saved.model.num_layers, now.model.num_layers);
  return differences_of(plain(saved, layers), plain(now, layers), defines_model);
}

std::vector<KeyDifference> course_differences(const JobOnRanks& saved, const JobOnRanks& now,
                                              bool with_data_paths) {
  return differences_of(plain_course(saved.job, saved.ranks), plain_course(now.job, now.ranks),
                        [&](std::string_view key) {
                          if (key == "data.data_prefixes" || key == "data.chat_files")
                            return with_data_paths;
                          return !defines_model(key) && !is_beside_the_course(key);
                        });
}

Result<config::JobConfig> saved_job(const Manifest& manifest, const std::filesystem::path& folder) {
  auto job = config::parse_saved_job(manifest.config, (folder / kManifestFile).string());
  if (job) return job;
  return fail(ErrorCode::checkpoint,
              fmt::format("{}: its config can not be read; use the version of sortie-train that "
                          "saved it: {}",
                          folder.string(), job.error().message));
}

Result<> check_same_model(const StartPoint& start, const config::JobConfig& job) {
  if (!start.manifest) return {};
  SORTIE_ASSIGN_OR_RETURN(config::JobConfig saved, saved_job(*start.manifest, start.folder));
  const bool weights_alone =
      start.kind == StartPoint::Kind::weights || start.manifest->run_id == kImportRun;
  if (weights_alone && saved.lora.rank == 0) saved.lora = job.lora;
  const std::vector<KeyDifference> found = model_differences(saved, job);
  if (found.empty()) return {};
  std::string text = fmt::format("{}: it is a checkpoint of another model:", start.folder.string());
  for (const KeyDifference& difference : found)
    text += fmt::format("\n  {}: the checkpoint has {}, this job {}", difference.key,
                        difference.saved, difference.now);
  const bool in_model = std::ranges::any_of(
      found, [](const KeyDifference& difference) { return difference.key.starts_with("model."); });
  text += fmt::format(
      "\nset these keys as the checkpoint has them{}, or {}",
      in_model ? fmt::format(" (`{}` prints its [model])",
                             command_line({"checkpoint", "model", start.folder.string()}))
               : "",
      start.kind == StartPoint::Kind::resume ? "set trainer.save_dir to a new folder"
                                             : fmt::format("remove {}", start.reason));
  if (saved.lora.rank > 0 && job.lora.rank == 0)
    text += "; `sortie-train merge-lora` makes plain weights of low-rank updates";
  return fail(ErrorCode::config, std::move(text));
}

Result<> check_same_optimizer(const StartPoint& start, const config::JobConfig& job) {
  if (!start.manifest || start.kind == StartPoint::Kind::weights ||
      start.manifest->run_id == kImportRun)
    return {};
  SORTIE_ASSIGN_OR_RETURN(const config::JobConfig saved, saved_job(*start.manifest, start.folder));
  if (saved.optimizer.name == job.optimizer.name) return {};
  return fail(ErrorCode::config,
              fmt::format("{}: optimizer.name: the checkpoint has \"{}\", this job \"{}\", which "
                          "does not know what to do with its state; set it to \"{}\", or start a "
                          "new run with trainer.load_weights_from and another trainer.save_dir",
                          start.folder.string(), saved.optimizer.name, job.optimizer.name,
                          saved.optimizer.name));
}

}  // namespace sortie::trainer
