#include "common/config/spelling.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/config/text.h"

namespace sortie::config {
namespace {

/// Spellings of other training suites that `nearest` would not find. `ours` is a key of Sortie, or
/// advice in words (it contains a space).
struct Foreign {
  std::string_view name;
  std::string_view ours;
};
constexpr std::string_view kSetSharding = "set topology.parameter_sharding = \"optimizer\"";
constexpr std::string_view kShardingByStage =
    "set topology.parameter_sharding: \"optimizer\" is stage 1, \"full\" is stage 3";
constexpr std::string_view kSetFullSharding = "set topology.parameter_sharding = \"full\"";
constexpr std::string_view kAlwaysMixed =
    "master weights and gradients are always f32; set model.precision";
constexpr Foreign kForeign[] = {
    {"lr", "learning_rate_scheduler.learning_rate"},
    {"min_lr", "learning_rate_scheduler.learning_rate_minimum"},
    {"lr_decay_style", "learning_rate_scheduler.learning_rate_decay_style"},
    {"lr_decay_iters", "learning_rate_scheduler.learning_rate_decay_iters"},
    {"lr_warmup_iters", "learning_rate_scheduler.learning_rate_warmup_steps"},
    {"warmup_steps", "learning_rate_scheduler.learning_rate_warmup_steps"},
    {"clip_grad", "optimizer.gradient_clipping"},
    {"max_grad_norm", "optimizer.gradient_clipping"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_eps", "optimizer.eps"},
    {"train_iters", "trainer.train_iterations"},
    {"max_steps", "trainer.train_iterations"},
    {"save", "trainer.save_dir"},
    {"save_steps", "trainer.save_interval"},
    {"load", "trainer.load_dir"},
    {"eval_iters", "trainer.eval_samples"},
    {"eval_iterations", "trainer.eval_samples"},
    {"eval_steps", "trainer.eval_interval"},
    {"seq_length", "model.sequence_length"},
    {"max_position_embeddings", "model.sequence_length"},
    {"num_query_groups", "model.attention_num_kv_heads"},
    {"num_key_value_heads", "model.attention_num_kv_heads"},
    {"num_hidden_layers", "model.num_layers"},
    {"intermediate_size", "model.ffn_hidden_size"},
    {"kv_channels", "model.head_dim"},
    {"rotary_base", "model.rotary_embedding_base"},
    {"rope_theta", "model.rotary_embedding_base"},
    {"rotary_percent", "model.rotary_percentage"},
    {"layernorm_epsilon", "model.norm_epsilon"},
    {"rms_norm_eps", "model.norm_epsilon"},
    {"init_method_std", "model.init_std"},
    {"tie_word_embeddings", "model.weight_tying"},
    {"untie_embeddings_and_output_weights", "model.weight_tying"},
    {"transformer_architecture", "model"},
    {"training", "trainer"},
    {"scheduler", "learning_rate_scheduler"},
    {"hostfile", "runner.hosts_file"},
    {"hostsfile", "runner.hosts_file"},
    {"default_gpu_count", "runner.default_slots"},
    {"nproc_per_node", "runner.default_slots"},
    {"data_path", "data.data_prefixes"},
    {"train_data_path", "data.data_prefixes"},
    {"valid_data_path", "data.validation_data_prefixes"},
    {"recompute_granularity", "topology.activation_checkpointing_type"},
    {"use_tensorboard", "logger.tensorboard"},
    {"batch_size", "topology.micro_batch_size"},
    {"model_parallel_size", "topology.tensor_parallel_size"},
    {"tensor_model_parallel_size", "topology.tensor_parallel_size"},
    {"pipe_parallel_size", "topology.pipeline_parallel_size"},
    {"pipeline_model_parallel_size", "topology.pipeline_parallel_size"},
    {"decoder_first_pipeline_num_layers", "topology.pipeline_stage_layers"},
    {"decoder_last_pipeline_num_layers", "topology.pipeline_stage_layers"},
    {"expert_model_parallel_size", "topology.expert_parallel_size"},
    {"moe_expert_parallel_size", "topology.expert_parallel_size"},
    {"expert_tensor_model_parallel_size", "topology.expert_tensor_parallel_size"},
    {"use_distributed_optimizer", kSetSharding},
    {"zero", kSetSharding},
    {"zero_stage", kShardingByStage},
    {"zero_optimization", kShardingByStage},
    {"data_parallel_sharding_strategy", kShardingByStage},
    {"fsdp", kSetFullSharding},
    {"use_custom_fsdp", kSetFullSharding},
    {"use_megatron_fsdp", kSetFullSharding},
    {"use_torch_fsdp2", kSetFullSharding},
    {"virtual_pipeline_model_parallel_size", "topology.pipeline_interleave"},
    {"bf16", kAlwaysMixed},
    {"fp16", kAlwaysMixed},
};

std::string_view last_part(std::string_view key) {
  return key.substr(key.rfind('.') + 1);  // npos + 1 is 0: the whole key
}

std::string_view foreign(std::string_view name) {
  const auto* found = std::ranges::find(kForeign, name, &Foreign::name);
  return found == std::end(kForeign) ? std::string_view() : found->ours;
}

/// The key that was probably meant: the same name in another section, else a foreign spelling, else
/// the nearest name in the same section, else the nearest name anywhere.
std::string_view meant_key(std::string_view key) {
  const std::string_view name = last_part(key);
  const std::string_view section = key.substr(0, key.size() - name.size());
  std::vector<std::string_view> here;
  std::vector<std::string_view> all;
  for (const Field& field : fields()) {
    if (name_of(field) == name) return field.key;
    all.push_back(name_of(field));
    if (!section.empty() && section_of(field) == section.substr(0, section.size() - 1))
      here.push_back(name_of(field));
  }
  const auto full_key = [&](std::string_view found, bool in_section) -> std::string_view {
    for (const Field& field : fields())
      if (name_of(field) == found && (!in_section || field.key.starts_with(section)))
        return field.key;
    return {};
  };
  if (const auto found = foreign(name); !found.empty()) return found;
  if (const auto found = nearest(name, here); !found.empty()) return full_key(found, true);
  if (const auto found = nearest(name, all); !found.empty()) return full_key(found, false);
  return {};
}

}  // namespace

bool is_section(std::string_view name) {
  return std::ranges::find(sections(), name, &Section::name) != sections().end();
}

std::string unknown_key(std::string_view key) {
  const std::string text = fmt::format("unknown key {}", shorten(key));
  const std::string_view meant = meant_key(key);
  if (meant.empty()) return text + "; `sortie config init --all` prints all keys";
  if (meant.contains(' ')) return fmt::format("{}: {}", text, meant);
  return fmt::format("{}; did you mean {}?", text, meant);
}

const Field* meant_field(std::string_view key) {
  return find_field(meant_key(key));
}

std::string_view meant_section(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Section& section : sections()) names.push_back(section.name);
  if (const auto near = nearest(name, names); !near.empty()) return near;
  const std::string_view ours = foreign(last_part(name));
  return is_section(ours) ? ours : std::string_view();
}

std::string unknown_section(std::string_view name) {
  const std::string text = fmt::format("unknown section [{}]", shorten(name));
  if (const auto meant = meant_section(name); !meant.empty())
    return fmt::format("{}; did you mean [{}]?", text, meant);
  std::string all;
  for (const Section& section : sections())
    all += fmt::format("{}[{}]", all.empty() ? "" : " ", section.name);
  return fmt::format("{}; the sections are {}", text, all);
}

}  // namespace sortie::config
