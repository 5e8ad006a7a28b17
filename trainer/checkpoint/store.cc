#include "trainer/checkpoint/store.h"

#include <fmt/core.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>

#include "common/base/log.h"
#include "trainer/checkpoint/extra_files.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/small_file.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kTrash = ".trash-";

Result<> check_free_space(const fs::path& folder, std::uint64_t needed) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0)
    return std::unexpected(os_error(errno, "free space of " + folder.string()));
  const std::uint64_t free = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  const std::uint64_t wanted = needed + needed / 20 + (std::uint64_t{1} << 20);
  if (free < wanted)
    return fail(ErrorCode::io,
                fmt::format("{}: {} bytes are free, but {} bytes are needed for checkpoints; make "
                            "room, or set another trainer.save_dir",
                            folder.string(), free, wanted));
  return {};
}

/// Returns a free name in the save folder for what is to be removed.
fs::path trash_name(const fs::path& save_dir, const std::string& name) {
  fs::path trash = save_dir / fmt::format("{}{}", kTrash, name);
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(trash, ignored))) trash += "." + new_lineage();
  return trash;
}

/// A file that cannot be removed (of another user, or open on NFS) must not prevent a save or a
/// start.
void remove_trash(const fs::path& trash) {
  if (auto removed = file_ops::remove_tree(trash); !removed)
    log::warning("{}; the next save or start tries again", removed.error().message);
}

}  // namespace

CheckpointStore::CheckpointStore(fs::path save_dir, Ownership ownership)
    : save_dir_(std::move(save_dir)), ownership_(std::move(ownership)) {}

Result<CheckpointStore> CheckpointStore::open(const fs::path& save_dir, const Claimant& claimant) {
  std::error_code error;
  fs::create_directories(save_dir, error);
  if (error)
    return fail(ErrorCode::io, fmt::format("create {}: {}", save_dir.string(), error.message()));
  SORTIE_ASSIGN_OR_RETURN(Ownership ownership, Ownership::claim(save_dir, claimant));
  CheckpointStore store(save_dir, std::move(ownership));
  // After the claim: what an earlier owner began before it is moved away here, and what it begins
  // later sees the claim.
  SORTIE_TRY(store.remove_leftovers());
  return store;
}

CheckpointStore CheckpointStore::join(const fs::path& save_dir, const Claimant& claimant,
                                      const std::string& token) {
  return {save_dir, Ownership::of(save_dir, claimant, token)};
}

Result<> CheckpointStore::remove_leftovers() {
  std::error_code error;
  std::vector<fs::path> leftovers, aside;
  for (fs::directory_iterator at(save_dir_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kTemporary) || name.starts_with(kTrash)) leftovers.push_back(at->path());
    if (name.starts_with(kAsidePrefix)) aside.push_back(at->path());
  }
  if (error)
    return fail(ErrorCode::io, fmt::format("list {}: {}", save_dir_.string(), error.message()));
  for (const fs::path& path : leftovers) {
    // A rank of a dead run may still write here, from another host: it does not find the folder
    // under its new name.
    if (path.filename().string().starts_with(kTemporary))
      SORTIE_TRY(move_to_trash(path));
    else
      remove_trash(path);
  }
  // After those above: what was to replace these cannot do so any more.
  for (const fs::path& path : aside) {
    const fs::path place = save_dir_ / path.filename().string().substr(kAsidePrefix.size());
    if (fs::exists(place, error)) {
      SORTIE_TRY(move_to_trash(path));
    } else {
      SORTIE_TRY(file_ops::rename_path(path, place));
      SORTIE_TRY(file_ops::sync_dir(save_dir_));
    }
  }
  return {};
}

/// Removes a folder that is not a checkpoint, or not any more. Fails only if it keeps its name.
Result<> CheckpointStore::move_to_trash(const fs::path& folder) const {
  const fs::path trash = trash_name(save_dir_, folder.filename().string().substr(1));
  SORTIE_TRY(file_ops::rename_path(folder, trash));
  remove_trash(trash);
  return {};
}

Result<fs::path> CheckpointStore::begin(std::int64_t step, std::uint64_t expected_bytes) {
  // A unique name, so that no other save, not even one of a dead run, writes into it.
  const fs::path folder =
      save_dir_ / fmt::format("{}{}.{}", kTemporary, checkpoint_name(step), new_lineage());
  SORTIE_TRY(ownership_.keep());
  SORTIE_TRY(remove_leftovers());
  SORTIE_TRY(check_free_space(save_dir_, expected_bytes));
  SORTIE_TRY(file_ops::make_dir(folder));
  return folder;
}

Result<std::optional<fs::path>> CheckpointStore::begin_alone(std::int64_t step,
                                                             std::uint64_t expected_bytes) {
  // One name for all processes that may try: the one that creates the folder may use it.
  const fs::path folder = save_dir_ / fmt::format("{}{}.last.{}", kTemporary, checkpoint_name(step),
                                                  ownership_.token());
  SORTIE_TRY(ownership_.check());
  SORTIE_TRY(check_free_space(save_dir_, expected_bytes));
  if (auto made = file_ops::make_dir(folder); !made) {
    std::error_code ignored;
    if (fs::exists(folder, ignored)) return std::nullopt;
    return std::unexpected(std::move(made).error());
  }
  return folder;
}

Result<fs::path> CheckpointStore::commit(const fs::path& folder, Manifest manifest,
                                         const std::vector<ShardInfo>& shards) {
  if (auto added = add_shards(manifest, shards); !added)
    return std::unexpected(with_context(std::move(added).error(), folder.string()));
  for (const Manifest::File& shard : manifest.shards) {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(folder / shard.file, error);
    if (error || bytes != shard.bytes)
      return fail(
          ErrorCode::checkpoint,
          fmt::format("{}: {}, its rank reported {} bytes; is the folder shared by all hosts?",
                      (folder / shard.file).string(),
                      error ? error.message() : fmt::format("has {} bytes", bytes), shard.bytes));
  }
  SORTIE_TRY(add_extra_files(manifest, folder));
  const std::string text = to_json(manifest);
  SORTIE_TRY(write_small_file(folder / kManifestFile, text));
  SORTIE_TRY(file_ops::sync_dir(folder));
  SORTIE_TRY(write_small_file(folder / kCommitFile, commit_text(sha256_hex(text))));
  SORTIE_TRY(file_ops::sync_dir(folder));

  // A process that claims the folder after this moves ours away before it looks for checkpoints:
  // the rename then fails, or has happened before.
  SORTIE_TRY(ownership_.keep());
  const fs::path target = save_dir_ / checkpoint_name(manifest.step);
  std::error_code ignored;
  if (fs::exists(target, ignored)) {
    auto old = replace(folder, target);
    if (!old)
      return std::unexpected(with_context(
          std::move(old).error(),
          fmt::format("{} exists and could not be replaced; move it away", target.string())));
    SORTIE_TRY(file_ops::sync_dir(save_dir_));
    // The new one is committed, whatever happens to the old one: the next begin() or open() tries
    // again to remove it.
    if (auto removed = *old == folder ? file_ops::remove_tree(folder) : move_to_trash(*old);
        !removed)
      log::warning("{}", removed.error().message);
  } else {
    SORTIE_TRY(file_ops::rename_path(folder, target));
    SORTIE_TRY(file_ops::sync_dir(save_dir_));
  }
  // A process that was superseded in between must not report a checkpoint, nor prune any.
  SORTIE_TRY(ownership_.keep());
  return target;
}

/// Replaces another checkpoint of the same step with a finished folder, so that readers find one of
/// them at every moment. Returns where the other one is then.
Result<fs::path> CheckpointStore::replace(const fs::path& folder, const fs::path& target) const {
  SORTIE_ASSIGN_OR_RETURN(const bool exchanged, file_ops::exchange_paths(folder, target));
  if (exchanged) return folder;
  // Readers use it under that name as long as there is none under its own (list_checkpoints).
  const fs::path aside = save_dir_ / fmt::format("{}{}", kAsidePrefix, target.filename().string());
  SORTIE_TRY(file_ops::rename_path(target, aside));
  if (auto renamed = file_ops::rename_path(folder, target); !renamed) {
    (void)file_ops::rename_path(aside, target);  // otherwise the next begin() or open() does it
    return std::unexpected(std::move(renamed).error());
  }
  return aside;
}

Result<> CheckpointStore::abandon(const fs::path& folder) {
  return file_ops::remove_tree(folder);
}

Result<> CheckpointStore::discard(const fs::path& folder) {
  SORTIE_TRY(ownership_.keep());
  // Renamed first: a partly removed folder must never look like a checkpoint.
  const fs::path trash = trash_name(save_dir_, folder.filename().string());
  SORTIE_TRY(file_ops::rename_path(folder, trash));
  SORTIE_TRY(file_ops::sync_dir(save_dir_));
  return file_ops::remove_tree(trash);
}

/// Removes checkpoints, also those after one that could not be removed. Returns the first failure.
Result<> CheckpointStore::discard_all(const std::vector<fs::path>& folders) {
  Result<> outcome;
  for (const fs::path& folder : folders)
    if (auto discarded = discard(folder); !discarded && outcome) outcome = std::move(discarded);
  return outcome;
}

Result<fs::path> CheckpointStore::quarantine(const fs::path& folder) const {
  SORTIE_TRY(ownership_.check());
  const fs::path place = save_dir_ / kQuarantineFolder;
  std::error_code ignored;
  if (!fs::is_directory(place, ignored)) SORTIE_TRY(file_ops::make_dir(place));
  const bool best = folder.parent_path().filename() == kBestFolder;
  fs::path target = place / ((best ? "best-" : "") + folder.filename().string());
  if (fs::exists(target, ignored)) target += "." + new_lineage();
  SORTIE_TRY(file_ops::rename_path(folder, target));
  SORTIE_TRY(file_ops::sync_dir(place));
  SORTIE_TRY(file_ops::sync_dir(folder.parent_path()));
  return target;
}

Result<> CheckpointStore::retain(std::int64_t step, std::int64_t keep_last, std::int64_t also) {
  if (keep_last <= 0) return {};
  SORTIE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                          list_checkpoints(save_dir_, CheckDepth::sizes));
  std::vector<fs::path> old;
  std::int64_t good = 0;
  bool trusted = false;  // whether one that is not suspect is kept
  for (const CheckpointEntry& entry : entries) {
    if (entry.step > step) continue;
    if (!entry.manifest) {
      log::warning("not counted and left alone: {}", entry.problem);
      continue;
    }
    const bool kept = ++good <= keep_last || (!trusted && !entry.manifest->suspect) ||
                      (also > 0 && entry.step == also);
    if (kept)
      trusted = trusted || !entry.manifest->suspect;
    else
      old.push_back(entry.folder);
  }
  return discard_all(old);
}

Result<> CheckpointStore::keep_only(std::int64_t step) {
  SORTIE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                          list_checkpoints(save_dir_, CheckDepth::sizes));
  const auto kept = std::ranges::find(entries, step, &CheckpointEntry::step);
  if (kept == entries.end() || !kept->manifest) return {};
  std::vector<fs::path> old;
  for (const CheckpointEntry& entry : entries)
    if (entry.manifest && entry.step != step &&
        (entry.manifest->lineage.empty() || same_run(*kept->manifest, *entry.manifest)))
      old.push_back(entry.folder);
  return discard_all(old);
}

Result<> CheckpointStore::discard_after(std::int64_t step) {
  SORTIE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                          list_checkpoints(save_dir_, CheckDepth::sizes));
  std::vector<fs::path> old;
  for (const CheckpointEntry& entry : entries)
    if (entry.step > step) old.push_back(entry.folder);
  return discard_all(old);
}

Result<> CheckpointStore::discard_abandoned(const std::optional<RollbackFile>& file) {
  if (!file) return {};
  SORTIE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                          list_checkpoints(save_dir_, CheckDepth::sizes));
  std::vector<fs::path> old;
  for (const CheckpointEntry& entry : entries)
    if (entry.manifest && is_abandoned(*entry.manifest, file)) old.push_back(entry.folder);
  return discard_all(old);
}

Result<> CheckpointStore::check_room(std::uint64_t bytes) const {
  const fs::path folder = save_dir_ / fmt::format("{}check", kTemporary);
  const fs::path file = folder / "file";
  const auto write = [&]() -> Result<> {
    SORTIE_TRY(file_ops::remove_tree(folder));
    SORTIE_TRY(file_ops::make_dir(folder));
    SORTIE_TRY(write_small_file(file, "written to see that it can be\n"));
    return file_ops::remove_tree(folder);
  };
  SORTIE_TRY(write());
  return check_free_space(save_dir_, bytes);
}

}  // namespace sortie::trainer
