// The events of a training run: JSON objects, one per line, that a rank writes to the socket
// SORTIE_SOCKET, like {"type": "step", ...}. sortie-train writes them and the launcher reads them;
// both use this file. Other programs may write the same events: README.md has the table.
//
// A member that is missing or has another type keeps its default below. An unknown number is NaN
// here and null in JSON.
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

/// Bytes by purpose; "total" is their sum.
using MemoryParts = std::map<std::string, std::int64_t>;

/// StartEvent::resumed_from of a run that resumes from the memory of its hosts.
inline constexpr const char* kFromMemory = "memory";

/// Once, before the first step.
struct StartEvent {
  static constexpr const char* kType = "start";
  std::string architecture, precision, isa, cpu;
  std::string gpu;  // GPU that the ranks compute on; empty = the CPU
  std::int64_t parameters = 0;
  double flops_per_token = kUnknown;
  std::int64_t threads = 0, world_size = 0;
  std::int64_t global_batch_size = 0, gradient_accumulation_steps = 0, sequence_length = 0;
  std::int64_t step = 0;        // steps done before this run
  std::int64_t steps = 0;       // last step of the run
  std::string save_dir;         // folder of checkpoints; empty = none are written
  std::string resumed_from;     // the checkpoint whose state was loaded, or kFromMemory; empty = a
                                // fresh start
  std::string first_run;        // id of the run that began at step 0; empty = unknown
  double best_loss = kUnknown;  // lowest validation loss of earlier runs
  std::int64_t best_step = 0;   // step of that validation
  MemoryParts planned_memory;   // of one rank
};

/// A step of the optimizer, every logger.log_interval steps.
struct StepEvent {
  static constexpr const char* kType = "step";
  std::int64_t step = 0;                // from 1
  std::int64_t steps = 0;               // last step of the run
  double loss = kUnknown;               // mean over the tokens of the batch, in nats
  double lr = kUnknown;                 // learning rate
  double grad_norm = kUnknown;          // before clipping
  double step_ms = kUnknown;            // this step alone, in milliseconds
  double data_wait_ms = kUnknown;       // part of step_ms in which rank 0 waited for samples
  double tokens_per_s = kUnknown;       // this step alone
  double flops = kUnknown;              // floating-point operations per second, this step alone
  double mean_tokens_per_s = kUnknown;  // smoothed; includes the time of validation and saving
  double eta_s = kUnknown;              // seconds to the end, with validation and saving
  bool skipped = false;                 // no update: gradients were not finite, or an outlier
  std::int64_t consumed_tokens = 0;     // since step 0
  std::optional<double> balance_loss, mtp_loss;  // of routers; of multi-token prediction
  std::optional<double> dropped_choices;   // share of the routers' choices that experts dropped, if
                                           // they have a capacity
  std::optional<std::int64_t> batch_size;  // sequences, during the batch ramp-up
};

/// A validation.
struct EvalEvent {
  static constexpr const char* kType = "eval";
  std::int64_t step = 0;        // steps done; 0 = before the first
  double loss = kUnknown;       // mean over the tokens, in nats
  double seconds = kUnknown;    // duration
  double best_loss = kUnknown;  // lowest so far, including this one and earlier runs
  std::int64_t best_step = 0;   // step of that validation
  /// Loss by name if there are several validation sets; `loss` is their mean. In JSON "loss/NAME".
  std::map<std::string, double> sets{};
};

/// A checkpoint was committed, possibly some steps after the step that it contains.
struct CheckpointEvent {
  static constexpr const char* kType = "checkpoint";
  std::int64_t step = 0;
  std::string path;  // its folder, on rank 0's host
  std::int64_t bytes = 0;
  double seconds = kUnknown;        // from the capture of its state to the commit
  double stall_seconds = kUnknown;  // part of it in which training was blocked
  bool best = false;  // it has the lowest validation loss and is not one of the regular checkpoints
  bool suspect = false;  // saved soon after a spike of the loss: a start prefers any other one
};

/// A checkpoint in the memory of the hosts is complete. The next attempt loads it if the disk has
/// none that is newer.
struct MemoryCheckpointEvent {
  static constexpr const char* kType = "memory_checkpoint";
  std::int64_t step = 0;
  std::int64_t bytes = 0;           // copied by rank 0
  double stall_seconds = kUnknown;  // time in which training was blocked
};

/// The run was rolled back to an earlier checkpoint and repeats the steps after `to`.
struct RollbackEvent {
  static constexpr const char* kType = "rollback";
  std::int64_t from = 0;             // last step before the rollback
  std::int64_t to = 0;               // step of the checkpoint
  std::int64_t skipped_samples = 0;  // samples left out from there on; 0 = the same samples again
  std::string reason;
  std::string path;  // of the checkpoint
};

/// A round of training over several sites was applied to the outer weights of this site. For plain
/// steps, one event every logger.log_interval steps.
struct RoundEvent {
  static constexpr const char* kType = "round";
  std::int64_t round = 0;
  std::int64_t step = 0;                     // of the schedule, after the round
  std::int64_t epoch = 0;                    // of its last exchange
  std::int64_t sites = 0, contributors = 0;  // that took part; that contributed a change
  std::int64_t aborted = 0;                  // exchanges that were aborted before it
  // Of rank 0's part of the model, all fragments:
  std::int64_t bytes_sent = 0, bytes_received = 0;  // on the wire, with headers
  std::int64_t payload_bytes = 0;                   // of messages, in both directions
  double seconds = kUnknown;                        // from the start of its work to its end
  double exchange_seconds = kUnknown;  // in successful exchanges, concurrent with training or not
  double wait_seconds = kUnknown;      // time in which training was blocked
  double utilisation = kUnknown;       // share of the time spent in inner steps, 0 to 1
  double codec_db = kUnknown;          // ratio of the change to its encoding error, in decibels
};

/// A rank or its host has misbehaved: evidence against the host.
struct FaultEvent {
  static constexpr const char* kType = "fault";
  std::int64_t step = 0;
  std::int64_t rank = 0;
  std::string host;
  std::string what;  // "replica_mismatch"
};

/// A text for the user.
struct NoteEvent {
  static constexpr const char* kType = "note";
  std::string text;
};

/// A profiler trace of one rank. Either `path` names its file, or the trace is sent in a JSON
/// member `events` (Chrome's trace format), in parts that the launcher merges into one file.
struct ProfileEvent {
  static constexpr const char* kType = "profile";
  std::int64_t rank = 0;
  std::string host;
  std::string path;  // a file on that host; empty = the trace is in `events`
};

/// Once, after the last step.
struct DoneEvent {
  static constexpr const char* kType = "done";
  std::int64_t step = 0, steps = 0;
  double loss = kUnknown;              // of the last step; unknown if there was none
  double validation_loss = kUnknown;   // after the last step, if it was validated
  double seconds = kUnknown;           // spent in steps of this run
  std::int64_t peak_memory_bytes = 0;  // of rank 0
  MemoryParts memory, planned_memory;
  std::int64_t events_dropped = 0;  // because the runner did not accept them in time
};

using Event =
    std::variant<StartEvent, StepEvent, EvalEvent, CheckpointEvent, MemoryCheckpointEvent,
                 RollbackEvent, RoundEvent, FaultEvent, NoteEvent, ProfileEvent, DoneEvent>;

nlohmann::json to_json(const Event& event);

/// Returns nullopt for an unknown type. Safe for any JSON.
std::optional<Event> read_event(const nlohmann::json& json);

/// One line for the user: "step    100/2000  loss  2.3456 ...". It contains the event's text
/// unchanged: pass it through printable() before showing it.
std::string event_line(const Event& event);

}  // namespace sortie::training
