// What a model consists of, from its config alone: the names and shapes that the trainer declares.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::model {

enum class Use {
  matrix,      // multiplied in the compute dtype
  f32_matrix,  // multiplied in f32: routers
  vector,      // f32
  state,       // f32, written by the model: no gradient, no optimizer
};

struct ParameterInfo {
  std::string name;                 // "layers.0.attention.qkv.weight"
  std::vector<std::int64_t> shape;  // [rows, columns] or [columns]
  Use use = Use::matrix;
  /// Of the tokens that pass the model, how many are multiplied with it: 0 for a look-up, k / E for
  /// an expert, 1 + depths for the head where multi-token prediction uses it again.
  double products = 1.0;
  std::int64_t padding = 0;    // elements that no token needs
  std::int64_t lora_rank = 0;  // of a matrix with a low-rank update
  bool trained = true;         // has a gradient and moments
  bool backward = false;       // gradients flow through the products with it

  std::int64_t elements() const {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }
};

struct ModelFacts {
  std::vector<ParameterInfo> parameters;  // in the order of their use
  std::vector<bool> attention_backward;   // of each layer: gradients flow through its attention
};
/// With what [lora] adds and [optimizer] freezes. ErrorCode::config for a pattern that matches
/// nothing.
Result<ModelFacts> model_facts(const config::JobConfig& job);

struct ParameterCount {
  std::int64_t total = 0;    // without padding and state
  std::int64_t active = 0;   // of them, those that a token meets: top k of the experts
  std::int64_t trained = 0;  // of the total
};
ParameterCount count(std::span<const ParameterInfo> parameters);

/// Floating-point operations of one trained token: for every weight that it is multiplied with 2
/// forward, 2 where gradients flow through and 2 where the weight has one; for every key that it
/// sees in a layer, on average over the sequence, 2 H (D + Dv), and twice that backward.
/// Recomputation is not counted.
double flops_per_token(const config::ModelConfig& config, const ModelFacts& facts);

}  // namespace sortie::model
