// The events of a training run: what a rank writes to the socket SORTIE_SOCKET, one JSON object a
// line, {"type": "step", ...}. sortie-train writes them, the launcher reads them; this file is the
// vocabulary of both. A program of a user's own may write the same ones: README.md has the table.
//
// Members that are missing or of another type keep the value that they have here. A number that is
// not known is NaN, in JSON null.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>

namespace sortie::training {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Bytes by what they hold; "total" is their sum.
using MemoryParts = std::map<std::string, std::int64_t>;

/// StartEvent::resumed_from of a run that goes on from the memory of its hosts.
inline constexpr const char* kFromMemory = "memory";

/// Once, before the first step.
struct StartEvent {
  static constexpr const char* kType = "start";
  std::string architecture, precision, isa, cpu;
  std::string gpu;  // that a rank computes on; empty = on the CPU
  std::int64_t parameters = 0;
  double flops_per_token = kUnknown;
  std::int64_t threads = 0, world_size = 0;
  std::int64_t global_batch_size = 0, gradient_accumulation_steps = 0, sequence_length = 0;
  std::int64_t step = 0;        // steps done before this run
  std::int64_t steps = 0;       // that the run is to reach
  std::string save_dir;         // where checkpoints go; empty = none are written
  std::string resumed_from;     // the checkpoint whose state was loaded, or kFromMemory; empty = a
                                // fresh start
  std::string first_run;        // id of the run that began at step 0; empty = not known
  double best_loss = kUnknown;  // lowest validation loss of earlier runs
  std::int64_t best_step = 0;   // where that was
  MemoryParts planned_memory;   // of a rank
};

/// A step of the optimizer, every logger.log_interval steps.
struct StepEvent {
  static constexpr const char* kType = "step";
  std::int64_t step = 0;                // counts from 1
  std::int64_t steps = 0;               // that the run is to reach
  double loss = kUnknown;               // mean over the tokens of the batch, in nats
  double lr = kUnknown;                 // learning rate
  double grad_norm = kUnknown;          // before clipping
  double step_ms = kUnknown;            // this step alone, in milliseconds
  double data_wait_ms = kUnknown;       // of it, how long rank 0 waited for samples
  double tokens_per_s = kUnknown;       // this step alone
  double flops = kUnknown;              // floating-point operations per second, this step alone
  double mean_tokens_per_s = kUnknown;  // smoothed; time in validation and saving counts
  double eta_s = kUnknown;              // seconds to the end; validation and saving included
  bool skipped = false;                 // no update: gradients were not finite, or an outlier
  std::int64_t consumed_tokens = 0;     // since step 0
  std::optional<double> balance_loss, mtp_loss;  // of routers; of multi-token prediction
  std::optional<double>
      dropped_choices;  // share of the routers' choices, where experts have a capacity
  std::optional<std::int64_t> batch_size;  // sequences, while it ramps up
};

/// A validation.
struct EvalEvent {
  static constexpr const char* kType = "eval";
  std::int64_t step = 0;        // steps done; 0 = before the first
  double loss = kUnknown;       // mean over the tokens, in nats
  double seconds = kUnknown;    // that it took
  double best_loss = kUnknown;  // lowest so far, this one and earlier runs included
  std::int64_t best_step = 0;   // where that was
  /// By name, where there are several validation sets; `loss` is their mean. In JSON "loss/NAME".
  std::map<std::string, double> sets{};
};

/// A checkpoint that is committed: that may be some steps after the one that it is of.
struct CheckpointEvent {
  static constexpr const char* kType = "checkpoint";
  std::int64_t step = 0;
  std::string path;  // its folder, as rank 0's host names it
  std::int64_t bytes = 0;
  double seconds = kUnknown;        // from its state to the commit
  double stall_seconds = kUnknown;  // of them, training stood still
  bool best = false;  // of the series of the lowest validation loss, not of the regular one
};

/// A checkpoint in the memory of the hosts is whole: the next attempt loads it where the disk has
/// nothing newer.
struct MemoryCheckpointEvent {
  static constexpr const char* kType = "memory_checkpoint";
  std::int64_t step = 0;
  std::int64_t bytes = 0;           // that rank 0 has copied
  double stall_seconds = kUnknown;  // training stood still for it
};

/// The run has gone back to an earlier checkpoint: the steps after `to` are taken again.
struct RollbackEvent {
  static constexpr const char* kType = "rollback";
  std::int64_t from = 0;             // the step after which it went back
  std::int64_t to = 0;               // the step of the checkpoint
  std::int64_t skipped_samples = 0;  // left out from there on; 0 = the same samples again
  std::string reason;
  std::string path;  // of the checkpoint
};

/// A round of training over several sites is in the outer weights of this one; of plain steps, one
/// every logger.log_interval.
struct RoundEvent {
  static constexpr const char* kType = "round";
  std::int64_t round = 0;
  std::int64_t step = 0;                     // of the schedule, after it
  std::int64_t epoch = 0;                    // of its last exchange
  std::int64_t sites = 0, contributors = 0;  // that exchanged; of them, with a change of their own
  std::int64_t aborted = 0;                  // exchanges before it that were called off
  // Of rank 0's part of the model, all fragments:
  std::int64_t bytes_sent = 0, bytes_received = 0;  // on the wire, with headers
  std::int64_t payload_bytes = 0;                   // of messages, both ways
  double seconds = kUnknown;                        // from its work to its end
  double exchange_seconds = kUnknown;  // of exchanges that counted, training beside them or not
  double wait_seconds = kUnknown;      // training stood still
  double utilisation = kUnknown;       // share of the time that was spent in inner steps, 0 to 1
  double codec_db = kUnknown;          // change to the error of its encoding, decibels
};

/// A rank or its host has done something that it must not: evidence against the host.
struct FaultEvent {
  static constexpr const char* kType = "fault";
  std::int64_t step = 0;
  std::int64_t rank = 0;
  std::string host;
  std::string what;  // "replica_mismatch"
};

/// Anything that a person should read.
struct NoteEvent {
  static constexpr const char* kType = "note";
  std::string text;
};

/// A trace of the profiler of one rank. The trace itself travels in `events` (Chrome's trace
/// format), in parts that the launcher puts into one file; or the rank has written it to `path`.
struct ProfileEvent {
  static constexpr const char* kType = "profile";
  std::int64_t rank = 0;
  std::string host;
  std::string path;  // a file on that host; empty = it came in `events`
};

/// Once, after the last step.
struct DoneEvent {
  static constexpr const char* kType = "done";
  std::int64_t step = 0, steps = 0;
  double loss = kUnknown;              // of the last step; not known when there was none
  double validation_loss = kUnknown;   // after the last step, if it was validated
  double seconds = kUnknown;           // in steps, of this run
  std::int64_t peak_memory_bytes = 0;  // of rank 0
  MemoryParts memory, planned_memory;
  std::int64_t events_dropped = 0;  // that the runner did not take in time
};

using Event =
    std::variant<StartEvent, StepEvent, EvalEvent, CheckpointEvent, MemoryCheckpointEvent,
                 RollbackEvent, RoundEvent, FaultEvent, NoteEvent, ProfileEvent, DoneEvent>;

nlohmann::json to_json(const Event& event);

/// Nothing for a type that is none of these. Safe on any JSON.
std::optional<Event> read_event(const nlohmann::json& json);

/// One line for a person: "step    100/2000  loss  2.3456 ...". Text is as the event has it:
/// whoever shows it makes it printable.
std::string event_line(const Event& event);

}  // namespace sortie::training
