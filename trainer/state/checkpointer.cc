#include "trainer/state/checkpointer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <ctime>

#include "common/base/log.h"
#include "common/config/load.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/shard_file.h"
#include "trainer/hf/import.h"
#include "trainer/nn/lora.h"
#include "trainer/state/checkpoint_state.h"

namespace sortie::trainer {
namespace {

/// The three flat buffers, under the prefixes of their tensors' names.
struct NamedBuffer {
  const char* prefix;
  std::span<float> values;
  bool of_trained = false;  // others have nothing in it
  bool holds(const Parameter& parameter) const { return !of_trained || parameter.trained(); }
};
std::array<NamedBuffer, 3> buffers_of(ParameterStore& store) {
  return {{{"model.", store.master()},
           {"optimizer.m.", store.moment1(), true},
           {"optimizer.v.", store.moment2(), true}}};
}

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

Result<SavedCheckpoint> Checkpointer::write(const TrainingProgress& progress, Series series) {
  const auto begin = std::chrono::steady_clock::now();
  const bool best = series == Series::best;
  std::optional<CheckpointStore>& store = best ? best_ : folder_;
  const std::filesystem::path save_dir = job_.trainer.save_dir;
  if (!store) {
    SORTIE_ASSIGN_OR_RETURN(
        store, CheckpointStore::open(best ? save_dir / kBestFolder : save_dir, run_id_));
  }
  std::vector<PieceToWrite> pieces;
  std::uint64_t bytes = 0;
  for (const NamedBuffer& buffer : buffers_of(store_)) {
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
  record_progress(progress, manifest);
  manifest.tokens =
      static_cast<std::uint64_t>(progress.consumed_samples * job_.model.sequence_length);
  manifest.seed = static_cast<std::uint64_t>(job_.trainer.seed);
  manifest.created = std::time(nullptr);
  manifest.world_size = facts_.world_size;
  manifest.config = config::to_toml(job_);
  manifest.config_digest = training_digest(job_);
  manifest.depends_on = depends_on(facts_, job_);

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
  SORTIE_TRY(store->retain(best ? 1 : job_.trainer.keep_last));
  return SavedCheckpoint{
      *path, static_cast<std::int64_t>(bytes),
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
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

/// `place` itself, or the newest usable checkpoint in it; nothing when there is none.
Result<std::optional<std::filesystem::path>> checkpoint_in(const std::filesystem::path& place) {
  std::error_code ignored;
  if (std::filesystem::exists(place / kCommitFile, ignored)) return place;
  SORTIE_ASSIGN_OR_RETURN(const LatestCheckpoint latest, find_latest(place, CheckDepth::hashes));
  for (const std::string& text : latest.skipped) log::warning("checkpoint skipped: {}", text);
  if (!latest.entry) return std::nullopt;
  return latest.entry->folder;
}

std::unexpected<Error> no_checkpoint(std::string_view key, const std::filesystem::path& place) {
  return fail(ErrorCode::checkpoint,
              fmt::format("{} {}: no committed checkpoint in it; `sortie-train checkpoint ls {}` "
                          "shows what is there",
                          key, place.string(), place.string()));
}

Result<> read_buffer(CheckpointReader& reader, const NamedBuffer& buffer, ParameterStore& store,
                     bool fresh_lora) {
  for (const auto& parameter : store.parameters()) {
    const Dims shape = dims_of(parameter->spec().shape);
    // Low-rank updates may begin on weights that had none.
    if (fresh_lora && is_lora_name(parameter->name()) &&
        reader.find(buffer.prefix + parameter->name()) == nullptr)
      continue;
    if (!buffer.holds(*parameter)) continue;
    if (buffer.of_trained && reader.find(buffer.prefix + parameter->name()) == nullptr)
      return fail(ErrorCode::checkpoint,
                  fmt::format("{} was not trained when the checkpoint of step {} was saved, so the "
                              "optimizer has no state for it; freeze what was frozen, or start a "
                              "new run with trainer.load_weights_from",
                              parameter->name(), reader.manifest().step));
    SORTIE_TRY(reader.read_f32(buffer.prefix + parameter->name(), shape, Piece::whole(shape),
                               values_of(buffer.values, *parameter)));
  }
  return {};
}

}  // namespace

/// Rank 0: the checkpoint to load and its state into the flat buffers; nothing when there is none.
Result<std::optional<LoadedCheckpoint>> Checkpointer::read() {
  const bool named = !job_.trainer.load_dir.empty();
  const std::filesystem::path place = named ? job_.trainer.load_dir : job_.trainer.save_dir;
  std::optional<std::filesystem::path> folder;
  if (!place.empty()) {
    SORTIE_ASSIGN_OR_RETURN(folder, checkpoint_in(place));
  }
  if (!folder && named) return no_checkpoint("trainer.load_dir", place);
  if (!folder && !job_.trainer.load_weights_from.empty()) return read_weights();
  if (!folder) return std::nullopt;
  SORTIE_TRY(check_tokenizer_of_checkpoint(tokenizer_, *folder));
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::open(*folder, CheckDepth::hashes));
  for (const NamedBuffer& buffer : buffers_of(store_)) {
    // Imported weights come without moments, which then start at zero.
    if (buffer.prefix != std::string_view("model.") && reader.manifest().run_id == "import")
      continue;
    SORTIE_TRY(read_buffer(reader, buffer, store_, false));
  }
  LoadedCheckpoint loaded;
  loaded.path = *folder;
  notes_from_ = *folder;
  loaded.progress = recorded_progress(reader.manifest());
  const Manifest& manifest = reader.manifest();
  first_run_id_ = manifest.first_run_id.empty() ? manifest.run_id : manifest.first_run_id;
  loaded.differences = fmt::format(
      "{}", fmt::join(differences(reader.manifest().depends_on, depends_on(facts_, job_)), ", "));
  return loaded;
}

Result<LoadedCheckpoint> Checkpointer::read_weights() {
  const std::filesystem::path place = job_.trainer.load_weights_from;
  SORTIE_ASSIGN_OR_RETURN(const auto folder, checkpoint_in(place));
  if (!folder) return no_checkpoint("trainer.load_weights_from", place);
  SORTIE_TRY(check_tokenizer_of_checkpoint(tokenizer_, *folder));
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::open(*folder, CheckDepth::hashes));
  SORTIE_TRY(read_buffer(reader, buffers_of(store_)[0], store_, true));
  LoadedCheckpoint loaded;
  loaded.path = *folder;
  notes_from_ = *folder;
  loaded.weights_only = true;
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
    std::int64_t found = 0, weights_only = 0;
  } header;
  static_assert(std::is_trivially_copyable_v<Header>);
  if (loaded) header = {loaded->progress, 1, loaded->weights_only};
  communicator_.broadcast(std::as_writable_bytes(std::span(&header, 1)), 0);
  if (header.found == 0) return std::nullopt;
  for (const NamedBuffer& buffer : buffers_of(store_))
    communicator_.broadcast(std::as_writable_bytes(buffer.values), 0);
  if (!loaded) {
    loaded.emplace();
    loaded->progress = header.progress;
    loaded->weights_only = header.weights_only != 0;
  }
  return loaded;
}

}  // namespace sortie::trainer
