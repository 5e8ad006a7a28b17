#include "common/config/stages.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/check.h"
#include "common/config/architectures.h"
#include "common/config/forms.h"

namespace sortie::config {
namespace {

constexpr double kHeld = 1.0 / 8.0;  // weight of a parameter relative to a multiply-add

double real(std::int64_t value) {
  return static_cast<double>(value);
}

/// Sizes of a layer, with defaults resolved (as in trainer/models/shape.h).
struct Sizes {
  explicit Sizes(const ModelConfig& m)
      : architecture(architecture_of(m)), hidden(real(m.hidden_size)) {
    const double heads = real(m.num_attention_heads);
    const double kv_heads = m.attention_num_kv_heads ? real(m.attention_num_kv_heads) : heads;
    head_dim = m.head_dim ? real(m.head_dim) : hidden / heads;
    value_dim = head_dim;
    queries = heads * head_dim;
    if (architecture.latent) {
      head_dim = real(m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim);
      value_dim = real(m.mla.v_head_dim);
      queries = heads * head_dim;
      const double rank = real(m.mla.q_lora_rank), latent = real(m.mla.kv_lora_rank);
      projections = (rank > 0 ? rank * (hidden + queries) : hidden * queries) +
                    hidden * (latent + real(m.mla.qk_rope_head_dim)) +
                    latent * heads * (real(m.mla.qk_nope_head_dim) + value_dim) +
                    heads * value_dim * hidden;
    } else {
      projections = hidden * (2.0 * queries + 2.0 * kv_heads * head_dim);
    }
    values = heads * value_dim;
    ffn = m.ffn_hidden_size        ? real(m.ffn_hidden_size)
          : architecture.gated_mlp ? std::ceil(hidden * 8.0 / 3.0 / 64.0) * 64.0
                                   : 4.0 * hidden;
    expert_ffn = m.moe.ffn_hidden_size ? real(m.moe.ffn_hidden_size) : ffn;
  }
  /// Number of weights in an MLP of this inner width.
  double mlp(double width) const { return (architecture.gated_mlp ? 3.0 : 2.0) * hidden * width; }

  const Architecture& architecture;
  double hidden, head_dim = 0, value_dim = 0, queries = 0, values = 0, projections = 0, ffn = 0,
                 expert_ffn = 0;
};

double weight_of_layer(const ModelConfig& model, const Sizes& sizes, std::int64_t layer) {
  // A token attends to half of the sequence on average, or to the window.
  const std::int64_t window = window_of_layer(model, layer);
  double keys = real(model.sequence_length) / 2.0;
  if (window > 0) keys = std::min(keys, real(window));
  double met = sizes.projections, held = sizes.projections;
  if (is_mixture(model, layer)) {
    const double expert = sizes.mlp(sizes.expert_ffn), shared = real(model.moe.num_shared_experts);
    const double router = sizes.hidden * real(model.moe.num_experts);
    met += (real(model.moe.topk) + shared) * expert + router;
    held += (real(model.moe.num_experts) + shared) * expert + router;
  } else {
    met += sizes.mlp(sizes.ffn);
    held += sizes.mlp(sizes.ffn);
  }
  return met + keys * (sizes.queries + sizes.values) + kHeld * held;
}

/// For cuts whose parts weigh at most `most`: how many parts the layers need.
class Cut {
 public:
  static constexpr std::int64_t kNever = std::int64_t{1} << 40;

  Cut(const ModelWeights& weights, double most)
      : weights_(weights),
        most_(most),
        count_(static_cast<std::int64_t>(weights.layers.size())),
        before_(weights.layers.size() + 1, 0.0),
        needed_(weights.layers.size() + 1, 0) {
    std::partial_sum(weights.layers.begin(), weights.layers.end(), before_.begin() + 1);
    for (std::int64_t begin = count_ - 1; begin >= 0; --begin) {
      // As many layers as fit from the start: no other cut needs fewer parts.
      std::int64_t fit = begin, too_many = count_ + 1;
      while (too_many - fit > 1) {
        const std::int64_t middle = fit + (too_many - fit) / 2;
        (fits({begin, middle}) ? fit : too_many) = middle;
      }
      needed_[static_cast<std::size_t>(begin)] =
          fit == begin ? kNever : std::min(kNever, 1 + needed(fit));
    }
  }

  /// The fewest parts for the layers from `begin` to the last.
  std::int64_t needed(std::int64_t begin) const { return needed_[static_cast<std::size_t>(begin)]; }
  double weight(LayerRange range) const {
    const double layers = before_[static_cast<std::size_t>(range.end)] -
                          before_[static_cast<std::size_t>(range.begin)];
    return layers + (range.begin == 0 ? weights_.embedding : 0.0) +
           (range.end == count_ ? weights_.head : 0.0);
  }
  bool fits(LayerRange range) const { return weight(range) <= most_; }

 private:
  const ModelWeights& weights_;
  double most_;
  std::int64_t count_;
  std::vector<double> before_;  // weight of all layers before each layer
  std::vector<std::int64_t> needed_;
};

}  // namespace

ModelWeights weigh(const ModelConfig& model) {
  const Sizes sizes(model);
  ModelWeights weights;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer)
    weights.layers.push_back(weight_of_layer(model, sizes, layer));
  const double table = real(model.vocab_size) * sizes.hidden;
  weights.embedding = kHeld * table;
  if (!sizes.architecture.rope)
    weights.embedding += kHeld * sizes.hidden *
                         real(model.num_positions ? model.num_positions : model.sequence_length);
  weights.head = (1.0 + kHeld) * table;
  for (std::int64_t depth = 0; depth < model.mtp.num_layers; ++depth)
    weights.head += weight_of_layer(model, sizes, model.num_layers + depth) +
                    (1.0 + kHeld) * 2.0 * sizes.hidden * sizes.hidden + table;
  return weights;
}

std::vector<LayerRange> cut_layers(const ModelWeights& weights, std::int64_t runs) {
  const auto count = static_cast<std::int64_t>(weights.layers.size());
  SORTIE_CHECK(runs >= 1 && runs <= count, "{} layers in {} runs", count, runs);
  if (runs == 1) return {{0, count}};
  // The smallest bound that allows a cut into `runs` parts, with a relative precision of 2^-40.
  const double all = std::accumulate(weights.layers.begin(), weights.layers.end(),
                                     weights.embedding + weights.head);
  double low = 0.0, high = all;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2.0;
    (Cut(weights, middle).needed(0) <= runs ? high : low) = middle;
  }
  const Cut cut(weights, high);
  std::vector<LayerRange> ranges;
  double left = all;
  for (std::int64_t run = 0, begin = 0; run < runs; ++run) {
    const std::int64_t others = runs - run - 1;
    if (others == 0) {
      ranges.push_back({begin, count});
      break;
    }
    // Choose the part nearest to an equal share of the rest, among those that leave enough layers
    // for the other parts, but not too much weight.
    const double share = left / static_cast<double>(others + 1);
    std::int64_t best = -1;
    double best_distance = 0.0;
    for (std::int64_t end = begin + 1; end <= count - others; ++end) {
      const double weight = cut.weight({begin, end});
      if (!cut.fits({begin, end})) break;
      const double distance = std::abs(weight - share);
      if (cut.needed(end) > others || (best >= 0 && distance >= best_distance)) continue;
      best = end;
      best_distance = distance;
    }
    SORTIE_CHECK(best > 0, "no cut of {} layers into {} runs from {}", count, runs, begin);
    left -= cut.weight({begin, best});
    ranges.push_back({begin, best});
    begin = best;
  }
  return ranges;
}

std::vector<LayerRange> layer_runs(const JobConfig& job) {
  const TopologyConfig& topology = job.topology;
  if (topology.pipeline_stage_layers.empty())
    return cut_layers(weigh(job.model),
                      topology.pipeline_parallel_size * topology.pipeline_interleave);
  std::vector<LayerRange> runs;
  std::int64_t begin = 0;
  for (const std::string& layers : topology.pipeline_stage_layers) {
    runs.push_back({begin, begin + layer_count(layers)});
    begin = runs.back().end;
  }
  return runs;
}

std::vector<LayerRange> layers_of_stage(const JobConfig& job, std::int64_t stage) {
  const std::int64_t stages = job.topology.pipeline_parallel_size;
  const std::vector<LayerRange> all = layer_runs(job);
  std::vector<LayerRange> own;
  for (auto run = static_cast<std::size_t>(stage); run < all.size();
       run += static_cast<std::size_t>(stages))
    own.push_back(all[run]);
  return own;
}

}  // namespace sortie::config
