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
  std::string isa;      // "avx512_core_bf16", "gpu": the kernels whose memory is counted
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
    /// Of it what is memory of the host: of a rank on a GPU, which has a part "device", little.
    std::int64_t on_host() const;
  };
  /// Of a rank; several where the CPU that will train decides on the precision.
  std::vector<Memory> memory;

  /// What a rank sends in a step.
  struct Sent {
    std::string group;       // its name: "tensor", "pipeline", "replicas", "world" ...
    std::int64_t peer = -1;  // one rank of the group; -1: all others, each the same part
    std::int64_t bytes = 0;
    bool operator==(const Sent&) const = default;
  };
  /// A rank of a stage of the pipeline, with one precision.
  struct StageUse {
    std::string precision;
    std::int64_t memory_bytes = 0;
    std::vector<Sent> sent;
    bool operator==(const StageUse&) const = default;
  };
  /// By stage, as many uses as there are of `memory`. An answer of an older program has none.
  std::vector<std::vector<StageUse>> stages;
  std::string note;     // what a user has to know of it, one line; empty: nothing
  double bubble = 0.0;  // share of a step in which stages wait for each other
};

/// {"parameters": ..., "rank_memory_bytes": {"bf16": {"total": ..., "weights": ...}}, "stages":
/// [{"bf16": {"memory_bytes": ..., "sent": [{"group": "pipeline", "peer": 1, "bytes": ...}]}}]}
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
