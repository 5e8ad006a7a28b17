// What a model costs to train: what `sortie-train plan --json` prints and `sortie plan` reads and
// shows. This file is the vocabulary of both.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace sortie::training {

struct ModelCost {
  std::string version;  // of the program that counted
  std::string isa;      // "avx512_core_bf16": the kernels whose memory is counted
  std::string architecture;
  std::string preset;                  // empty = none
  std::int64_t parameters = 0;         // without padding
  std::int64_t active_parameters = 0;  // of them, those that a token meets
  std::int64_t trained_parameters = 0;
  double flops_per_token = 0.0;
  std::int64_t threads = 0;  // of a rank
  struct Memory {
    std::string precision;                                    // "bf16"
    std::vector<std::pair<std::string, std::int64_t>> parts;  // bytes by what they hold
    std::int64_t total() const;
    std::int64_t part(std::string_view name) const;  // 0 where there is none
  };
  /// Of a rank; several where the CPU that will train decides on the precision.
  std::vector<Memory> memory;
};

/// {"parameters": ..., "rank_memory_bytes": {"bf16": {"total": ..., "weights": ...}}}
nlohmann::ordered_json to_json(const ModelCost& cost);
/// ErrorCode::protocol for text that is no such object, whatever it is.
Result<ModelCost> parse_model_cost(std::string_view text);

/// "124,439,808 parameters, a token meets ..., ... are trained".
std::string parameters_text(const ModelCost& cost);
/// A row for each part, a column for each precision, in MiB.
std::string memory_table(const ModelCost& cost);
/// 1234567 as "1,234,567".
std::string with_commas(std::int64_t value);

}  // namespace sortie::training
