#include "common/model/parameters.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "common/config/training_groups.h"
#include "common/model/network.h"

namespace sortie::model {
namespace {

constexpr std::string_view kWeight = ".weight";

Result<> no_match(const char* key, const std::string& pattern, const std::string& names) {
  return fail(ErrorCode::config,
              fmt::format("{}: \"{}\" matches nothing; names are like {}", key, pattern, names));
}

bool can_be_updated(const ParameterInfo& parameter) {
  return parameter.use == Use::matrix && parameter.name.starts_with("layers.") &&
         parameter.name.ends_with(kWeight) && !parameter.name.contains(".experts.");
}

std::string module_of(const ParameterInfo& parameter) {
  return parameter.name.substr(0, parameter.name.size() - kWeight.size());
}

Result<> add_lora(const config::LoraConfig& config, std::vector<ParameterInfo>& parameters) {
  if (config.rank == 0) return {};
  const std::size_t declared = parameters.size();
  std::vector<bool> used(config.modules.size(), false);
  std::string example;
  for (std::size_t i = 0; i < declared; ++i) {
    if (!can_be_updated(parameters[i])) continue;
    const std::string module = module_of(parameters[i]);
    if (example.empty()) example = module;
    bool chosen = false;
    for (std::size_t pattern = 0; pattern < used.size(); ++pattern)
      if (config::name_matches(config.modules[pattern], module)) used[pattern] = chosen = true;
    if (!chosen) continue;
    parameters[i].lora_rank = config.rank;
    const std::int64_t out = parameters[i].shape[0], in = parameters[i].shape[1];
    parameters.push_back({.name = module + ".lora_down", .shape = {config.rank, in}});
    parameters.push_back({.name = module + ".lora_up", .shape = {out, config.rank}});
  }
  for (std::size_t pattern = 0; pattern < used.size(); ++pattern)
    if (!used[pattern]) return no_match("lora.modules", config.modules[pattern], example);
  return {};
}

Result<> freeze(const config::JobConfig& job, std::vector<ParameterInfo>& parameters) {
  for (const std::string& pattern : job.optimizer.freeze)
    if (std::ranges::none_of(parameters, [&](const ParameterInfo& parameter) {
          return config::name_matches(pattern, parameter.name);
        }))
      return no_match("optimizer.freeze", pattern, parameters.front().name);
  for (ParameterInfo& parameter : parameters) {
    const bool update = parameter.name.contains(".lora_");
    if (config::any_matches(job.optimizer.freeze, parameter.name) || (job.lora.rank > 0 && !update))
      parameter.trained = false;
  }
  if (std::ranges::any_of(parameters, &ParameterInfo::trained)) return {};
  return fail(ErrorCode::config,
              "optimizer.freeze: every parameter is frozen; leave some to be trained");
}

/// The ranges of single keys allow products that no 64-bit number holds.
Result<> check_sizes(const config::ModelConfig& config, std::int64_t micro_batch_size) {
  constexpr double kMostMatrices = 4e6, kMostElements = 1e17;
  const ModelShape shape = resolve_shape(config);
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const bool mixed = config::architecture_of(config).mixture;
  const double experts = mixed ? real(config.moe.num_experts) : 0.0;
  const double top_k = mixed ? real(config.moe.topk) : 1.0;
  const double latent = real(config.mla.kv_lora_rank + config.mla.q_lora_rank);
  const double heads = real(shape.heads) * real(shape.head_dim + shape.value_dim);
  const double shared = 1.0 + real(config.moe.num_shared_experts);
  const double ffn = std::max(real(shape.ffn), shared * real(expert_ffn(config, shape)));
  const double hidden = std::max(real(shape.hidden), latent);
  const double widest = std::max({3.0 * heads, 2.0 * ffn, 2.0 * hidden, experts});
  const double layers = real(shape.layers + config.mtp.num_layers);
  const double matrices = layers * (12.0 + 2.0 * experts);
  const double rows = real(micro_batch_size) * real(shape.sequence_length) * top_k;
  const double weights = matrices * widest * hidden + 2.0 * real(shape.vocab_size) * hidden;
  const double activations = 16.0 * layers * rows * widest;
  if (matrices <= kMostMatrices && weights <= kMostElements && activations <= kMostElements)
    return {};
  return fail(ErrorCode::config,
              fmt::format("model: {:.1e} matrices with {:.1e} weights and {:.1e} activations are "
                          "more than any machine holds; is a size mistyped?",
                          matrices, weights, activations));
}

}  // namespace

Result<ModelFacts> model_facts(const config::JobConfig& job) {
  SORTIE_ASSIGN_OR_RETURN(Network network, open_network(job));
  return std::move(network).facts();
}

Result<Network> open_network(const config::JobConfig& job, std::int64_t micro_batch_size) {
  SORTIE_TRY(check_sizes(job.model, micro_batch_size));
  Network network(job.model);
  SORTIE_TRY(add_lora(job.lora, network.parameters()));
  SORTIE_TRY(freeze(job, network.parameters()));
  network.find_flow();
  return network;
}

ParameterCount count(std::span<const ParameterInfo> parameters) {
  ParameterCount count;
  double active = 0.0;
  for (const ParameterInfo& parameter : parameters) {
    if (parameter.use == Use::state) continue;
    const std::int64_t elements = parameter.elements() - parameter.padding;
    count.total += elements;
    if (parameter.trained) count.trained += elements;
    // A look-up, and a head that is used more than once, are met once.
    const bool partly = parameter.products > 0.0 && parameter.products < 1.0;
    active += static_cast<double>(elements) * (partly ? parameter.products : 1.0);
  }
  count.active = std::llround(active);
  return count;
}

namespace {

/// Keys that a token sees in a layer, on average over a sequence.
double keys_seen(const config::ModelConfig& config, const ModelShape& shape, std::int64_t layer) {
  const auto length = static_cast<double>(shape.sequence_length);
  const auto window = static_cast<double>(config::window_of_layer(config, layer));
  if (window <= 0.0 || window >= length) return length / 2.0;
  return window - window * window / (2.0 * length);
}

}  // namespace

double flops_per_token(const config::ModelConfig& config, const ModelFacts& facts) {
  double flops = 0.0;
  for (const ParameterInfo& parameter : facts.parameters) {
    if (parameter.use != Use::matrix && parameter.use != Use::f32_matrix) continue;
    const auto elements = static_cast<double>(parameter.elements() - parameter.padding);
    const int passes = 1 + (parameter.backward ? 1 : 0) + (parameter.trained ? 1 : 0);
    flops += 2.0 * passes * elements * parameter.products;
  }
  const ModelShape shape = resolve_shape(config);
  const auto of_key = 2.0 * static_cast<double>(shape.heads * (shape.head_dim + shape.value_dim));
  std::int64_t layer = 0;
  for (const bool backward : facts.attention_backward)
    flops += (backward ? 3.0 : 1.0) * of_key * keys_seen(config, shape, layer++);
  return flops;
}

}  // namespace sortie::model
