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

  std::vector<ParameterInfo>& parameters() { return parameters_; }

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
    bool mixture = false;
    Index shared_up = kNone, shared_down = kNone;
  };
  struct Depth {
    Index join = kNone;
    Layer layer;
  };

  Index declare(ParameterInfo parameter);
  Index declare_linear(const std::string& name, std::int64_t out, std::int64_t in, bool bias);
  void declare_norm(const std::string& name, std::int64_t size);
  void declare_attention(const std::string& name, Layer& layer);
  void declare_feed_forward(const std::string& name, std::int64_t index, Layer& layer);
  Layer declare_layer(std::int64_t index);

  Value apply(Tape& tape, Index weight, const Value& x) const {
    return linear(tape, x, parameters_[weight]);
  }
  Value attend(Tape& tape, const Layer& layer, const Value& h, std::int64_t batch) const;
  Value feed_forward(Tape& tape, const Layer& layer, const Value& h, std::int64_t batch) const;
  Hidden forward(Tape& tape, const Layer& layer, const Hidden& in, std::int64_t batch) const;
  void forward(Tape& tape, std::int64_t batch, bool recompute_layers) const;
  Value final_hidden(Tape& tape, std::int64_t batch, bool recompute_layers) const;

  const config::ModelConfig config_;
  const config::Architecture& architecture_;
  const ModelShape shape_;
  std::vector<ParameterInfo> parameters_;
  bool positions_;  // a learned table
  std::vector<Layer> layers_;
  std::vector<Depth> depths_;
};

}  // namespace sortie::model
