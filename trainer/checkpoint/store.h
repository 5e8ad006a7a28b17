// CheckpointStore: the folder of a job's checkpoints. Only rank 0 has a store; the other ranks
// write their shard into the folder that rank 0 names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/ownership.h"

namespace sortie::trainer {

/// A folder has one owner at a time (ownership.h), so that no other run removes what this one is
/// writing, and no earlier attempt of a run commits something unknown to a later one. A save:
///
///   rank 0      folder = store.begin(step, bytes)        then a broadcast of the folder
///   every rank  info = write_shard(folder, rank, ranks, pieces)
///   rank 0      gathers the infos, store.commit(folder, manifest, infos), store.retain(step, keep)
///
/// The checkpoint does not exist until commit() has renamed the folder: a crash before that leaves
/// a ".tmp-" folder, which the next open() or begin() removes.
class CheckpointStore {
 public:
  /// Creates the folder if it is missing, claims it, and removes what crashed saves have left.
  /// Fails if another process has the store open, unless that is an earlier attempt of the same
  /// run.
  static Result<CheckpointStore> open(const std::filesystem::path& save_dir,
                                      const Claimant& claimant);
  /// Returns the store that another process of this attempt has opened, identified by its token:
  /// for a last save (begin_alone()) when that process is gone. Accesses no file.
  static CheckpointStore join(const std::filesystem::path& save_dir, const Claimant& claimant,
                              const std::string& token);

  /// Creates a new folder for the shards of a step. If the save folder or its `.lock` was removed
  /// since it was opened, makes and claims it again, with a warning; so does commit(). Fails at
  /// once, and not only at the end, if `expected_bytes` of all ranks, and some to spare, are not
  /// free on the file system.
  Result<std::filesystem::path> begin(std::int64_t step, std::uint64_t expected_bytes);
  /// The same for one of several processes of this attempt that cannot communicate any more: only
  /// the first one to call it for a step gets a folder, the others nullopt.
  Result<std::optional<std::filesystem::path>> begin_alone(std::int64_t step,
                                                           std::uint64_t expected_bytes);

  /// Checks the shards' sizes and that they contain every tensor exactly once, writes manifest.json
  /// and COMMIT, renames the folder to "step-N" and returns its path. Replaces a checkpoint of the
  /// same step. `manifest` is passed without shards, tensors and other files. ErrorCode::checkpoint
  /// if the folder has another owner by now.
  Result<std::filesystem::path> commit(const std::filesystem::path& folder, Manifest manifest,
                                       const std::vector<ShardInfo>& shards);

  /// Removes the folder of a save that failed.
  Result<> abandon(const std::filesystem::path& folder);

  /// Moves a damaged checkpoint to save_dir/quarantine/, where nothing is ever removed. Returns its
  /// new path.
  Result<std::filesystem::path> quarantine(const std::filesystem::path& folder) const;

  // If a checkpoint could not be removed, the following four remove the others and return the first
  // failure. What is left of it is under another name, and each open() and begin() tries again to
  // remove it.

  /// Removes old checkpoints. Of those up to `step`, which was just committed, it keeps the newest
  /// `keep_last`, the newest that is not suspect, and that of step `also`; keep_last = 0 keeps all.
  /// Broken folders and later steps are neither counted nor removed (a run continues from an
  /// earlier step only if it has skipped later ones as damaged).
  Result<> retain(std::int64_t step, std::int64_t keep_last, std::int64_t also = 0);
  /// Removes the checkpoints of later steps, broken ones too, because the run has gone back to this
  /// one.
  Result<> discard_after(std::int64_t step);
  /// Removes those that a rollback of the file's run has abandoned (rollbacks.h).
  Result<> discard_abandoned(const std::optional<RollbackFile>& file);
  /// Removes the other committed checkpoints of the run that has that of `step`, and those of
  /// versions that recorded no lineage.
  Result<> keep_only(std::int64_t step);

  /// Checks that a save of `bytes` is likely to succeed: creates and syncs a folder and a file, and
  /// compares the free space.
  Result<> check_room(std::uint64_t bytes) const;

  /// Whether this process may still commit here.
  Result<> check_owner() const { return ownership_.check(); }
  /// ErrorCode::checkpoint if another process owns the folder by now.
  Result<> check_not_taken() const { return ownership_.check_not_taken(); }
  const std::string& token() const { return ownership_.token(); }
  const std::filesystem::path& save_dir() const { return save_dir_; }

 private:
  CheckpointStore(std::filesystem::path save_dir, Ownership ownership);
  Result<> remove_leftovers();
  Result<> discard(const std::filesystem::path& folder);
  Result<> discard_all(const std::vector<std::filesystem::path>& folders);
  Result<> move_to_trash(const std::filesystem::path& folder) const;
  Result<std::filesystem::path> replace(const std::filesystem::path& folder,
                                        const std::filesystem::path& target) const;

  std::filesystem::path save_dir_;
  Ownership ownership_;
};

}  // namespace sortie::trainer
