// The f64 references, as plain loops over the formulas.
#include "tests/trainer/ops/reference.h"

#include <algorithm>
#include <cmath>

namespace sortie::trainer::reference {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

}  // namespace

Vec linear(const Vec& x, const Vec& w, const Vec& bias, std::int64_t m, std::int64_t n,
           std::int64_t k) {
  Vec y(at(m * n));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = bias.empty() ? 0.0 : bias[at(j)];
      for (std::int64_t l = 0; l < k; ++l) sum += x[at(i * k + l)] * w[at(j * k + l)];
      y[at(i * n + j)] = sum;
    }
  return y;
}

LinearGradients linear_backward(const Vec& dy, const Vec& x, const Vec& w, std::int64_t m,
                                std::int64_t n, std::int64_t k) {
  LinearGradients g{Vec(at(m * k)), Vec(at(n * k)), Vec(at(n))};
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      const double d = dy[at(i * n + j)];
      g.dbias[at(j)] += d;
      for (std::int64_t l = 0; l < k; ++l) {
        g.dx[at(i * k + l)] += d * w[at(j * k + l)];
        g.dw[at(j * k + l)] += d * x[at(i * k + l)];
      }
    }
  return g;
}

Vec norm(bool layer, const Vec& x, const Vec& weight, const Vec& bias, double eps,
         std::int64_t rows, std::int64_t cols) {
  Vec y(x.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    double mean = 0.0, squares = 0.0;
    if (layer)
      for (std::int64_t c = 0; c < cols; ++c)
        mean += x[at(r * cols + c)] / static_cast<double>(cols);
    for (std::int64_t c = 0; c < cols; ++c) squares += std::pow(x[at(r * cols + c)] - mean, 2);
    const double deviation = std::sqrt(squares / static_cast<double>(cols) + eps);
    for (std::int64_t c = 0; c < cols; ++c)
      y[at(r * cols + c)] = (x[at(r * cols + c)] - mean) / deviation * weight[at(c)] +
                            (bias.empty() ? 0.0 : bias[at(c)]);
  }
  return y;
}

NormGradients norm_backward(bool layer, const Vec& dy, const Vec& x, const Vec& weight, double eps,
                            std::int64_t rows, std::int64_t cols) {
  NormGradients g{Vec(x.size()), Vec(at(cols)), Vec(at(cols))};
  const auto count = static_cast<double>(cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    const double* row = &x[at(r * cols)];
    const double* d = &dy[at(r * cols)];
    double mean = 0.0, squares = 0.0;
    if (layer)
      for (std::int64_t c = 0; c < cols; ++c) mean += row[c] / count;
    for (std::int64_t c = 0; c < cols; ++c) squares += (row[c] - mean) * (row[c] - mean);
    const double deviation = std::sqrt(squares / count + eps);
    // Gradients through the deviation and, for LayerNorm, through the mean.
    double along = 0.0, total = 0.0;
    for (std::int64_t c = 0; c < cols; ++c) {
      const double z = (row[c] - mean) / deviation;
      g.dweight[at(c)] += d[c] * z;
      g.dbias[at(c)] += d[c];
      along += d[c] * weight[at(c)] * z;
      total += d[c] * weight[at(c)];
    }
    for (std::int64_t c = 0; c < cols; ++c) {
      const double z = (row[c] - mean) / deviation;
      g.dx[at(r * cols + c)] =
          (d[c] * weight[at(c)] - (layer ? total / count : 0.0) - z * along / count) / deviation;
    }
  }
  return g;
}

Vec swiglu(const Vec& gate_up, std::int64_t rows, std::int64_t cols) {
  Vec y(at(rows * cols));
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const double g = gate_up[at(r * 2 * cols + c)];
      y[at(r * cols + c)] = g / (1.0 + std::exp(-g)) * gate_up[at(r * 2 * cols + cols + c)];
    }
  return y;
}

Vec swiglu_backward(const Vec& dy, const Vec& gate_up, std::int64_t rows, std::int64_t cols) {
  Vec d(gate_up.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) {
      const double g = gate_up[at(r * 2 * cols + c)];
      const double u = gate_up[at(r * 2 * cols + cols + c)];
      const double s = 1.0 / (1.0 + std::exp(-g));
      d[at(r * 2 * cols + c)] = dy[at(r * cols + c)] * u * (s + g * s * (1.0 - s));
      d[at(r * 2 * cols + cols + c)] = dy[at(r * cols + c)] * g * s;
    }
  return d;
}

Vec gelu(const Vec& x, bool tanh) {
  Vec y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u = std::sqrt(2.0 / std::acos(-1.0)) * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    y[i] = 0.5 * x[i] * (tanh ? 1.0 + std::tanh(u) : std::erfc(-x[i] / std::sqrt(2.0)));
  }
  return y;
}

Vec gelu_backward(const Vec& dy, const Vec& x, bool tanh) {
  Vec dx(x.size());
  const double c = std::sqrt(2.0 / std::acos(-1.0));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double t = std::tanh(c * (x[i] + 0.044715 * x[i] * x[i] * x[i]));
    const double tail = 1.0 - t * t;
    const double slope =
        tanh ? 0.5 * (1.0 + t) +
                   (tail > 0.0 ? 0.5 * x[i] * tail * c * (1.0 + 3 * 0.044715 * x[i] * x[i]) : 0.0)
             : 0.5 * std::erfc(-x[i] / std::sqrt(2.0)) +
                   x[i] * std::exp(-0.5 * x[i] * x[i]) / std::sqrt(2.0 * std::acos(-1.0));
    dx[i] = dy[i] * slope;
  }
  return dx;
}

Vec rope(const Vec& x, const HeadShape& s, std::int64_t rotary_dims, double base, double sign) {
  Vec y = x;
  const std::int64_t half = rotary_dims / 2;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t t = 0; t < s.tokens; ++t)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle =
              sign * static_cast<double>(t) *
              std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dims));
          const std::size_t low = at(((b * s.tokens + t) * s.heads + h) * s.dims + i);
          const std::size_t high = low + at(half);
          y[low] = x[low] * std::cos(angle) - x[high] * std::sin(angle);
          y[high] = x[high] * std::cos(angle) + x[low] * std::sin(angle);
        }
  return y;
}

namespace {

/// Index of (b, t, h, 0) in [B, T, H, D].
std::size_t head(const HeadShape& s, std::int64_t heads, std::int64_t b, std::int64_t t,
                 std::int64_t h) {
  return at(((b * s.tokens + t) * heads + h) * s.dims);
}

double dot(const Vec& a, std::size_t i, const Vec& b, std::size_t j, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t c = 0; c < n; ++c) sum += a[i + at(c)] * b[j + at(c)];
  return sum;
}

std::int64_t value_dims(const HeadShape& s) {
  return s.value_dims != 0 ? s.value_dims : s.dims;
}
/// Index of (b, t, h, 0) in values [B, T, H, Dv].
std::size_t value_head(const HeadShape& s, std::int64_t heads, std::int64_t b, std::int64_t t,
                       std::int64_t h) {
  return at(((b * s.tokens + t) * heads + h) * value_dims(s));
}

/// Returns the probabilities of one query row over keys 0..t, which are 0 for keys that it does not
/// see, and sets `lse` to the log-sum-exp.
Vec probabilities(const Vec& q, const Vec& k, const HeadShape& s, double scale, const Mask& mask,
                  std::int64_t b, std::int64_t h, std::int64_t t, double* lse) {
  const std::int64_t kv = h / (s.heads / s.key_heads);
  Vec p(at(t + 1));
  double max = -1e300, sum = 0.0;
  const auto sees = [&](std::int64_t j) { return !mask.sees || mask.sees(b, t, j); };
  for (std::int64_t j = 0; j <= t; ++j) {
    p[at(j)] = scale * dot(q, head(s, s.heads, b, t, h), k, head(s, s.key_heads, b, j, kv), s.dims);
    if (sees(j)) max = std::max(max, p[at(j)]);
  }
  for (std::int64_t j = 0; j <= t; ++j) {
    p[at(j)] = sees(j) ? std::exp(p[at(j)] - max) : 0.0;
    sum += p[at(j)];
  }
  for (double& value : p) value /= sum;
  *lse = max + std::log(sum);
  return p;
}

double factor(const Mask& mask, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  return mask.factor ? mask.factor(b, h, i, j) : 1.0;
}

}  // namespace

AttentionOut attention(const Vec& q, const Vec& k, const Vec& v, const HeadShape& s, double scale,
                       const Mask& mask) {
  const std::int64_t width = value_dims(s);
  AttentionOut result{Vec(at(s.batch * s.tokens * s.heads * width)),
                      Vec(at(s.batch * s.heads * s.tokens))};
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        const Vec p = probabilities(q, k, s, scale, mask, b, h, t,
                                    &result.lse[at((b * s.heads + h) * s.tokens + t)]);
        const std::int64_t kv = h / (s.heads / s.key_heads);
        for (std::int64_t j = 0; j <= t; ++j)
          for (std::int64_t c = 0; c < width; ++c)
            result.out[value_head(s, s.heads, b, t, h) + at(c)] +=
                p[at(j)] * factor(mask, b, h, t, j) *
                v[value_head(s, s.key_heads, b, j, kv) + at(c)];
      }
  return result;
}

AttentionGradients attention_backward(const Vec& q, const Vec& k, const Vec& v, const Vec& dout,
                                      const HeadShape& s, double scale, const Mask& mask) {
  AttentionGradients g{Vec(q.size()), Vec(k.size()), Vec(v.size())};
  const std::int64_t width = value_dims(s);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t h = 0; h < s.heads; ++h)
      for (std::int64_t t = 0; t < s.tokens; ++t) {
        double lse = 0.0;
        const Vec p = probabilities(q, k, s, scale, mask, b, h, t, &lse);
        const std::int64_t kv = h / (s.heads / s.key_heads);
        const std::size_t query = head(s, s.heads, b, t, h);
        const std::size_t result = value_head(s, s.heads, b, t, h);
        double mean = 0.0;
        Vec dp(p.size());
        for (std::int64_t j = 0; j <= t; ++j) {
          dp[at(j)] = factor(mask, b, h, t, j) *
                      dot(dout, result, v, value_head(s, s.key_heads, b, j, kv), width);
          mean += p[at(j)] * dp[at(j)];
        }
        for (std::int64_t j = 0; j <= t; ++j) {
          const std::size_t key = head(s, s.key_heads, b, j, kv);
          const double ds = p[at(j)] * (dp[at(j)] - mean) * scale;
          for (std::int64_t c = 0; c < s.dims; ++c) {
            g.dq[query + at(c)] += ds * k[key + at(c)];
            g.dk[key + at(c)] += ds * q[query + at(c)];
          }
          for (std::int64_t c = 0; c < width; ++c)
            g.dv[value_head(s, s.key_heads, b, j, kv) + at(c)] +=
                p[at(j)] * factor(mask, b, h, t, j) * dout[result + at(c)];
        }
      }
  return g;
}

CrossEntropyOut cross_entropy(const Vec& h, const Vec& w, const std::vector<std::int32_t>& targets,
                              std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t vocab,
                              double scale) {
  CrossEntropyOut result;
  result.dh.resize(at(m * k));
  result.dw.resize(at(n * k));
  for (std::int64_t i = 0; i < m; ++i) {
    const std::int64_t target = targets[at(i)];
    if (target < 0) continue;
    Vec logits(at(vocab));
    double max = -1e300, sum = 0.0;
    for (std::int64_t j = 0; j < vocab; ++j) {
      logits[at(j)] = dot(h, at(i * k), w, at(j * k), k);
      max = std::max(max, logits[at(j)]);
    }
    for (const double logit : logits) sum += std::exp(logit - max);
    const double lse = max + std::log(sum);
    result.loss += lse - logits[at(target)];
    ++result.count;
    for (std::int64_t j = 0; j < vocab; ++j) {
      const double d = scale * (std::exp(logits[at(j)] - lse) - (j == target ? 1.0 : 0.0));
      for (std::int64_t l = 0; l < k; ++l) {
        result.dh[at(i * k + l)] += d * w[at(j * k + l)];
        result.dw[at(j * k + l)] += d * h[at(i * k + l)];
      }
    }
  }
  return result;
}

void adamw(const AdamW& a, Vec& w, const Vec& grad, Vec& m, Vec& v) {
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double g = grad[i] * a.grad_scale;
    m[i] = a.beta1 * m[i] + (1.0 - a.beta1) * g;
    v[i] = a.beta2 * v[i] + (1.0 - a.beta2) * g * g;
    const double first = m[i] / (1.0 - std::pow(a.beta1, a.step));
    const double second = v[i] / (1.0 - std::pow(a.beta2, a.step));
    w[i] -= a.lr * (first / (std::sqrt(second) + a.eps) + a.weight_decay * w[i]);
  }
}

}  // namespace sortie::trainer::reference
