// DeepSeek-V3 in f64, written out: latent attention, router with bias and groups, shared experts,
// sequence-wise balance loss, multi-token prediction. Computes one scalar at a time, for tiny
// shapes.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "common/config/schema.h"
#include "tests/trainer/models/scalar.h"

namespace sortie::trainer::reference {

/// Values by the names of the trainer's parameters, row-major.
using Weights = std::map<std::string, std::vector<double>>;

struct DeepseekBatch {
  std::int64_t sequences = 0, length = 0;
  std::vector<std::int32_t> tokens, targets;  // -100: not counted
  std::vector<std::int32_t> document_start;   // empty: one document each
};

struct DeepseekResult {
  double loss = 0.0;                        // sum over targets
  double mtp_loss = 0.0;                    // coefficient / depths * sum over depths and targets
  double balance = 0.0;                     // coefficient * sequence balance, summed over mixtures
  std::vector<std::vector<double>> counts;  // rows per expert and mixture
  Weights gradients;                        // of `objective`
};

/// objective = grad_scale * (loss + mtp_loss) + balance_scale * balance
DeepseekResult deepseek(const config::ModelConfig& config, const Weights& weights,
                        const DeepseekBatch& batch, double grad_scale, double balance_scale);

}  // namespace sortie::trainer::reference
