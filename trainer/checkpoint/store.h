// CheckpointStore: the folder of a job's checkpoints. Only rank 0 has one; the other ranks write
// their shard into the folder that rank 0 names.
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

/// One at a time per folder (ownership.h), so that no other run removes what this one is writing,
/// and no earlier attempt of a run commits what a later one does not know. A save:
///
///   rank 0      folder = store.begin(step, bytes)        then a broadcast of the folder
///   every rank  info = write_shard(folder, rank, ranks, pieces)
///   rank 0      gathers the infos, store.commit(folder, manifest, infos), store.retain(step, keep)
///
/// Until commit returns the checkpoint does not exist: a crash leaves a ".tmp-" folder that the
/// next open or begin removes.
class CheckpointStore {
 public:
  /// Makes the folder where it is missing, claims it, and removes what crashed saves left. Fails
  /// when another process has the store open, unless that is an earlier attempt of the same run.
  static Result<CheckpointStore> open(const std::filesystem::path& save_dir,
                                      const Claimant& claimant);
  /// The store that another process of this attempt has opened, by its token: for a last save
  /// (begin_alone) when that process is gone. Touches nothing.
  static CheckpointStore join(const std::filesystem::path& save_dir, const Claimant& claimant,
                              const std::string& token);

  /// A fresh folder for the shards of a step. `expected_bytes` of all ranks must be free on the
  /// file system (with some to spare), else it fails at once rather than at the end.
  Result<std::filesystem::path> begin(std::int64_t step, std::uint64_t expected_bytes);
  /// The same for one of several processes of this attempt that can not talk to each other any
  /// more: only the first of them to call it for a step gets a folder.
  Result<std::optional<std::filesystem::path>> begin_alone(std::int64_t step,
                                                           std::uint64_t expected_bytes);

  /// Checks the shards' sizes and that they hold every tensor exactly once, writes manifest.json
  /// and COMMIT, renames the folder to "step-N" and gives its path. A checkpoint of the same step
  /// is replaced. `manifest` comes without shards and tensors. ErrorCode::checkpoint where the
  /// folder has another owner by now.
  Result<std::filesystem::path> commit(const std::filesystem::path& folder, Manifest manifest,
                                       const std::vector<ShardInfo>& shards);

  /// Removes the folder of a save that failed.
  Result<> abandon(const std::filesystem::path& folder);

  /// Moves a damaged checkpoint to save_dir/quarantine/ and gives its new path; nothing there is
  /// ever removed.
  Result<std::filesystem::path> quarantine(const std::filesystem::path& folder) const;

  /// Removes old checkpoints: of those up to `step`, which was just committed, the newest
  /// `keep_last` stay, the newest that is not suspect, and that of step `also`; 0 keeps all. Broken
  /// folders and later steps (a run goes on from an earlier step only when it passed those over as
  /// damaged) are neither counted nor touched.
  Result<> retain(std::int64_t step, std::int64_t keep_last, std::int64_t also = 0);
  /// Removes the checkpoints of later steps, broken ones too: the run has gone back to this one.
  Result<> discard_after(std::int64_t step);
  /// Removes those that the run of the file has left behind by a rollback (rollbacks.h).
  Result<> discard_abandoned(const std::optional<RollbackFile>& file);
  /// Removes all committed checkpoints but that of `step`.
  Result<> keep_only(std::int64_t step);

  /// Whether a save of `bytes` would work, as far as it can be known now: a folder and a file can
  /// be made and synced, and that much space is free.
  Result<> check_room(std::uint64_t bytes) const;

  /// Whether this process may still commit here.
  Result<> check_owner() const { return ownership_.check(); }
  const std::string& token() const { return ownership_.token(); }
  const std::filesystem::path& save_dir() const { return save_dir_; }

 private:
  CheckpointStore(std::filesystem::path save_dir, Ownership ownership);
  Result<> remove_leftovers();
  Result<> discard(const std::filesystem::path& folder);
  Result<> move_to_trash(const std::filesystem::path& folder) const;
  Result<std::filesystem::path> replace(const std::filesystem::path& folder,
                                        const std::filesystem::path& target) const;

  std::filesystem::path save_dir_;
  Ownership ownership_;
};

}  // namespace sortie::trainer
