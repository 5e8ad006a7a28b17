// Ranks the possible layouts of a training on given hosts by predicted step time.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Rates of machines and links, as measured by `sortie-train bench`.
struct MeasuredRates {
  double flop_s = 0.0;     // matrix products of one rank
  double host_byte_s = 0;  // sent by a rank within its host, while all ranks send
  double link_byte_s = 0;  // sent by a host to other hosts
  std::string precision;   // "bf16"; empty: the first in the trainer's answer
  struct Pass {
    std::int64_t micro_batch_size = 0;
    double flop_s = 0.0;  // forward and backward passes of the model on one rank
  };
  std::vector<Pass> passes = {};  // ascending by size; empty: use flop_s
  double beside_s = 0.0;          // compute time lost per byte that a rank sends
  double update_s = 0.0;          // per parameter and step, of one rank
};

/// Returns the operations per second of passes with `micro_batch_size` sequences: interpolated over
/// the logarithm of the measured sizes, constant beyond them; flop_s if no passes were measured.
double flop_s_of(const MeasuredRates& rates, std::int64_t micro_batch_size);
/// Parses measurement reports, one JSON object per line. `where` begins messages. Values in no
/// report remain 0. Of several links, and of ranks measured together, the slowest counts.
/// ErrorCode::usage for a line that is no report.
Result<MeasuredRates> parse_rates(const std::string& where, const std::string& text);
/// ErrorCode::usage if a rate is unknown that layouts on these hosts need; the message says how to
/// provide it. A single slot per host needs no rate within hosts, and a single host none between
/// hosts.
Result<> check_rates(const MeasuredRates& rates, const std::vector<config::HostSlots>& hosts);

struct Suggestion {
  std::int64_t tensor = 1, pipeline = 1, interleave = 1, context = 1, experts = 1;
  bool sequence = false, zero_bubble = false;
  std::string sharding = "none";
  std::int64_t micro_batch_size = 1, accumulation = 1;
  std::int64_t replicas = 1;
  // Of the rank that needs most memory:
  std::int64_t memory_bytes = 0;      // on its host and GPU together
  std::int64_t gpu_memory_bytes = 0;  // on its GPU; 0: it uses none
  // Seconds per step:
  double compute = 0.0;  // computation, including the pipeline bubble
  double waits = 0.0;    // for communication that is not overlapped
  double seconds() const { return compute + waits; }
};

struct Suggestions {
  std::vector<Suggestion> best;       // fastest first, at most ten
  std::size_t legal = 0;              // layouts allowed by the rules, counting micro-batch sizes
  std::size_t too_large = 0;          // of these, layouts that exceed the memory of a host
  std::size_t too_large_for_gpu = 0;  // of the others, layouts that exceed the memory of a GPU
  bool gpu_memory_unknown = false;    // it is unknown which layouts exceed GPUs
  std::string precision;
};

/// Memory given by the user, in bytes. 0: unknown; for hosts, the plan's value is then used if
/// there is one.
struct KnownMemory {
  std::uint64_t host = 0;  // per host
  std::uint64_t gpu = 0;   // per GPU of a rank, if the job runs on GPUs
};

/// Returns the legal layouts of `job` on `hosts` with its global batch. Varies tensor parallelism
/// within hosts, pipeline stages, interleaving, schedule, sharding and micro-batches of 1, 2, 4 ...
/// sequences; context and expert parallelism are those of the job or none. A layout must fit the
/// hosts and, with trainer.device = "cuda", the GPUs, by the trainer's count. Calls
/// facts.ask_trainer for each layout (some tenths of a second); before each, calls on_tried with
/// the number of layouts tried so far and the total. Step times are those of predict_step().
/// ErrorCode::config: the job is no training, its batch is unknown, or no layout is legal.
/// ErrorCode::unsupported: there is no trainer.
Result<Suggestions> suggest_layouts(
    const config::JobConfig& job, const std::vector<config::HostSlots>& hosts,
    const LauncherFacts& facts, const MeasuredRates& rates, KnownMemory known,
    const std::function<void(std::size_t tried, std::size_t all)>& on_tried = {});

/// As a table.
std::string suggestions_text(const Suggestions& suggestions);
nlohmann::ordered_json suggestions_json(const Suggestions& suggestions);

}  // namespace sortie::launcher
