// Finds and checks committed checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/storage/work_progress.h"

namespace sortie::trainer {

inline constexpr std::string_view kManifestFile = "manifest.json";
inline constexpr std::string_view kCommitFile = "COMMIT";
/// The folder in save_dir that has the checkpoint of the lowest validation loss. It has the whole
/// state, as any other.
inline constexpr const char* kBestFolder = "best";

/// ".old-step-00001200": a checkpoint that another one of the same step is replacing, on a file
/// system that cannot exchange folders (store.h). It counts as long as there is no "step-00001200".
inline constexpr std::string_view kAsidePrefix = ".old-";

/// "site-rome": the folder in save_dir of a site of a run over several sites.
inline constexpr std::string_view kSiteFolderPrefix = "site-";

/// The folder in save_dir for damaged checkpoints.
inline constexpr const char* kQuarantineFolder = "quarantine";

/// "step-00001200".
std::string checkpoint_name(std::int64_t step);
/// Returns the text of COMMIT for a manifest with that hash.
std::string commit_text(std::string_view manifest_sha256);

/// How much of a checkpoint to read when checking it.
enum class CheckDepth {
  sizes,   // COMMIT, the manifest's hash, the shards' sizes
  hashes,  // also every byte of the shards, and their headers against the manifest
  files,   // also every byte of the other files: those of the tokenizer may be edited by hand
};

/// Checks a checkpoint and returns its manifest. ErrorCode::checkpoint with what is wrong;
/// ErrorCode::interrupted soon after a stop request. `progress` counts bytes that were compared
/// with their hashes.
Result<Manifest> check_checkpoint(const std::filesystem::path& folder, CheckDepth depth,
                                  const std::stop_token& stop = {},
                                  const OnProgress& progress = {});

struct CheckpointEntry {
  std::filesystem::path folder{};
  std::int64_t step = 0;
  std::optional<Manifest> manifest{};  // absent if the checkpoint is broken
  std::string problem{};               // why it is broken
  bool best = false;                   // in kBestFolder of the save folder
};

/// Lists every "step-N" folder of a save folder, or what counts in its place, newest step first.
Result<std::vector<CheckpointEntry>> list_checkpoints(const std::filesystem::path& save_dir,
                                                      CheckDepth depth,
                                                      const OnProgress& progress = {});

/// The folders "site-NAME" of a save folder in which sites have saved checkpoints, by name.
std::vector<std::filesystem::path> site_folders(const std::filesystem::path& save_dir);
/// For an error because a folder has no checkpoint: "; it has those of sites: name FOLDER ...";
/// empty if it has none of sites.
std::string site_folders_hint(const std::filesystem::path& save_dir);

/// Call before creating a separate checkpoint, such as an import or merged weights: it would
/// replace one of a run, or be among those of a run, which could not resume then. ErrorCode::usage
/// if the folder has a checkpoint, good or broken, or is one. A folder that does not exist has
/// none.
Result<> check_has_no_checkpoint(const std::filesystem::path& folder);

struct LatestCheckpoint {
  std::optional<CheckpointEntry> entry{};  // absent: no usable checkpoint
  std::vector<std::string> skipped{};      // newer ones that are not used, and why; one line each
};

/// Finds the newest checkpoint that passes the check and that no rollback has abandoned; a suspect
/// one only if there is no other. The one in kBestFolder counts too, unless it is of another run
/// than those of the save folder; of the same step, that of the save folder is used. An absent or
/// empty save folder has none. Reads only what is necessary, newest first.
Result<LatestCheckpoint> find_latest(const std::filesystem::path& save_dir,
                                     CheckDepth depth = CheckDepth::sizes,
                                     const OnProgress& progress = {});

}  // namespace sortie::trainer
