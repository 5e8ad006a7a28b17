// The architectures of trainer/models as config::Architecture describes them: what they declare,
// and what a step of training does on the tape of tape.h.
#pragma once

#include <string>
#include <vector>

#include "common/config/architectures.h"
#include "common/model/functions.h"
#include "common/model/shape.h"

namespace sortie::model {

class Network {
 public:
  explicit Network(const config::ModelConfig& config);

  std::vector<ParameterInfo>& parameters() { return facts_.parameters; }
  /// Once it is known what is trained: where gradients flow.
  void find_flow();
  ModelFacts facts() && { return std::move(facts_); }

  /// Forward and backward pass of a micro-batch of `batch` sequences.
  void train(Meter& meter, const Machine& machine, std::int64_t batch, bool recompute_layers) const;

 private:
  using Index = std::size_t;  // of a parameter
  static constexpr Index kNone = ~Index{0};
  struct Hidden {
    Value residual, branch;
  };
  struct Layer {
    Index qkv = kNone, query = kNone, key = kNone, value = kNone;  // packed or not
    Index query_down = kNone, key_value_down = kNone, key_value = kNone;
    Index out = kNone, up = kNone, down = kNone;
    Index attention_norm = kNone, query_norm = kNone, key_norm = kNone, mlp_norm = kNone;
    Index router = kNone, experts = kNone;  // the first of the experts
    Index shared_up = kNone, shared_down = kNone;
  };
  struct Depth {
    Index token_norm = kNone, hidden_norm = kNone, join = kNone, final_norm = kNone;
    Layer layer;
  };

  Index declare(ParameterInfo parameter);
  Index declare_linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias);
  Index declare_norm(const std::string& name, std::int64_t size);
  void declare_attention(const std::string& name, Layer& layer);
  void declare_feed_forward(const std::string& name, std::int64_t index, Layer& layer);
  Layer declare_layer(std::int64_t index);

  /// A weight and, behind it, its bias.
  Module module(Index weight) const;
  Value apply(Tape& tape, Index weight, const Value& x) const {
    return linear(tape, x, module(weight));
  }
  Value attend(Tape& tape, const Layer& layer, const Value& h, std::int64_t batch) const;
  Value feed_forward(Tape& tape, const Layer& layer, const Value& h, std::int64_t batch) const;
  Hidden forward(Tape& tape, const Layer& layer, const Hidden& in, std::int64_t batch) const;
  void forward(Tape& tape, std::int64_t batch, bool recompute_layers) const;
  Value final_hidden(Tape& tape, std::int64_t batch, bool recompute_layers) const;

  config::ModelConfig config_;
  const config::Architecture* architecture_;
  ModelShape shape_;
  ModelFacts facts_;
  Index embedding_ = kNone, positions_ = kNone, final_norm_ = kNone, head_ = kNone;
  std::vector<Layer> layers_;
  std::vector<Depth> depths_;
};

/// With what [lora] adds and [optimizer] freezes; errors as model_facts', and for sizes that no
/// machine holds: sums of what comes of `micro_batch_size` sequences stay in 64 bits.
Result<Network> open_network(const config::JobConfig& job, std::int64_t micro_batch_size = 1);

}  // namespace sortie::model
