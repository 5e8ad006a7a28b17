// Plain f64 forward and backward passes of the mixture-of-experts ops.
#pragma once

#include "tests/trainer/ops/reference.h"
#include "trainer/ops/moe_router.h"

namespace sortie::trainer::reference {

struct Routing {
  Vec scores;                         // [M, E]
  std::vector<std::int32_t> experts;  // [M, k]
  Vec weights;                        // [M, k]
};
/// bias and replay may be empty.
Routing route(const ops::RouterSpec& spec, const Vec& logits, const Vec& bias,
              const std::vector<std::int32_t>& replay, std::int64_t rows);
/// Gradient of the logits; dscores may be empty.
Vec route_backward(const ops::RouterSpec& spec, const Routing& routing, const Vec& dweights,
                   const Vec& dscores, std::int64_t rows);

/// [S, E]: how often an expert is among the top k of the scores, per sequence of `length` rows.
Vec top_counts(const Vec& scores, std::int64_t experts, std::int64_t top_k, std::int64_t rows,
               std::int64_t length);

double sequence_balance(const Vec& scores, const Vec& counts, std::int64_t experts,
                        std::int64_t top_k, std::int64_t rows, std::int64_t length);
Vec sequence_balance_backward(const Vec& scores, const Vec& counts, std::int64_t experts,
                              std::int64_t top_k, std::int64_t rows, std::int64_t length);

/// E * sum_e (sum of counts_e / rows) (sum of scores_e / rows); its gradient in every row.
double load_balance(const Vec& scores, const Vec& counts, std::int64_t experts, std::int64_t rows);
Vec load_balance_backward(const Vec& counts, std::int64_t experts, std::int64_t rows);

/// y_t = sum_j weights_tj * W_{experts_tj} x_t with W [E, n, c], x [M, c].
Vec mixture(const Vec& x, const Vec& w, const std::vector<std::int32_t>& experts,
            const Vec& weights, std::int64_t rows, std::int64_t top_k, std::int64_t n,
            std::int64_t c);
struct MixtureGradients {
  Vec dx, dw, dweights;
};
MixtureGradients mixture_backward(const Vec& dy, const Vec& x, const Vec& w,
                                  const std::vector<std::int32_t>& experts, const Vec& weights,
                                  std::int64_t rows, std::int64_t top_k, std::int64_t n,
                                  std::int64_t c);

}  // namespace sortie::trainer::reference
