// The f64 references of routers and experts.
#include "tests/trainer/ops/reference_moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sortie::trainer::reference {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// Returns the indices of the k largest values; of equal values, the lower index comes first.
std::vector<std::int32_t> top(const Vec& values, std::int64_t k) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return values[at(a)] > values[at(b)]; });
  order.resize(at(k));
  return order;
}

Vec row_of(const Vec& values, std::int64_t row, std::int64_t cols) {
  return {values.begin() + row * cols, values.begin() + (row + 1) * cols};
}

double floor_of(const ops::RouterSpec& spec) {
  return spec.score == ops::RouterScore::sigmoid ? 1e-20 : 0.0;
}

}  // namespace

Routing route(const ops::RouterSpec& spec, const Vec& logits, const Vec& bias,
              const std::vector<std::int32_t>& replay, std::int64_t rows) {
  const std::int64_t n = spec.experts, k = spec.top_k, size = n / spec.groups;
  Routing r;
  for (std::int64_t row = 0; row < rows; ++row) {
    const Vec x = row_of(logits, row, n);
    Vec score(at(n));
    double sum = 0.0;
    for (std::int64_t e = 0; e < n; ++e)
      sum += score[at(e)] = spec.score == ops::RouterScore::softmax ? std::exp(x[at(e)])
                                                                    : 1 / (1 + std::exp(-x[at(e)]));
    if (spec.score == ops::RouterScore::softmax)
      for (double& s : score) s /= sum;

    Vec choice = score;
    for (std::size_t e = 0; e < bias.size(); ++e) choice[e] += bias[e];
    Vec group_score;
    for (std::int64_t g = 0; g < spec.groups; ++g) {
      const Vec group = row_of(choice, g, size);
      double best = 0.0;
      for (const std::int32_t e : top(group, std::min<std::int64_t>(2, size))) best += group[at(e)];
      group_score.push_back(best);
    }
    const auto kept = top(group_score, spec.kept_groups);
    for (std::int64_t e = 0; e < n; ++e)
      if (std::find(kept.begin(), kept.end(), e / size) == kept.end())
        choice[at(e)] = -std::numeric_limits<double>::infinity();
    std::vector<std::int32_t> chosen = top(choice, k);
    if (!replay.empty()) chosen.assign(replay.begin() + row * k, replay.begin() + (row + 1) * k);

    double total = floor_of(spec);
    for (const std::int32_t e : chosen) total += score[at(e)];
    for (const std::int32_t e : chosen)
      r.weights.push_back(static_cast<double>(spec.scale) * score[at(e)] /
                          (spec.normalize ? total : 1.0));
    r.scores.insert(r.scores.end(), score.begin(), score.end());
    r.experts.insert(r.experts.end(), chosen.begin(), chosen.end());
  }
  return r;
}

Vec route_backward(const ops::RouterSpec& spec, const Routing& routing, const Vec& dweights,
                   const Vec& dscores, std::int64_t rows) {
  const std::int64_t n = spec.experts, k = spec.top_k;
  Vec d(at(rows * n));
  for (std::int64_t row = 0; row < rows; ++row) {
    const double* s = &routing.scores[at(row * n)];
    const std::int32_t* chosen = &routing.experts[at(row * k)];
    const double* dw = &dweights[at(row * k)];
    Vec ds = dscores.empty() ? Vec(at(n)) : row_of(dscores, row, n);
    double total = floor_of(spec);
    for (std::int64_t j = 0; j < k; ++j) total += s[chosen[j]];
    for (std::int64_t j = 0; j < k; ++j) {
      const auto scale = static_cast<double>(spec.scale);
      if (!spec.normalize) {
        ds[at(chosen[j])] += scale * dw[j];
        continue;
      }
      for (std::int64_t i = 0; i < k; ++i)  // d w_i / d s_j
        ds[at(chosen[j])] +=
            dw[i] * scale * ((i == j ? 1.0 : 0.0) / total - s[chosen[i]] / (total * total));
    }
    for (std::int64_t e = 0; e < n; ++e) {
      double& out = d[at(row * n + e)];
      if (spec.score == ops::RouterScore::sigmoid)
        out = ds[at(e)] * s[e] * (1 - s[e]);
      else
        for (std::int64_t i = 0; i < n; ++i)
          out += ds[at(i)] * s[i] * ((i == e ? 1.0 : 0.0) - s[e]);
    }
  }
  return d;
}

Vec top_counts(const Vec& scores, std::int64_t experts, std::int64_t top_k, std::int64_t rows,
               std::int64_t length) {
  Vec counts(at(rows / length * experts));
  for (std::int64_t row = 0; row < rows; ++row)
    for (const std::int32_t e : top(row_of(scores, row, experts), top_k))
      counts[at(row / length * experts + e)] += 1.0;
  return counts;
}

double sequence_balance(const Vec& scores, const Vec& counts, std::int64_t experts,
                        std::int64_t top_k, std::int64_t rows, std::int64_t length) {
  const auto tokens = static_cast<double>(length);
  double loss = 0.0;
  for (std::int64_t s = 0; s < rows / length; ++s)
    for (std::int64_t e = 0; e < experts; ++e) {
      const double f = static_cast<double>(experts) / (static_cast<double>(top_k) * tokens) *
                       counts[at(s * experts + e)];
      double p = 0.0;
      for (std::int64_t t = s * length; t < (s + 1) * length; ++t) {
        const Vec row = row_of(scores, t, experts);
        p += row[at(e)] / std::accumulate(row.begin(), row.end(), 0.0) / tokens;
      }
      loss += f * p / static_cast<double>(rows / length);
    }
  return loss;
}

Vec sequence_balance_backward(const Vec& scores, const Vec& counts, std::int64_t experts,
                              std::int64_t top_k, std::int64_t rows, std::int64_t length) {
  Vec d(scores.size());
  const auto tokens = static_cast<double>(length);
  for (std::int64_t row = 0; row < rows; ++row) {
    const Vec s = row_of(scores, row, experts);
    const double sum = std::accumulate(s.begin(), s.end(), 0.0);
    for (std::int64_t e = 0; e < experts; ++e) {
      const double f = static_cast<double>(experts) / (static_cast<double>(top_k) * tokens) *
                       counts[at(row / length * experts + e)];
      for (std::int64_t i = 0; i < experts; ++i)  // d (s_e / sum) / d s_i
        d[at(row * experts + i)] += f / tokens / static_cast<double>(rows / length) *
                                    ((i == e ? 1.0 : 0.0) / sum - s[at(e)] / (sum * sum));
    }
  }
  return d;
}

double load_balance(const Vec& scores, const Vec& counts, std::int64_t experts, std::int64_t rows) {
  const auto n = static_cast<double>(rows);
  double loss = 0.0;
  for (std::int64_t e = 0; e < experts; ++e) {
    double share = 0.0;
    for (std::int64_t row = 0; row < rows; ++row) share += scores[at(row * experts + e)] / n;
    loss += static_cast<double>(experts) * counts[at(e)] / n * share;
  }
  return loss;
}

Vec load_balance_backward(const Vec& counts, std::int64_t experts, std::int64_t rows) {
  const auto n = static_cast<double>(rows);
  Vec d;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t e = 0; e < experts; ++e)
      d.push_back(static_cast<double>(experts) * counts[at(e)] / (n * n));
  return d;
}

Vec mixture(const Vec& x, const Vec& w, const std::vector<std::int32_t>& experts,
            const Vec& weights, std::int64_t rows, std::int64_t top_k, std::int64_t n,
            std::int64_t c) {
  Vec y(at(rows * n));
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t j = 0; j < top_k; ++j) {
      const std::int64_t e = experts[at(t * top_k + j)];
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t l = 0; l < c; ++l)
          y[at(t * n + i)] +=
              weights[at(t * top_k + j)] * w[at((e * n + i) * c + l)] * x[at(t * c + l)];
    }
  return y;
}

MixtureGradients mixture_backward(const Vec& dy, const Vec& x, const Vec& w,
                                  const std::vector<std::int32_t>& experts, const Vec& weights,
                                  std::int64_t rows, std::int64_t top_k, std::int64_t n,
                                  std::int64_t c) {
  MixtureGradients g{Vec(x.size()), Vec(w.size()), Vec(weights.size())};
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t j = 0; j < top_k; ++j) {
      const std::int64_t e = experts[at(t * top_k + j)];
      const double weight = weights[at(t * top_k + j)];
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t l = 0; l < c; ++l) {
          const double d = dy[at(t * n + i)], value = w[at((e * n + i) * c + l)];
          g.dx[at(t * c + l)] += weight * d * value;
          g.dw[at((e * n + i) * c + l)] += weight * d * x[at(t * c + l)];
          g.dweights[at(t * top_k + j)] += d * value * x[at(t * c + l)];
        }
    }
  return g;
}

}  // namespace sortie::trainer::reference
