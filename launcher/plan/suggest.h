// Which layouts a training could have on the hosts at hand, by how long a step of each would take.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// What machines and links give, as `sortie-train bench` measures it.
struct MeasuredRates {
  double flop_s = 0.0;     // of products, of one rank
  double host_byte_s = 0;  // that a rank sends to ranks of its host while all do
  double link_byte_s = 0;  // that a host sends to other hosts
  std::string precision;   // of the products: "bf16"; empty: the first that the trainer counts
  struct Pass {
    std::int64_t micro_batch_size = 0;
    double flop_s = 0.0;  // of the model's passes, forward and backward, of one rank
  };
  std::vector<Pass> passes = {};  // ascending by size; empty: flop_s counts
  double beside_s = 0.0;          // that a byte which a rank sends costs it while it computes
  double update_s = 0.0;          // of a parameter in a step, of one rank
};

/// Operations per second of passes of so many sequences: between the measured sizes by their
/// logarithm, beyond them as at the nearest; without passes flop_s.
double flop_s_of(const MeasuredRates& rates, std::int64_t micro_batch_size);
/// From reports of measurements, a JSON object a line; `where` opens messages. What no report has
/// stays 0; of links, and of ranks that were measured at the same time, the slowest counts.
/// ErrorCode::usage for a line that is none.
Result<MeasuredRates> parse_rates(const std::string& where, const std::string& text);
/// ErrorCode::usage for a rate that is not known and that layouts on these hosts need: says how to
/// give it. Within hosts of one slot, and between hosts where there is one, nothing is sent.
Result<> check_rates(const MeasuredRates& rates, const std::vector<config::HostSlots>& hosts);

struct Suggestion {
  std::int64_t tensor = 1, pipeline = 1, interleave = 1, context = 1, experts = 1;
  bool sequence = false, zero_bubble = false;
  std::string sharding = "none";
  std::int64_t micro_batch_size = 1, accumulation = 1;
  std::int64_t replicas = 1;
  // Of the rank that takes the most.
  std::int64_t memory_bytes = 0;      // of its host and its GPU together
  std::int64_t gpu_memory_bytes = 0;  // of its GPU; 0: it computes on none
  // Seconds of a step.
  double compute = 0.0;  // products, and what a pipeline waits
  double waits = 0.0;    // for what ranks send each other and nothing hides
  double seconds() const { return compute + waits; }
};

struct Suggestions {
  std::vector<Suggestion> best;       // the fastest first, ten at most
  std::size_t legal = 0;              // layouts that the rules allow, with their batches
  std::size_t too_large = 0;          // of them, those whose ranks need more memory than a host has
  std::size_t too_large_for_gpu = 0;  // or, where the host has enough, than a GPU has
  bool gpu_memory_unknown = false;    // nobody could tell which do not fit GPUs
  std::string precision;
};

/// Bytes; 0: as far as facts and hosts say, which may be nothing, and of GPUs is nothing.
struct KnownMemory {
  std::uint64_t host = 0;  // of each host
  std::uint64_t gpu = 0;   // of each rank's GPU, where the job's device is one
};

/// The legal layouts of `job` on `hosts` with its global batch: tensor parallelism within hosts,
/// stages, runs of a stage, sharding, micro-batches of 1, 2, 4 ... sequences; of context and expert
/// parallelism what the job asks for, and none. A layout has to fit the hosts, and of a job with
/// trainer.device = "cuda" the GPUs, by the trainer's own count. Asks facts.ask_trainer for
/// each (some tenths of a second), after which on_tried says how many of all have been tried.
/// ErrorCode::config: the job is no training, or no layout is legal; ErrorCode::unsupported: nobody
/// to ask. Seconds of a step are those of
/// predict_step().
Result<Suggestions> suggest_layouts(
    const config::JobConfig& job, const std::vector<config::HostSlots>& hosts,
    const LauncherFacts& facts, const MeasuredRates& rates, KnownMemory known,
    const std::function<void(std::size_t tried, std::size_t all)>& on_tried = {});

/// A table for people.
std::string suggestions_text(const Suggestions& suggestions);
nlohmann::ordered_json suggestions_json(const Suggestions& suggestions);

}  // namespace sortie::launcher
