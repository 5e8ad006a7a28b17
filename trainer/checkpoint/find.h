// Finding and checking committed checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/checkpoint/manifest.h"

namespace sortie::trainer {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kCommitFile = "COMMIT";
/// Where in save_dir the checkpoint of the lowest validation loss is.
inline constexpr const char* kBestFolder = "best";

/// ".old-step-00001200": a checkpoint whose place another one of the step is taking, where the file
/// system can not exchange them (store.h). It counts as long as no "step-00001200" is there.
inline constexpr std::string_view kAsidePrefix = ".old-";

/// Where in save_dir damaged checkpoints go.
inline constexpr const char* kQuarantineFolder = "quarantine";

/// "step-00001200".
std::string checkpoint_name(std::int64_t step);
/// The text of COMMIT for a manifest of that hash.
std::string commit_text(std::string_view manifest_sha256);

/// How much of a checkpoint to read for a check.
enum class CheckDepth {
  sizes,   // COMMIT, the manifest's hash, the shards' sizes
  hashes,  // also every byte of the shards, and their headers against the manifest
};

/// Fails with ErrorCode::checkpoint and what is wrong; with ErrorCode::interrupted soon after a
/// stop was requested.
Result<Manifest> check_checkpoint(const std::filesystem::path& folder, CheckDepth depth,
                                  const std::stop_token& stop = {});

struct CheckpointEntry {
  std::filesystem::path folder{};
  std::int64_t step = 0;
  std::optional<Manifest> manifest{};  // absent when broken
  std::string problem{};               // why it is
};

/// Every "step-N" folder of a save folder, or what counts in its place, newest step first.
Result<std::vector<CheckpointEntry>> list_checkpoints(const std::filesystem::path& save_dir,
                                                      CheckDepth depth);

/// For what makes a checkpoint of its own, an import or merged weights: it would replace one of a
/// run, or stand among those of a run, which could not resume then. ErrorCode::usage where the
/// folder has a checkpoint, good or broken, or is one. A folder that is not there has none.
Result<> check_has_no_checkpoint(const std::filesystem::path& folder);

struct LatestCheckpoint {
  std::optional<CheckpointEntry> entry{};  // absent: nothing usable there
  std::vector<std::string> skipped{};      // newer ones that are not used, one line each
};

/// The newest one that passes the check and that no rollback has left behind; a suspect one only
/// where there is no other. An absent or empty save folder has none. Reads no more than it must:
/// newest first.
Result<LatestCheckpoint> find_latest(const std::filesystem::path& save_dir,
                                     CheckDepth depth = CheckDepth::sizes);

}  // namespace sortie::trainer
