#include "trainer/state/checkpointer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>

#include "common/base/log.h"
#include "common/config/load.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/shard_file.h"
#include "trainer/hf/import.h"
#include "trainer/nn/lora.h"
#include "trainer/ops/copy.h"
#include "trainer/state/checkpoint_state.h"
#include "trainer/state/saved_job.h"

namespace sortie::trainer {
namespace {

/// The three flat buffers, under the prefixes of their tensors' names.
struct NamedBuffer {
  const char* prefix;
  std::span<float> values;
  bool of_trained = false;  // others have nothing in it
  bool holds(const Parameter& parameter) const { return !of_trained || parameter.trained(); }
};
/// The host's view of the state while it lives.
class OpenState {
 public:
  explicit OpenState(ParameterStore& store)
      : master_(store.context(), store.master()),
        moment1_(store.context(), store.moment1()),
        moment2_(store.context(), store.moment2()) {}
  std::array<NamedBuffer, 3> buffers() const {
    return {{{"model.", master_.span()},
             {"optimizer.m.", moment1_.span(), true},
             {"optimizer.v.", moment2_.span(), true}}};
  }

 private:
  ops::HostAccess<float> master_, moment1_, moment2_;
};

std::span<float> values_of(std::span<float> buffer, const Parameter& parameter) {
  return buffer.subspan(static_cast<std::size_t>(parameter.offset()),
                        static_cast<std::size_t>(parameter.elements()));
}

/// Rank 0's outcome, on every rank: a text that is empty on success.
Result<> share_outcome(Communicator& communicator, const Result<>& outcome) {
  const std::string mine =
      communicator.rank() == 0 && !outcome
          ? fmt::format("{}\n{}", static_cast<int>(outcome.error().code), outcome.error().message)
          : "";
  const std::string text = communicator.all_gather(mine)[0];
  if (text.empty()) return {};
  const auto line = text.find('\n');
  return fail(static_cast<ErrorCode>(std::stoi(text.substr(0, line))), text.substr(line + 1));
}

}  // namespace

Checkpointer::Checkpointer(const config::JobConfig& job, const BitFacts& facts,
                           ParameterStore& store, Communicator& communicator)
    : job_(job), facts_(facts), store_(store), communicator_(communicator) {}

/// Rank 0: the folder is there, ours alone, and has room for the next checkpoints.
Result<> Checkpointer::open_save_dir() {
  const std::filesystem::path save_dir = job_.trainer.save_dir;
  if (save_dir.empty()) return {};
  const auto in_context = [](Error error) {
    return std::unexpected(with_context(std::move(error), "trainer.save_dir"));
  };
  auto store = CheckpointStore::open(save_dir, run_id_);
  if (!store) return in_context(std::move(store).error());
  folder_ = std::move(*store);
  std::uint64_t bytes = 0;
  for (const auto& parameter : store_.parameters())
    bytes += static_cast<std::uint64_t>(parameter->elements()) * sizeof(float) *
             (parameter->trained() ? 3 : 1);
  // Room for a checkpoint and, as long as there is none yet, the one after it; of the best
  // likewise.
  std::uint64_t saves = 0;
  const auto count_saves = [&](const CheckpointStore& folder) -> Result<> {
    SORTIE_ASSIGN_OR_RETURN(const auto entries,
                            list_checkpoints(folder.save_dir(), CheckDepth::sizes));
    saves += entries.empty() ? 2 : 1;
    return {};
  };
  if (auto counted = count_saves(*folder_); !counted) return in_context(counted.error());
  if (job_.trainer.keep_best && job_.trainer.eval_interval > 0) {
    auto best = CheckpointStore::open(save_dir / kBestFolder, run_id_);
    if (!best) return in_context(std::move(best).error());
    best_ = std::move(*best);
    if (auto counted = count_saves(*best_); !counted) return in_context(counted.error());
  }
  if (auto room = folder_->check_room(saves * bytes); !room)
    return in_context(std::move(room).error());
  return {};
}

/// Rank 0: where the run starts, and that it starts from its own model.
Result<> Checkpointer::choose() {
  SORTIE_TRY(open_save_dir());
  SORTIE_ASSIGN_OR_RETURN(start_, choose_start(job_.trainer));
  SORTIE_TRY(check_same_model(start_, job_));
  if (start_.kind == StartPoint::Kind::seed) return {};
  return check_tokenizer_of_checkpoint(tokenizer_, start_.folder);
}

Result<> Checkpointer::prepare() {
  Result<> outcome;
  if (communicator_.rank() == 0) outcome = choose();
  SORTIE_TRY(share_outcome(communicator_, outcome));
  // Low-rank updates may begin on weights that have none.
  std::uint8_t all =
      start_.manifest && std::ranges::all_of(store_.parameters(), [&](const auto& p) {
        return start_.manifest->tensors.contains("model." + p->name());
      });
  communicator_.broadcast(std::as_writable_bytes(std::span(&all, 1)), 0);
  loads_all_values_ = all != 0;
  return {};
}

Result<SavedCheckpoint> Checkpointer::write(const TrainingProgress& progress, Series series) {
  const auto begin = std::chrono::steady_clock::now();
  const bool best = series == Series::best;
  std::optional<CheckpointStore>& store = best ? best_ : folder_;
  const std::filesystem::path save_dir = job_.trainer.save_dir;
  if (!store) {
    SORTIE_ASSIGN_OR_RETURN(
        store, CheckpointStore::open(best ? save_dir / kBestFolder : save_dir, run_id_));
  }
  if (start_.lineage.empty()) start_.lineage = new_lineage();
  std::vector<PieceToWrite> pieces;
  std::uint64_t bytes = 0;
  const OpenState state(store_);
  for (const NamedBuffer& buffer : state.buffers()) {
    for (const auto& parameter : store_.parameters()) {
      if (!buffer.holds(*parameter)) continue;
      const Dims shape = dims_of(parameter->spec().shape);
      const auto data = std::as_bytes(values_of(buffer.values, *parameter));
      pieces.push_back(
          {buffer.prefix + parameter->name(), StorageType::f32, shape, Piece::whole(shape), data});
      bytes += data.size();
    }
  }
  Manifest manifest;
  manifest.run_id = run_id_;
  manifest.first_run_id = first_run_id();
  manifest.lineage = start_.lineage;
  manifest.origin = start_.origin;
  record_progress(progress, manifest);
  manifest.tokens =
      static_cast<std::uint64_t>(progress.consumed_samples * job_.model.sequence_length);
  manifest.seed = static_cast<std::uint64_t>(job_.trainer.seed);
  manifest.created = std::time(nullptr);
  manifest.world_size = facts_.world_size;
  manifest.config = config::to_toml(job_);
  manifest.config_digest = training_digest(job_);
  manifest.depends_on = depends_on(facts_);

  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path folder, store->begin(progress.step, bytes));
  auto shard = write_shard(folder, 0, 1, pieces);
  if (shard)
    if (auto carried = carry_import_notes(notes_from_, folder); !carried)
      shard = std::unexpected(std::move(carried).error());
  if (shard)
    if (auto kept = tokenizer_.files ? write_tokenizer_files(*tokenizer_.files, folder)
                                     : carry_tokenizer_files(notes_from_, folder);
        !kept)
      shard = std::unexpected(std::move(kept).error());
  auto path = shard ? store->commit(folder, std::move(manifest), {*shard})
                    : Result<std::filesystem::path>(std::unexpected(shard.error()));
  if (!path) {
    if (auto abandoned = store->abandon(folder); !abandoned)
      log::warning("{}", abandoned.error().message);
    return std::unexpected(std::move(path).error());
  }
  notes_from_ = *path;
  SavedCheckpoint saved;
  saved.path = std::move(*path);
  saved.bytes = static_cast<std::int64_t>(bytes);
  const Result<> pruned =
      best ? store->keep_only(progress.step) : store->retain(progress.step, job_.trainer.keep_last);
  if (!pruned)
    saved.warning = fmt::format("{}: older checkpoints could not be removed: {}",
                                store->save_dir().string(), pruned.error().message);
  saved.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return saved;
}

Result<SavedCheckpoint> Checkpointer::save(const TrainingProgress& progress, Series series) {
  SavedCheckpoint saved;
  Result<> outcome;
  if (communicator_.rank() == 0) {
    if (auto written = write(progress, series))
      saved = std::move(*written);
    else
      outcome = std::unexpected(std::move(written).error());
  }
  SORTIE_TRY(share_outcome(communicator_, outcome));
  return saved;
}

namespace {

/// What the checkpoint lacks of `model.` keeps its initial values: low-rank updates that begin.
Result<> read_buffer(CheckpointReader& reader, const NamedBuffer& buffer, ParameterStore& store) {
  for (const auto& parameter : store.parameters()) {
    if (!buffer.holds(*parameter)) continue;
    const std::string name = buffer.prefix + parameter->name();
    const bool there = reader.find(name) != nullptr;
    if (!there && !buffer.of_trained && is_lora_name(parameter->name())) continue;
    if (!there && buffer.of_trained)
      return fail(ErrorCode::checkpoint,
                  fmt::format("{} was not trained when the checkpoint of step {} was saved, so the "
                              "optimizer has no state for it; freeze what was frozen, or start a "
                              "new run with trainer.load_weights_from",
                              parameter->name(), reader.manifest().step));
    const Dims shape = dims_of(parameter->spec().shape);
    SORTIE_TRY(
        reader.read_f32(name, shape, Piece::whole(shape), values_of(buffer.values, *parameter)));
  }
  return {};
}

}  // namespace

/// Rank 0: the chosen checkpoint into the flat buffers; nothing when the run starts from the seed.
Result<std::optional<LoadedCheckpoint>> Checkpointer::read() {
  if (start_.kind == StartPoint::Kind::seed) return std::nullopt;
  // Its bytes were compared with its hashes when it was chosen.
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::open(start_.folder, CheckDepth::sizes));
  const Manifest& manifest = reader.manifest();
  const bool weights_alone = start_.kind == StartPoint::Kind::weights;
  const OpenState state(store_);
  for (const NamedBuffer& buffer : state.buffers()) {
    // Imported weights come without moments, which then start at zero.
    if (buffer.of_trained && (weights_alone || manifest.run_id == kImportRun)) continue;
    SORTIE_TRY(read_buffer(reader, buffer, store_));
  }
  LoadedCheckpoint loaded;
  loaded.kind = start_.kind;
  loaded.path = start_.folder;
  loaded.reason = start_.reason;
  notes_from_ = start_.folder;
  if (weights_alone) return loaded;
  loaded.progress = recorded_progress(manifest);
  // A fork has a save_dir of its own, with no best checkpoint yet.
  if (start_.kind == StartPoint::Kind::fork)
    loaded.progress.best_validation_loss = TrainingProgress{}.best_validation_loss;
  if (manifest.run_id != kImportRun) {
    SORTIE_ASSIGN_OR_RETURN(loaded.differences,
                            changes_since(manifest, start_.folder, facts_, job_));
  }
  return loaded;
}

Result<std::optional<LoadedCheckpoint>> Checkpointer::load() {
  std::optional<LoadedCheckpoint> loaded;
  Result<> outcome;
  if (communicator_.rank() == 0) {
    if (auto found = read())
      loaded = std::move(*found);
    else
      outcome = std::unexpected(std::move(found).error());
  }
  SORTIE_TRY(share_outcome(communicator_, outcome));

  struct Header {
    TrainingProgress progress;
    std::int64_t found = 0;
    StartPoint::Kind kind = StartPoint::Kind::seed;
  } header;
  static_assert(std::is_trivially_copyable_v<Header>);
  if (loaded) header = {loaded->progress, 1, loaded->kind};
  communicator_.broadcast(std::as_writable_bytes(std::span(&header, 1)), 0);
  if (header.found == 0) return std::nullopt;
  const OpenState state(store_);
  for (const NamedBuffer& buffer : state.buffers())
    communicator_.broadcast(std::as_writable_bytes(buffer.values), 0);
  if (!loaded) {
    loaded.emplace();
    loaded->progress = header.progress;
    loaded->kind = header.kind;
  }
  return loaded;
}

}  // namespace sortie::trainer
