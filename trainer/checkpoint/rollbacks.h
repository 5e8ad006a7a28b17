// Rollbacks: where a run went back to an earlier step, and which samples it left out since.
//
// A run that rolls back goes on from an earlier checkpoint with other samples, or with the same
// ones where a machine was at fault. What it did since that checkpoint is no part of it any more:
// its checkpoints of those steps are abandoned. Every manifest has the rollbacks before it; the
// file rollbacks.json of the save folder has all of them, from before training goes on. So a run
// that is killed at any moment takes the same course when it is started again.
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
  /// Samples between the end of step `to` and the first sample of the step after it: left out. 0:
  /// the same samples were taken again, as after a fault of a machine.
  std::int64_t skipped = 0;
  std::string reason{};  // for people
  bool operator==(const Rollback&) const = default;
};

/// Samples that are left out between two steps.
struct SkippedSamples {
  std::int64_t after_step = 0;
  std::int64_t samples = 0;
  bool operator==(const SkippedSamples&) const = default;
};

/// What the rollbacks of a run, in order, leave out of its data: by step, each step once.
std::vector<SkippedSamples> skipped_by(const std::vector<Rollback>& rollbacks);
/// Samples left out before the first one of `step`.
std::int64_t skipped_before(const std::vector<SkippedSamples>& skipped, std::int64_t step);

/// How many of the last rollbacks have come from no further than an earlier one: the run does not
/// get past a step.
std::int64_t rollbacks_in_a_row(const std::vector<Rollback>& rollbacks);

/// rollbacks.json of a save folder.
struct RollbackFile {
  std::string lineage{};
  std::vector<Rollback> rollbacks{};
};
inline constexpr const char* kRollbackFile = "rollbacks.json";

/// Nothing where there is none. ErrorCode::checkpoint where it can not be understood.
Result<std::optional<RollbackFile>> read_rollbacks(const std::filesystem::path& save_dir);
/// Replaces it; on the disk when this returns.
Result<> write_rollbacks(const std::filesystem::path& save_dir, const RollbackFile& file);

/// Whether the run of the file has gone back to before this checkpoint since it was saved.
bool is_abandoned(const Manifest& manifest, const std::optional<RollbackFile>& file);

/// The rollbacks of a run that goes on from this checkpoint.
std::vector<Rollback> rollbacks_from(const Manifest& manifest,
                                     const std::optional<RollbackFile>& file);

/// A JSON list, for manifests and from rank to rank.
std::string to_json_text(const std::vector<Rollback>& rollbacks);
Result<std::vector<Rollback>> parse_rollbacks(std::string_view text, std::string_view where);

}  // namespace sortie::trainer
