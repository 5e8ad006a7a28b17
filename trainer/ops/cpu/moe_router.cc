// Routers. Every row is independent of the others, and the order of all sums is fixed.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {
namespace {

std::int64_t checked_expert(std::int32_t expert, std::int64_t experts) {
  SORTIE_CHECK(expert >= 0 && expert < experts, "expert {} of {}", expert, experts);
  return expert;
}

constexpr std::int64_t kRouterGrain = 32;
constexpr float kSigmoidFloor = 1e-20f;  // keeps the sum of k scores from being zero

/// True if a ranks above b. NaN ranks above all numbers, so that it cannot be hidden by finite
/// choices.
bool above(float a, float b) {
  return a > b || (a != a && b == b);
}

/// out[0, k) = indices of the k largest of n values, best first; ties go to the lower index.
/// `taken` [n] is scratch memory.
void top_indices(const float* values, std::int64_t n, std::int64_t k, std::int32_t* out,
                 std::vector<char>& taken) {
  taken.assign(static_cast<std::size_t>(n), 0);
  for (std::int64_t j = 0; j < k; ++j) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < n; ++i)
      if (!taken[static_cast<std::size_t>(i)] && (best < 0 || above(values[i], values[best])))
        best = i;
    taken[static_cast<std::size_t>(best)] = 1;
    out[j] = static_cast<std::int32_t>(best);
  }
}

void softmax_row(const float* logits, float* p, std::int64_t n) {
  float max = logits[0];
  for (std::int64_t i = 1; i < n; ++i) max = logits[i] > max ? logits[i] : max;
  float sum = 0.0f;
  for (std::int64_t i = 0; i < n; ++i) {
    p[i] = std::exp(logits[i] - max);
    sum += p[i];
  }
  for (std::int64_t i = 0; i < n; ++i) p[i] /= sum;
}

/// Selects the experts of one row from its choices.
class Selector {
 public:
  explicit Selector(const RouterSpec& spec)
      : spec_(spec),
        size_(spec.experts / spec.groups),
        group_scores_(static_cast<std::size_t>(spec.groups)),
        kept_(static_cast<std::size_t>(spec.kept_groups)) {}

  /// Overwrites the choices of groups that are not kept.
  void select(float* choice, std::int32_t* out) {
    if (spec_.kept_groups < spec_.groups) mask_groups(choice);
    top_indices(choice, spec_.experts, spec_.top_k, out, taken_);
  }

 private:
  void mask_groups(float* choice) {
    std::int32_t best[2];
    for (std::int64_t g = 0; g < spec_.groups; ++g) {
      const float* group = choice + g * size_;
      const std::int64_t count = std::min<std::int64_t>(2, size_);
      top_indices(group, size_, count, best, taken_);
      float& score = group_scores_[static_cast<std::size_t>(g)];
      score = group[best[0]];
      if (count == 2) score += group[best[1]];
    }
    top_indices(group_scores_.data(), spec_.groups, spec_.kept_groups, kept_.data(), taken_);
    for (std::int64_t g = 0; g < spec_.groups; ++g)
      if (std::find(kept_.begin(), kept_.end(), g) == kept_.end())
        std::fill_n(choice + g * size_, size_, -std::numeric_limits<float>::infinity());
  }

  const RouterSpec& spec_;
  std::int64_t size_;
  std::vector<float> group_scores_;
  std::vector<std::int32_t> kept_;
  std::vector<char> taken_;
};

/// The sum of the chosen scores, by which the weights are divided.
float chosen_sum(const RouterSpec& spec, const float* scores, const std::int32_t* experts) {
  float sum = spec.score == RouterScore::sigmoid ? kSigmoidFloor : 0.0f;
  for (std::int64_t j = 0; j < spec.top_k; ++j) sum += scores[experts[j]];
  return sum;
}

}  // namespace

void CpuBackend::route_forward(ExecutionContext& context, const RouterSpec& spec,
                               const Tensor& logits, const Tensor& bias, const Tensor& replay,
                               Tensor& scores, Tensor& experts, Tensor& weights) {
  const std::int64_t n = spec.experts, k = spec.top_k;
  const float* added = bias.defined() ? bias.data<float>() : nullptr;
  parallel_ranges(context, logits.size(0), kRouterGrain, [&](std::int64_t begin, std::int64_t end) {
    Selector selector(spec);
    std::vector<float> choice(static_cast<std::size_t>(n));
    for (std::int64_t row = begin; row < end; ++row) {
      const float* in = logits.data<float>() + row * n;
      float* score = scores.data<float>() + row * n;
      std::int32_t* chosen = experts.data<std::int32_t>() + row * k;
      if (spec.score == RouterScore::softmax)
        softmax_row(in, score, n);
      else
        for (std::int64_t e = 0; e < n; ++e) score[e] = 1.0f / (1.0f + std::exp(-in[e]));
      if (replay.defined()) {
        for (std::int64_t j = 0; j < k; ++j) {
          chosen[j] = replay.data<std::int32_t>()[row * k + j];
          SORTIE_CHECK(chosen[j] >= 0 && chosen[j] < n, "expert {} of {}", chosen[j], n);
        }
      } else {
        for (std::int64_t e = 0; e < n; ++e)
          choice[static_cast<std::size_t>(e)] = score[e] + (added ? added[e] : 0.0f);
        selector.select(choice.data(), chosen);
      }
      const float factor =
          spec.normalize ? spec.scale / chosen_sum(spec, score, chosen) : spec.scale;
      for (std::int64_t j = 0; j < k; ++j)
        weights.data<float>()[row * k + j] = score[chosen[j]] * factor;
    }
  });
}

void CpuBackend::route_backward(ExecutionContext& context, const RouterSpec& spec,
                                const Tensor& scores, const Tensor& experts, const Tensor& dweights,
                                const Tensor& dscores, Tensor& dlogits) {
  const std::int64_t n = spec.experts, k = spec.top_k;
  parallel_ranges(context, scores.size(0), kRouterGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* score = scores.data<float>() + row * n;
      const std::int32_t* chosen = experts.data<std::int32_t>() + row * k;
      float* d = dlogits.data<float>() + row * n;  // gradient of the scores at first
      if (dscores.defined())
        std::memcpy(d, dscores.data<float>() + row * n, static_cast<std::size_t>(n) * 4);
      else
        std::fill_n(d, n, 0.0f);
      if (dweights.defined()) {
        const float* dw = dweights.data<float>() + row * k;
        if (spec.normalize) {
          // w_j = scale s_j / S:  ds_j = scale / S^2 (S dw_j - sum_i dw_i s_i), in differences:
          // one dominant score would otherwise cancel all digits
          const float sum = chosen_sum(spec, score, chosen);
          for (std::int64_t j = 0; j < k; ++j) {
            float along = spec.score == RouterScore::sigmoid ? dw[j] * kSigmoidFloor : 0.0f;
            for (std::int64_t i = 0; i < k; ++i) along += (dw[j] - dw[i]) * score[chosen[i]];
            d[chosen[j]] += spec.scale * (along / sum / sum);
          }
        } else {
          for (std::int64_t j = 0; j < k; ++j) d[chosen[j]] += spec.scale * dw[j];
        }
      }
      if (spec.score == RouterScore::sigmoid) {
        for (std::int64_t e = 0; e < n; ++e) d[e] *= score[e] * (1.0f - score[e]);
      } else {
        float along = 0.0f;
        for (std::int64_t e = 0; e < n; ++e) along += d[e] * score[e];
        for (std::int64_t e = 0; e < n; ++e) d[e] = score[e] * (d[e] - along);
      }
    }
  });
}

void CpuBackend::count_top_experts(ExecutionContext& context, const Tensor& scores,
                                   std::int64_t top_k, Tensor& counts) {
  const std::int64_t n = scores.size(1), length = scores.size(0) / counts.size(0);
  parallel_ranges(context, counts.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<char> taken;
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(top_k));
    for (std::int64_t sequence = begin; sequence < end; ++sequence) {
      float* count = counts.data<float>() + sequence * n;
      std::fill_n(count, n, 0.0f);
      for (std::int64_t t = 0; t < length; ++t) {
        const float* score = scores.data<float>() + (sequence * length + t) * n;
        top_indices(score, n, top_k, chosen.data(), taken);
        for (const std::int32_t e : chosen) count[e] += 1.0f;
      }
    }
  });
}

namespace {

/// E / (k T S) for S sequences of T tokens each: the factor of a count in the loss, before the mean
/// over tokens.
double balance_factor(const Tensor& scores, std::int64_t top_k) {
  return static_cast<double>(scores.size(1)) /
         (static_cast<double>(top_k) * static_cast<double>(scores.size(0)));
}

}  // namespace

void CpuBackend::sequence_balance(ExecutionContext&, const Tensor& scores, const Tensor& counts,
                                  std::int64_t top_k, double coefficient, Tensor& sum_of_losses) {
  const std::int64_t n = scores.size(1), length = scores.size(0) / counts.size(0);
  double loss = 0.0;
  for (std::int64_t row = 0; row < scores.size(0); ++row) {
    const float* score = scores.data<float>() + row * n;
    const float* count = counts.data<float>() + row / length * n;
    double sum = 0.0, along = 0.0;
    for (std::int64_t e = 0; e < n; ++e) {
      sum += static_cast<double>(score[e]);
      along += static_cast<double>(score[e]) * static_cast<double>(count[e]);
    }
    loss += along / sum;
  }
  *sum_of_losses.data<double>() +=
      coefficient * (loss * balance_factor(scores, top_k) / static_cast<double>(length));
}

void CpuBackend::sequence_balance_backward(ExecutionContext& context, const Tensor& scores,
                                           const Tensor& counts, std::int64_t top_k, float scale,
                                           Tensor& dscores) {
  const std::int64_t n = scores.size(1), length = scores.size(0) / counts.size(0);
  const auto factor = static_cast<float>(
      static_cast<double>(scale) * balance_factor(scores, top_k) / static_cast<double>(length));
  parallel_ranges(context, scores.size(0), kRouterGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* score = scores.data<float>() + row * n;
      const float* count = counts.data<float>() + row / length * n;
      float* d = dscores.data<float>() + row * n;
      float sum = 0.0f, along = 0.0f;
      for (std::int64_t e = 0; e < n; ++e) {
        sum += score[e];
        along += score[e] * count[e];
      }
      for (std::int64_t e = 0; e < n; ++e) d[e] += factor / sum * (count[e] - along / sum);
    }
  });
}

void CpuBackend::count_choices(ExecutionContext&, const Tensor& experts, Tensor& counts) {
  const auto* chosen = experts.data<std::int32_t>();
  double* count = counts.data<double>();
  std::fill_n(count, counts.elements(), 0.0);
  for (std::int64_t i = 0; i < experts.elements(); ++i)
    count[checked_expert(chosen[i], counts.elements())] += 1.0;
}

void CpuBackend::count_choices_of_parts(ExecutionContext&, const Tensor& experts, Tensor& counts) {
  const auto* chosen = experts.data<std::int32_t>();
  float* count = counts.data<float>();
  std::fill_n(count, counts.elements(), 0.0f);
  const std::int64_t length = experts.elements() / counts.size(0);
  for (std::int64_t part = 0; part < counts.size(0); ++part, count += counts.size(1))
    for (std::int64_t i = part * length; i < (part + 1) * length; ++i)
      count[checked_expert(chosen[i], counts.size(1))] += 1.0f;
}

void CpuBackend::limit_choices(ExecutionContext&, const Tensor& experts, std::int64_t expert_count,
                               const ChoiceLimit& limit, Tensor& kept, Tensor& dropped) {
  const auto* chosen = experts.data<std::int32_t>();
  auto* out = kept.data<std::int32_t>();
  std::vector<std::int64_t> taken(static_cast<std::size_t>(expert_count));
  const std::int64_t parts = limit.parts(), length = experts.elements() / limit.sequences / parts;
  const double* before = limit.before.defined() ? limit.before.data<double>() : nullptr;
  std::int64_t late = 0;
  for (std::int64_t piece = 0; piece < limit.sequences * parts; ++piece) {
    const std::int64_t at = (piece % parts * limit.sequences + piece / parts) * expert_count;
    for (std::size_t e = 0; e < taken.size(); ++e)
      taken[e] = before == nullptr
                     ? 0
                     : static_cast<std::int64_t>(before[at + static_cast<std::int64_t>(e)]);
    for (std::int64_t i = piece * length; i < (piece + 1) * length; ++i) {
      SORTIE_CHECK(chosen[i] >= 0 && chosen[i] < expert_count, "expert {} of {}", chosen[i],
                   expert_count);
      const bool takes = taken[static_cast<std::size_t>(chosen[i])]++ < limit.capacity;
      out[i] = takes ? chosen[i] : -1;
      late += takes ? 0 : 1;
    }
  }
  *dropped.data<double>() += static_cast<double>(late);
}

void CpuBackend::column_sums(ExecutionContext&, const Tensor& matrix, Tensor& sums) {
  const std::int64_t cols = matrix.size(1);
  std::vector<double> own(static_cast<std::size_t>(cols));
  const float* values = matrix.data<float>();
  for (std::int64_t row = 0; row < matrix.size(0); ++row)
    for (std::int64_t col = 0; col < cols; ++col)
      own[static_cast<std::size_t>(col)] += static_cast<double>(values[row * cols + col]);
  double* total = sums.data<double>();
  for (const double sum : own) *total++ += sum;
}

void CpuBackend::load_balance(ExecutionContext&, const Tensor& assigned, const Tensor& score_sums,
                              double rows, double coefficient, Tensor& loss) {
  const double* count = assigned.data<double>();
  const std::int64_t experts = assigned.elements();
  const double both = std::inner_product(count, count + experts, score_sums.data<double>(), 0.0);
  *loss.data<double>() += coefficient * (static_cast<double>(experts) * both / (rows * rows));
}

void CpuBackend::load_balance_backward(ExecutionContext&, const Tensor& assigned, double rows,
                                       float scale, Tensor& dscores) {
  const std::int64_t experts = assigned.elements();
  const double* count = assigned.data<double>();
  std::vector<float> slope;
  for (std::int64_t e = 0; e < experts; ++e)
    slope.push_back(static_cast<float>(static_cast<double>(scale) * static_cast<double>(experts) *
                                       count[e] / (rows * rows)));
  float* out = dscores.data<float>();
  for (std::int64_t row = 0; row < dscores.size(0); ++row)
    for (std::int64_t e = 0; e < experts; ++e)
      out[row * experts + e] += slope[static_cast<std::size_t>(e)];
}

void CpuBackend::update_router_bias(ExecutionContext&, const Tensor& gate, const Tensor& counts,
                                    float rate, Tensor& bias) {
  if (*gate.data<float>() == 0.0f) return;
  const std::int64_t experts = counts.elements();
  const double* count = counts.data<double>();
  const double mean = std::accumulate(count, count + experts, 0.0) / static_cast<double>(experts);
  float* values = bias.data<float>();
  for (std::int64_t e = 0; e < experts; ++e) {
    if (count[e] < mean) values[e] += rate;
    if (count[e] > mean) values[e] -= rate;
  }
}

}  // namespace sortie::trainer::ops
