// The cost of training a model, in the JSON form that `sortie-train plan --json` prints and
// `sortie plan` reads. Both use this file.
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
  std::string version;  // of the program that computed the cost
  std::string isa;      // "avx512_core_bf16", "gpu": the kernels whose memory is included
  std::string architecture;
  std::string preset;                  // empty = none
  std::int64_t parameters = 0;         // without padding
  std::int64_t active_parameters = 0;  // used by each token
  std::int64_t trained_parameters = 0;
  double flops_per_token = 0.0;
  std::int64_t threads = 0;  // per rank
  struct Memory {
    std::string precision;                                    // "bf16"
    std::vector<std::pair<std::string, std::int64_t>> parts;  // bytes by purpose
    std::int64_t total() const;
    std::int64_t part(std::string_view name) const;  // 0 if there is no such part
    /// Bytes in the memory of the host: all of them without a part "device" (a rank on the CPU).
    std::int64_t on_host() const;
  };
  /// Memory of a rank; several entries if the precision depends on the CPU that will train.
  std::vector<Memory> memory;

  /// Data that a rank sends in a step.
  struct Sent {
    std::string group;       // name of the group: "tensor", "pipeline", "replicas", "world" ...
    std::int64_t peer = -1;  // one rank of the group; -1 = all others, an equal part to each
    std::int64_t bytes = 0;
    bool operator==(const Sent&) const = default;
  };
  /// Use by one rank of a pipeline stage, with one precision.
  struct StageUse {
    std::string precision;
    std::int64_t memory_bytes = 0;
    std::vector<Sent> sent;
    bool operator==(const StageUse&) const = default;
  };
  /// By stage, with as many uses as `memory` has entries. Empty in the output of an older program.
  std::vector<std::vector<StageUse>> stages;
  std::string note;     // one line that the user must know; empty = none
  double bubble = 0.0;  // share of a step in which stages wait for each other
};

/// {"parameters": ..., "rank_memory_bytes": {"bf16": {"total": ..., "weights": ...}}, "stages":
/// [{"bf16": {"memory_bytes": ..., "sent": [{"group": "pipeline", "peer": 1, "bytes": ...}]}}]}
nlohmann::ordered_json to_json(const ModelCost& cost);
/// Fails with ErrorCode::protocol if the text is no such object. Safe for any text.
Result<ModelCost> parse_model_cost(std::string_view text);

/// "124,439,808 parameters, a token meets ..., ... are trained".
std::string parameters_text(const ModelCost& cost);
/// A table in MiB: one row per part, one column per precision.
std::string memory_table(const ModelCost& cost);
/// 1234567 as "1,234,567".
std::string with_commas(std::int64_t value);

}  // namespace sortie::training
