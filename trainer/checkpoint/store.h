// CheckpointStore: the folder of a job's checkpoints. Only rank 0 has one; the other ranks write
// their shard into the folder that rank 0 names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "trainer/checkpoint/manifest.h"

namespace sortie::trainer {

/// One at a time per folder, guarded by a lock file, so that no other run removes what this one is
/// writing. A save:
///
///   rank 0      folder = store.begin(step, bytes)        then a broadcast of the folder
///   every rank  info = write_shard(folder, rank, ranks, pieces)
///   rank 0      gathers the infos, store.commit(folder, manifest, infos), store.retain(step, keep)
///
/// Until commit returns the checkpoint does not exist: a crash leaves a ".tmp-" folder that the
/// next open or begin removes.
class CheckpointStore {
 public:
  /// Makes the folder where it is missing and removes what crashed saves left. Fails when another
  /// process has the store open.
  static Result<CheckpointStore> open(const std::filesystem::path& save_dir,
                                      std::string_view run_id);

  /// A fresh folder for the shards of a step. `expected_bytes` of all ranks must be free on the
  /// file system (with some to spare), else it fails at once rather than at the end.
  Result<std::filesystem::path> begin(std::int64_t step, std::uint64_t expected_bytes);

  /// Checks the shards' sizes and that they hold every tensor exactly once, writes manifest.json
  /// and COMMIT, renames the folder to "step-N" and gives its path. A checkpoint of the same step
  /// is replaced. `manifest` comes without shards and tensors.
  Result<std::filesystem::path> commit(const std::filesystem::path& folder, Manifest manifest,
                                       const std::vector<ShardInfo>& shards);

  /// Removes the folder of a save that failed.
  Result<> abandon(const std::filesystem::path& folder);

  /// Removes old checkpoints: of those up to `step`, which was just committed, the newest
  /// `keep_last` stay; 0 keeps all. Broken folders and later steps (a run goes on from an earlier
  /// step only when it passed those over as damaged) are neither counted nor touched.
  Result<> retain(std::int64_t step, std::int64_t keep_last);
  /// Removes all committed checkpoints but that of `step`.
  Result<> keep_only(std::int64_t step);

  /// Whether a save of `bytes` would work, as far as it can be known now: a folder and a file can
  /// be made and synced, and that much space is free.
  Result<> check_room(std::uint64_t bytes) const;

  const std::filesystem::path& save_dir() const { return save_dir_; }

 private:
  CheckpointStore(std::filesystem::path save_dir, Fd lock);
  Result<> remove_leftovers();
  Result<> discard(const std::filesystem::path& folder);

  std::filesystem::path save_dir_;
  Fd lock_;
};

}  // namespace sortie::trainer
