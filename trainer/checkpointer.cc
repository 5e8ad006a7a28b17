#include "trainer/checkpointer.h"

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
#include "trainer/startup_check.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

/// The three flat buffers, under the prefixes of their tensors' names.
struct NamedBuffer {
  const char* prefix;
  std::span<float> values;
};
std::array<NamedBuffer, 3> buffers_of(ParameterStore& store) {
  return {{{"model.", store.master()},
           {"optimizer.m.", store.moment1()},
           {"optimizer.v.", store.moment2()}}};
}

Dims dims_of(const Shape& shape) {
  Dims dims;
  for (int i = 0; i < shape.dims(); ++i) dims.push_back(shape[i]);
  return dims;
}

std::span<std::byte> bytes_of(std::span<float> buffer, const Parameter& parameter) {
  return std::as_writable_bytes(buffer.subspan(static_cast<std::size_t>(parameter.offset()),
                                               static_cast<std::size_t>(parameter.elements())));
}

/// What decides the course of training besides the weights: resumed under another one, it is
/// another run.
std::string training_digest(config::JobConfig job) {
  job.runner = {};
  job.logger = {};
  job.profiler = {};
  auto& schedule = job.learning_rate_scheduler;
  if (schedule.learning_rate_decay_iters == 0)
    schedule.learning_rate_decay_iters = job.trainer.train_iterations;
  const std::int64_t seed = job.trainer.seed;
  job.trainer = {};
  job.trainer.seed = seed;
  return sha256_hex(config::to_toml(job));
}

std::map<std::string, std::string> depends_on(const BitFacts& facts, const config::JobConfig& job) {
  return {{"isa", facts.isa},
          {"libraries", facts.libraries},
          {"build", facts.build},
          {"threads", fmt::format("{}", facts.threads)},
          {"ranks", fmt::format("{}", facts.world_size)},
          {"precision", facts.precision},
          {"training config", training_digest(job)}};
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

Result<SavedCheckpoint> Checkpointer::write(const TrainingProgress& progress) {
  const auto begin = std::chrono::steady_clock::now();
  if (!folder_) {
    SORTIE_ASSIGN_OR_RETURN(folder_, CheckpointStore::open(job_.trainer.save_dir, run_id_));
  }
  std::vector<PieceToWrite> pieces;
  std::uint64_t bytes = 0;
  for (const NamedBuffer& buffer : buffers_of(store_)) {
    for (const auto& parameter : store_.parameters()) {
      const Dims shape = dims_of(parameter->spec().shape);
      const auto data = bytes_of(buffer.values, *parameter);
      pieces.push_back(
          {buffer.prefix + parameter->name(), StorageType::f32, shape, Piece::whole(shape), data});
      bytes += data.size();
    }
  }
  Manifest manifest;
  manifest.run_id = run_id_;
  manifest.step = progress.step;
  manifest.consumed_samples = static_cast<std::uint64_t>(progress.consumed_samples);
  manifest.tokens =
      static_cast<std::uint64_t>(progress.consumed_samples * job_.model.sequence_length);
  manifest.seed = static_cast<std::uint64_t>(job_.trainer.seed);
  manifest.created = std::time(nullptr);
  manifest.world_size = facts_.world_size;
  manifest.config = config::to_toml(job_);
  manifest.config_digest = training_digest(job_);
  manifest.counters = {{"updates", progress.updates},
                       {"consecutive_skips", progress.consecutive_skips}};
  manifest.depends_on = depends_on(facts_, job_);

  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path folder, folder_->begin(progress.step, bytes));
  auto shard = write_shard(folder, 0, 1, pieces);
  if (shard)
    if (auto carried = carry_import_notes(notes_from_, folder); !carried)
      shard = std::unexpected(std::move(carried).error());
  auto path = shard ? folder_->commit(folder, std::move(manifest), {*shard})
                    : Result<std::filesystem::path>(std::unexpected(shard.error()));
  if (!path) {
    if (auto abandoned = folder_->abandon(folder); !abandoned)
      log::warning("{}", abandoned.error().message);
    return std::unexpected(std::move(path).error());
  }
  notes_from_ = *path;
  SORTIE_TRY(folder_->retain(job_.trainer.keep_last));
  return SavedCheckpoint{
      *path, static_cast<std::int64_t>(bytes),
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
}

Result<SavedCheckpoint> Checkpointer::save(const TrainingProgress& progress) {
  SavedCheckpoint saved;
  Result<> outcome;
  if (communicator_.rank() == 0) {
    if (auto written = write(progress))
      saved = std::move(*written);
    else
      outcome = std::unexpected(std::move(written).error());
  }
  SORTIE_TRY(share_outcome(communicator_, outcome));
  return saved;
}

/// Rank 0: the checkpoint to load and its state into the flat buffers; nothing when there is none.
Result<std::optional<LoadedCheckpoint>> Checkpointer::read() {
  const bool named = !job_.trainer.load_dir.empty();
  const std::filesystem::path place = named ? job_.trainer.load_dir : job_.trainer.save_dir;
  if (place.empty()) return std::nullopt;
  std::filesystem::path folder = place;
  std::error_code ignored;
  if (!named || !std::filesystem::exists(place / kCommitFile, ignored)) {
    SORTIE_ASSIGN_OR_RETURN(const LatestCheckpoint latest, find_latest(place, CheckDepth::hashes));
    for (const std::string& text : latest.skipped) log::warning("checkpoint skipped: {}", text);
    if (!latest.entry) {
      if (!named) return std::nullopt;
      return fail(ErrorCode::checkpoint, fmt::format("trainer.load_dir {}: no committed checkpoint "
                                                     "in it; `sortie-train checkpoint ls {}` shows "
                                                     "what is there",
                                                     place.string(), place.string()));
    }
    folder = latest.entry->folder;
  }
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::open(folder, CheckDepth::hashes));
  for (const NamedBuffer& buffer : buffers_of(store_)) {
    // Imported weights come without moments, which then start at zero.
    if (buffer.prefix != std::string_view("model.") && reader.manifest().run_id == "import")
      continue;
    for (const auto& parameter : store_.parameters()) {
      const Dims shape = dims_of(parameter->spec().shape);
      SORTIE_TRY(reader.read(buffer.prefix + parameter->name(), StorageType::f32, shape,
                             Piece::whole(shape), bytes_of(buffer.values, *parameter)));
    }
  }
  const Manifest& manifest = reader.manifest();
  LoadedCheckpoint loaded;
  loaded.path = folder;
  notes_from_ = folder;
  const auto counter = [&](const char* name) {
    const auto it = manifest.counters.find(name);
    return it == manifest.counters.end() ? 0 : it->second;
  };
  loaded.progress = {manifest.step, static_cast<std::int64_t>(manifest.consumed_samples),
                     counter("updates"), counter("consecutive_skips")};
  loaded.differences = fmt::format(
      "{}", fmt::join(differences(manifest.depends_on, depends_on(facts_, job_)), ", "));
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

  std::array<std::int64_t, 5> header{};
  if (loaded)
    header = {1, loaded->progress.step, loaded->progress.consumed_samples, loaded->progress.updates,
              loaded->progress.consecutive_skips};
  communicator_.broadcast(std::as_writable_bytes(std::span(header)), 0);
  if (header[0] == 0) return std::nullopt;
  for (const NamedBuffer& buffer : buffers_of(store_))
    communicator_.broadcast(std::as_writable_bytes(buffer.values), 0);
  if (!loaded) {
    loaded.emplace();
    loaded->progress = {header[1], header[2], header[3], header[4]};
  }
  return loaded;
}

}  // namespace sortie::trainer
