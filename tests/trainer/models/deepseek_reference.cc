#include "tests/trainer/models/deepseek_reference.h"

#include <algorithm>
#include <numbers>
#include <numeric>

namespace sortie::trainer::reference {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}
double number(std::int64_t value) {
  return static_cast<double>(value);
}

Scalar sum(const Row& row) {
  Scalar total;
  for (const Scalar& x : row) total += x;
  return total;
}
Scalar dot(const Row& a, const Row& b) {
  Scalar total;
  for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}
Row part(const Row& row, std::int64_t begin, std::int64_t count) {
  return {row.begin() + begin, row.begin() + begin + count};
}
Row joined(Row a, const Row& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
Row plus(const Row& a, const Row& b) {
  Row y;
  for (std::size_t i = 0; i < a.size(); ++i) y.push_back(a[i] + b[i]);
  return y;
}
Scalar sigmoid(const Scalar& x) {
  return Scalar(1.0) / (Scalar(1.0) + exp(Scalar(0.0) - x));
}

std::vector<std::int64_t> top(const std::vector<double>& values, std::int64_t k) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return values[at(a)] > values[at(b)]; });
  order.resize(at(k));
  return order;
}

class Model {
 public:
  Model(const config::ModelConfig& config, const Weights& weights, const DeepseekBatch& batch)
      : c_(config), batch_(batch) {
    for (const auto& [name, values] : weights)
      for (const double value : values) weights_[name].emplace_back(tape_, value);
  }

  DeepseekResult run(double grad_scale, double balance_scale) {
    DeepseekResult result;
    std::vector<Row> x;
    for (const std::int32_t token : batch_.tokens) x.push_back(embedded(token));
    for (std::int64_t layer = 0; layer < c_.num_layers; ++layer) x = block(x, layer, result);
    std::vector<Row> h;
    for (const Row& row : x) h.push_back(norm(row, "final_norm", c_.norm_epsilon));
    const Scalar loss = cross_entropy(h, 0);
    Scalar mtp;
    const std::int64_t depths = c_.mtp.num_layers;
    for (std::int64_t k = 1; k <= depths; ++k) {
      const std::int64_t layer = c_.num_layers + k - 1;
      const std::string name = "layers." + std::to_string(layer);
      std::vector<Row> in;
      for (std::int64_t i = 0; i < rows(); ++i) {
        const Row token = embedded(reaches(i, k) ? batch_.tokens[at(i + k)] : 0);
        in.push_back(product(joined(norm(token, name + ".token_norm", c_.norm_epsilon),
                                    norm(h[at(i)], name + ".hidden_norm", c_.norm_epsilon)),
                             name + ".join"));
      }
      in = block(in, layer, result);
      for (std::int64_t i = 0; i < rows(); ++i)
        h[at(i)] = norm(in[at(i)], name + ".final_norm", c_.norm_epsilon);
      mtp += Scalar(c_.mtp.loss_coeff / number(depths)) * cross_entropy(h, k);
    }
    result.loss = loss.value;
    result.mtp_loss = mtp.value;
    result.balance = balance_.value;
    const Scalar objective = Scalar(grad_scale) * (loss + mtp) + Scalar(balance_scale) * balance_;
    const std::vector<double> slopes = tape_.slopes(objective.node);
    for (const auto& [name, values] : weights_)
      for (const Scalar& value : values) result.gradients[name].push_back(slopes[value.node]);
    return result;
  }

 private:
  std::int64_t rows() const { return batch_.sequences * batch_.length; }
  std::int64_t place(std::int64_t row) const { return row % batch_.length; }
  std::int64_t document(std::int64_t row) const {
    return batch_.document_start.empty() ? 0 : batch_.document_start[at(row)];
  }
  /// Returns whether row i + k is in the same sequence and document as row i.
  bool reaches(std::int64_t i, std::int64_t k) const {
    return place(i) + k < batch_.length && document(i + k) == document(i);
  }

  Row embedded(std::int32_t token) const {
    return part(weights_.at("embedding.weight"), token * c_.hidden_size, c_.hidden_size);
  }
  Row product(const Row& x, const std::string& name) const {
    const Row& w = weights_.at(name + ".weight");
    Row y;
    for (std::size_t begin = 0; begin < w.size(); begin += x.size())
      y.push_back(
          dot(x, part(w, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(x.size()))));
    return y;
  }
  Row norm(const Row& x, const std::string& name, double eps) const {
    const Row& w = weights_.at(name + ".weight");
    const Scalar deviation = sqrt(dot(x, x) / Scalar(number(std::ssize(x))) + Scalar(eps));
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] / deviation * w[i]);
    return y;
  }
  Row swiglu(const Row& x, const std::string& name) const {
    const Row inner = product(x, name + ".gate_up");
    const std::size_t half = inner.size() / 2;
    Row y;
    for (std::size_t i = 0; i < half; ++i)
      y.push_back(inner[i] * sigmoid(inner[i]) * inner[half + i]);
    return product(y, name + ".down");
  }

  /// Rotates pairs of neighbouring dimensions by the token's position.
  Row turned(const Row& x, std::int64_t position) const {
    Row y;
    const auto dims = std::ssize(x);
    for (std::int64_t i = 0; i < dims; i += 2) {
      const double angle =
          number(position) * std::pow(c_.rotary_embedding_base, -number(i) / number(dims));
      const Scalar cos(std::cos(angle)), sin(std::sin(angle));
      y.push_back(x[at(i)] * cos - x[at(i + 1)] * sin);
      y.push_back(x[at(i + 1)] * cos + x[at(i)] * sin);
    }
    return y;
  }

  std::vector<Row> attention(const std::vector<Row>& h, const std::string& name) const {
    const config::MlaConfig& m = c_.mla;
    const std::int64_t nope = m.qk_nope_head_dim, rope = m.qk_rope_head_dim, v = m.v_head_dim;
    std::vector<Row> queries, latents, keys;
    for (std::int64_t i = 0; i < rows(); ++i) {
      const Row& x = h[at(i)];
      queries.push_back(
          m.q_lora_rank > 0
              ? product(norm(product(x, name + ".q_a"), name + ".q_a_norm", 1e-6), name + ".q_b")
              : product(x, name + ".q"));
      const Row down = product(x, name + ".kv_a");
      latents.push_back(
          product(norm(part(down, 0, m.kv_lora_rank), name + ".kv_a_norm", 1e-6), name + ".kv_b"));
      keys.push_back(turned(part(down, m.kv_lora_rank, rope), place(i)));
    }
    std::vector<Row> out;
    for (std::int64_t i = 0; i < rows(); ++i) {
      Row heads;
      for (std::int64_t head = 0; head < c_.num_attention_heads; ++head) {
        const Row q = part(queries[at(i)], head * (nope + rope), nope + rope);
        const Row q_rope = turned(part(q, nope, rope), place(i));
        Row weights;
        std::vector<Row> values;
        for (std::int64_t j = i - place(i) + document(i); j <= i; ++j) {
          const Row kv = part(latents[at(j)], head * (nope + v), nope + v);
          const Scalar score = dot(part(q, 0, nope), part(kv, 0, nope)) + dot(q_rope, keys[at(j)]);
          weights.push_back(exp(score / Scalar(std::sqrt(number(nope + rope)))));
          values.push_back(part(kv, nope, v));
        }
        const Scalar total = sum(weights);
        for (std::int64_t d = 0; d < v; ++d) {
          Scalar y;
          for (std::size_t j = 0; j < values.size(); ++j)
            y += weights[j] / total * values[j][at(d)];
          heads.push_back(y);
        }
      }
      out.push_back(product(heads, name + ".out"));
    }
    return out;
  }

  std::vector<std::int64_t> select(const Row& scores, const std::string& name) const {
    const config::MoeConfig& m = c_.moe;
    const std::int64_t size = m.num_experts / m.num_groups;
    std::vector<double> choice, group_scores;
    const Row& bias = weights_.at(name + ".router.bias");
    for (std::size_t e = 0; e < scores.size(); ++e)
      choice.push_back(scores[e].value + bias[e].value);
    for (std::int64_t g = 0; g < m.num_groups; ++g) {
      const std::vector<double> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      double best = 0.0;
      for (const std::int64_t e : top(group, std::min<std::int64_t>(2, size))) best += group[at(e)];
      group_scores.push_back(best);
    }
    const auto kept = top(group_scores, m.group_topk);
    for (std::int64_t e = 0; e < m.num_experts; ++e)
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) choice[at(e)] = -1e300;
    return top(choice, m.topk);
  }

  std::vector<Row> mixture(const std::vector<Row>& h, const std::string& name,
                           DeepseekResult& result) {
    const config::MoeConfig& m = c_.moe;
    std::vector<double> sent(at(m.num_experts));
    std::vector<Row> out, all_scores;
    for (const Row& x : h) {
      Row scores;
      for (const Scalar& logit : product(x, name + ".router")) scores.push_back(sigmoid(logit));
      const auto chosen = select(scores, name);
      Scalar total(m.normalize_topk ? 1e-20 : 1.0);
      if (m.normalize_topk)
        for (const std::int64_t e : chosen) total += scores[at(e)];
      Row y = m.num_shared_experts > 0 ? swiglu(x, name + ".shared") : Row(x.size());
      for (const std::int64_t e : chosen) {
        ++sent[at(e)];
        const Scalar weight = Scalar(m.scaling_factor) * scores[at(e)] / total;
        const Row expert = swiglu(x, name + ".experts." + std::to_string(e));
        for (std::size_t i = 0; i < y.size(); ++i) y[i] += weight * expert[i];
      }
      out.push_back(y);
      all_scores.push_back(scores);
    }
    result.counts.push_back(sent);
    // alpha * mean over sequences of sum_e f_e P_e
    for (std::int64_t s = 0; s < batch_.sequences; ++s) {
      std::vector<double> f(at(m.num_experts));
      Row p(at(m.num_experts));
      for (std::int64_t i = s * batch_.length; i < (s + 1) * batch_.length; ++i) {
        std::vector<double> values;
        for (const Scalar& score : all_scores[at(i)]) values.push_back(score.value);
        for (const std::int64_t e : top(values, m.topk))
          f[at(e)] += number(m.num_experts) / number(m.topk * batch_.length);
        const Scalar total = sum(all_scores[at(i)]);
        for (std::int64_t e = 0; e < m.num_experts; ++e)
          p[at(e)] += all_scores[at(i)][at(e)] / total / Scalar(number(batch_.length));
      }
      for (std::int64_t e = 0; e < m.num_experts; ++e)
        balance_ += Scalar(m.seq_aux_loss_coeff * f[at(e)] / number(batch_.sequences)) * p[at(e)];
    }
    return out;
  }

  std::vector<Row> block(std::vector<Row> x, std::int64_t layer, DeepseekResult& result) {
    const std::string name = "layers." + std::to_string(layer);
    std::vector<Row> h;
    for (const Row& row : x) h.push_back(norm(row, name + ".attention_norm", c_.norm_epsilon));
    h = attention(h, name + ".attention");
    for (std::int64_t i = 0; i < rows(); ++i) {
      x[at(i)] = plus(x[at(i)], h[at(i)]);
      h[at(i)] = norm(x[at(i)], name + ".mlp_norm", c_.norm_epsilon);
    }
    if (layer >= c_.moe.first_dense_layers)
      h = mixture(h, name + ".mlp", result);
    else
      for (Row& row : h) row = swiglu(row, name + ".mlp");
    for (std::int64_t i = 0; i < rows(); ++i) x[at(i)] = plus(x[at(i)], h[at(i)]);
    return x;
  }

  /// Returns the summed cross-entropy of the targets `ahead` rows later.
  Scalar cross_entropy(const std::vector<Row>& h, std::int64_t ahead) const {
    Scalar loss;
    for (std::int64_t i = 0; i < rows(); ++i) {
      if (!reaches(i, ahead) || batch_.targets[at(i + ahead)] < 0) continue;
      Row logits = product(h[at(i)], c_.weight_tying ? "embedding" : "head");
      logits.resize(at(c_.vocab_size));
      Scalar total;
      for (const Scalar& logit : logits) total += exp(logit);
      loss += log(total) - logits[at(batch_.targets[at(i + ahead)])];
    }
    return loss;
  }

  const config::ModelConfig& c_;
  const DeepseekBatch& batch_;
  Tape tape_;
  std::map<std::string, Row> weights_;
  Scalar balance_;
};

}  // namespace

DeepseekResult deepseek(const config::ModelConfig& config, const Weights& weights,
                        const DeepseekBatch& batch, double grad_scale, double balance_scale) {
  return Model(config, weights, batch).run(grad_scale, balance_scale);
}

}  // namespace sortie::trainer::reference
