// Rollbacks: where a run has gone back to an earlier step, and which samples it has skipped since.
//
// A run that rolls back continues from an earlier checkpoint with other samples, or with the same
// ones if a machine was at fault. What it did after that checkpoint does not count any more: its
// checkpoints of those steps are abandoned. Every manifest has the rollbacks before it. The file
// rollbacks.json of the save folder has all of them, and is written before training continues. So a
// run that is killed at any moment takes the same course when it is restarted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

struct Manifest;

struct Rollback {
  std::int64_t from = 0;  // the step after which the run went back
  std::int64_t to = 0;    // the step that it went back to
  /// Samples between the end of step `to` and the first sample of the next step, which are skipped.
  /// 0: the same samples are used again, as after a fault of a machine.
  std::int64_t skipped = 0;
  std::string reason{};  // for messages
  bool operator==(const Rollback&) const = default;
};

/// Samples that are skipped after a step.
struct SkippedSamples {
  std::int64_t after_step = 0;
  std::int64_t samples = 0;
  bool operator==(const SkippedSamples&) const = default;
};

/// Returns which samples the rollbacks of a run, in order, skip: by step, each step once.
std::vector<SkippedSamples> skipped_by(const std::vector<Rollback>& rollbacks);
/// Returns how many samples are skipped before the first one of `step`.
std::int64_t skipped_before(const std::vector<SkippedSamples>& skipped, std::int64_t step);

/// Returns the number of rollbacks from the first one at the furthest step on: the run has not got
/// past that step.
std::int64_t rollbacks_in_a_row(const std::vector<Rollback>& rollbacks);

/// The contents of rollbacks.json of a save folder.
struct RollbackFile {
  std::string lineage{};
  std::vector<Rollback> rollbacks{};
};
inline constexpr const char* kRollbackFile = "rollbacks.json";

/// Reads the file; nullopt if there is none. ErrorCode::checkpoint if it cannot be parsed.
Result<std::optional<RollbackFile>> read_rollbacks(const std::filesystem::path& save_dir);
/// Replaces the file; durable when this returns.
Result<> write_rollbacks(const std::filesystem::path& save_dir, const RollbackFile& file);

/// Whether the run of the file has gone back to a step before this checkpoint since it was saved.
bool is_abandoned(const Manifest& manifest, const std::optional<RollbackFile>& file);

/// Returns the rollbacks of a run that continues from this checkpoint.
std::vector<Rollback> rollbacks_from(const Manifest& manifest,
                                     const std::optional<RollbackFile>& file);

/// Conversion to and from a JSON list, for manifests and to be sent from rank to rank.
std::string to_json_text(const std::vector<Rollback>& rollbacks);
Result<std::vector<Rollback>> parse_rollbacks(std::string_view text, std::string_view where);

}  // namespace sortie::trainer
