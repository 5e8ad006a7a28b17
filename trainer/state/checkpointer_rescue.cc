// The last save of a rank whose peers are gone: replicas of a data-parallel run hold the same
// state, so any one of them has all of it.
#include <algorithm>

#include "common/base/elapsed.h"
#include "trainer/hf/import.h"
#include "trainer/state/checkpointer.h"

namespace sortie::trainer {
namespace fs = std::filesystem;

/// Survivors may be at two consecutive steps, if one has received the last sum of a step and
/// another has not. Either state is complete; each is saved under its own step, and the next start
/// uses the newer one.
Result<std::optional<SavedCheckpoint>> Checkpointer::save_alone(const TrainingProgress& progress) {
  if (token_.empty()) return std::nullopt;  // nothing is saved here, or the start was not known yet
  if (!has_all()) return std::nullopt;
  const auto begin = Clock::now();
  thread_.wait();  // if rank 0 writes alone, a save that is under way may commit meanwhile
  const fs::path save_dir = job_.trainer.save_dir;
  CheckpointStore store = CheckpointStore::join(save_dir, claimant_, token_);
  // If hosts have separate folders, only that of rank 0 counts.
  SORTIE_TRY(store.check_owner());
  SORTIE_ASSIGN_OR_RETURN(const LatestCheckpoint latest, find_latest(save_dir));
  if (latest.entry && latest.entry->step >= progress.step) return std::nullopt;

  const StateView state(store_);
  std::vector<StatePiece> own = state.pieces(TiedCopies::leave_out);
  Snapshot copy;
  SORTIE_TRY(copy_to_host(context_, own, snapshot_, copy));
  std::vector<PieceToWrite> pieces;
  std::uint64_t bytes = 0;
  for (const StatePiece& piece : own) {
    pieces.push_back({.name = piece.name,
                      .type = piece.type,
                      .shape = piece.shape,
                      .piece = piece.piece,
                      .data = std::span<const std::byte>(piece.bytes)});
    bytes += piece.bytes.size();
  }
  SORTIE_ASSIGN_OR_RETURN(const std::optional<fs::path> begun,
                          store.begin_alone(progress.step, bytes));
  if (!begun) return std::nullopt;  // another survivor saves it
  const fs::path& folder = *begun;
  std::error_code ignored;
  if (fs::exists(save_dir / checkpoint_name(progress.step), ignored)) {  // it has just done so
    SORTIE_TRY(store.abandon(folder));
    return std::nullopt;
  }
  const auto write = [&]() -> Result<fs::path> {
    SORTIE_ASSIGN_OR_RETURN(const ShardInfo shard, write_shard(folder, 0, 1, pieces));
    const fs::path notes = latest.entry ? latest.entry->folder : notes_from_;
    SORTIE_TRY(carry_import_notes(notes, folder));
    SORTIE_TRY(tokenizer_.files ? write_tokenizer_files(*tokenizer_.files, folder)
                                : carry_tokenizer_files(notes, folder));
    return store.commit(folder, make_manifest(progress), {shard});
  };
  Result<fs::path> path = write();
  if (!path) {
    (void)store.abandon(folder);
    return std::unexpected(std::move(path).error());
  }
  SavedCheckpoint saved;
  saved.path = std::move(*path);
  saved.bytes = static_cast<std::int64_t>(bytes);
  saved.suspect = progress.suspect_steps > 0;
  saved.seconds = saved.stall_seconds = seconds_since(begin);
  return saved;
}

}  // namespace sortie::trainer
