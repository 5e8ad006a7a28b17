// Checkpointer: saving. SaveThread writes files. Only the calling thread issues collectives,
// because a communicator belongs to one thread.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "common/base/elapsed.h"
#include "common/base/log.h"
#include "common/config/load.h"
#include "common/cpu/cpu_list.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/hf/import.h"
#include "trainer/ops/products.h"
#include "trainer/state/checkpoint_state.h"
#include "trainer/state/checkpointer.h"
#include "trainer/state/rank_texts.h"
#include "trainer/state/state_view.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

std::vector<PieceToWrite> pieces_to_write(const std::vector<StatePiece>& share) {
  std::vector<PieceToWrite> pieces;
  for (const StatePiece& piece : share)
    pieces.push_back({.name = piece.name,
                      .type = piece.type,
                      .shape = piece.shape,
                      .piece = piece.piece,
                      .data = std::span<const std::byte>(piece.bytes)});
  return pieces;
}

}  // namespace

/// Whether saves are due before the last step. Training waits for the last one, which needs no
/// copy.
bool Checkpointer::saves_between() const {
  const config::TrainerConfig& config = job_.trainer;
  return !config.save_dir.empty() &&
         (config.save_interval > 0 || (config.keep_best && config.eval_interval > 0));
}

/// Returns the pieces that this rank writes: those that it alone has, and a share of those that its
/// replicas have too.
std::vector<StatePiece> Checkpointer::own_share(const std::vector<StatePiece>& all) const {
  if (!writes()) return {};
  if (!shared_) return all;
  std::vector<StatePiece> dense, experts, share;
  for (const StatePiece& piece : all) {
    if (!owns(*piece.parameter) || piece.repeated) continue;
    const bool apart = store_.held_by(*piece.parameter) == ReduceGroup::expert;
    (piece.alone ? share : apart ? experts : dense).push_back(piece);
  }
  const auto add = [&share](const std::vector<StatePiece>& pieces, const Communicator& replicas) {
    const std::vector<StatePiece> own = share_of(pieces, static_cast<std::size_t>(replicas.rank()),
                                                 static_cast<std::size_t>(replicas.size()));
    share.insert(share.end(), own.begin(), own.end());
  };
  add(dense, layout_.replicas());
  add(experts, layout_.expert_replicas());
  return share;
}

StatePiece Checkpointer::momentum_of(int member, const StatePiece& piece,
                                     std::vector<std::vector<float>>& room) {
  StatePiece other = piece;
  other.name = momentum_prefix(member) + piece.parameter->name();
  other.bytes = std::as_writable_bytes(std::span(room.emplace_back(floats_in(piece.bytes).size())));
  other.memory = nullptr;
  return other;
}

/// Sends the momenta of the other members to rank 0 if it writes for all. Returns their pieces,
/// with the values in `room`. Collective.
std::vector<StatePiece> Checkpointer::gather_momenta(const std::vector<StatePiece>& all,
                                                     std::vector<std::vector<float>>& room) {
  std::vector<StatePiece> gathered;
  if (shared_ || members() == 1) return gathered;
  for (int member = 1; member < members(); ++member)
    for (const StatePiece& piece : all) {
      if (!piece.alone) continue;
      if (communicator_.rank() == member) send_values(communicator_, piece, 0);
      if (communicator_.rank() != 0) continue;
      StatePiece& other = gathered.emplace_back(momentum_of(member, piece, room));
      receive_values(communicator_, other, member);
    }
  return gathered;
}

/// If compute threads fill the CPUs, they wait for each other at every barrier: the CPU time that a
/// save takes from one of them is lost to all.
double Checkpointer::cores_for_saves() const {
  constexpr double kShareOfACore = 0.1;
  const std::int64_t busy = facts_.threads * ranks_of_host_;
  const bool one_is_free = busy < static_cast<std::int64_t>(cpu::allowed_cpus().size());
  const bool on_gpu = context_.device().kind == DeviceKind::cuda;
  return on_gpu || one_is_free ? 0.0 : kShareOfACore;
}

std::string Checkpointer::reserve_snapshot() {
  thread_.limit_to(cores_for_saves());
  if (!job_.trainer.async_save || !saves_between()) return "";
  Result<std::string> mine;
  std::uint64_t bytes = bytes_of(own_share(StateView(store_).pieces(TiedCopies::leave_out))) +
                        static_cast<std::uint64_t>(extras_.most) * sizeof(float);
  if (!shared_ && writes())  // momenta of the other members
    bytes += static_cast<std::uint64_t>(members() - 1) *
             static_cast<std::uint64_t>(store_.moment1().elements()) * sizeof(float);
  if (auto taken = snapshot_.allocate(bytes, ranks_of_host_, context_.device()); !taken)
    mine = std::unexpected(std::move(taken).error());
  const auto all = communicator_.all_gather(pack({mine}));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (const auto told = unpack(all[rank]); !told.front())
      return fmt::format(
          "trainer.async_save: training stops while checkpoints are written: rank "
          "{}: {}",
          rank, told.front().error().message);
  return "";
}

/// Rank 0: returns the store of a series; opens it on first use.
Result<CheckpointStore*> Checkpointer::store_of(Series series) {
  const bool best = series == Series::best;
  std::optional<CheckpointStore>& store = best ? best_ : folder_;
  const fs::path save_dir = job_.trainer.save_dir;
  if (!store) {
    SORTIE_ASSIGN_OR_RETURN(
        store, CheckpointStore::open(best ? save_dir / kBestFolder : save_dir, claimant_));
  }
  return &*store;
}

Manifest Checkpointer::make_manifest(const TrainingProgress& progress) const {
  Manifest manifest;
  manifest.run_id = claimant_.run_id;
  manifest.first_run_id = first_run_id();
  manifest.lineage = start_.lineage;
  manifest.origin = start_.origin;
  if (start_.named_step > 0) manifest.counters[kNamedStep] = start_.named_step;
  record_progress(progress, manifest);
  manifest.rollbacks = rollbacks_;
  manifest.tokens =
      static_cast<std::uint64_t>(progress.consumed_samples * job_.model.sequence_length);
  manifest.seed = static_cast<std::uint64_t>(job_.trainer.seed);
  manifest.created = std::time(nullptr);
  manifest.world_size = facts_.world_size;
  manifest.config = config::to_toml(job_);
  manifest.config_digest = training_digest(job_);
  manifest.depends_on = depends_on(facts_);
  manifest.product_choices = ops::product_choices(context_);
  return manifest;
}

/// Begins a save: rank 0 creates the folders; the state is copied if that is wanted and every rank
/// has the memory; the thread starts. Returns whether it writes from a copy.
bool Checkpointer::launch(const TrainingProgress& progress, const std::vector<Series>& series,
                          Source wanted) {
  SORTIE_CHECK(!flight_, "a save is under way");
  flight_.emplace();
  Flight& flight = *flight_;
  flight.begin = Clock::now();
  flight.step = progress.step;
  flight.series = series;
  flight.state = std::make_unique<StateView>(store_);
  const std::vector<StatePiece> all = flight.state->pieces(TiedCopies::leave_out);
  std::vector<StatePiece> share = own_share(all);
  for (StatePiece& piece : gather_momenta(all, flight.momenta)) share.push_back(std::move(piece));
  if (extras_.to_save && writes())
    for (ExtraPiece& extra : extras_.to_save())
      share.push_back({.name = std::move(extra.name),
                       .shape = std::move(extra.shape),
                       .piece = std::move(extra.piece),
                       .bytes = std::as_writable_bytes(extra.values)});
  flight.bytes = static_cast<std::int64_t>(state_bytes_);

  // Each rank reports whether it has the memory for a copy; rank 0 also sends the folders.
  std::vector<Result<std::string>> mine = {""};
  if (bytes_of(share) > snapshot_.bytes()) mine[0] = fail(ErrorCode::unsupported, "no memory");
  if (communicator_.rank() == 0) {
    if (start_.lineage.empty()) start_.lineage = new_lineage();
    flight.manifest = make_manifest(progress);
    for (const Series one : series) {
      Result<CheckpointStore*> store = store_of(one);
      const Result<fs::path> folder = store ? (*store)->begin(progress.step, state_bytes_)
                                            : std::unexpected(std::move(store).error());
      mine.push_back(folder ? Result<std::string>(folder->string())
                            : std::unexpected(folder.error()));
    }
  }
  const std::vector<std::string> told = communicator_.all_gather(pack(mine));
  const bool copied =
      wanted == Source::snapshot && std::ranges::all_of(told, [](const std::string& text) {
        return unpack(text)[0].has_value();
      });
  const std::vector<Result<std::string>> folders = unpack(told[0]);
  for (std::size_t i = 1; i < folders.size(); ++i)
    flight.folders.push_back(folders[i] ? Result<fs::path>(*folders[i])
                                        : std::unexpected(folders[i].error()));
  if (copied) {
    snapshot_.take(context_, share);
    flight.state.reset();
    flight.momenta.clear();
  } else {
    flight.on_host = copy_to_host(context_, share, snapshot_, flight.copy);
  }
  flight.pieces = pieces_to_write(share);
  flight.priority = copied ? SaveThread::Priority::low : SaveThread::Priority::normal;
  if (writes())
    thread_.start(flight.priority, [this, &flight] {
      write_parts(flight);
      if (writers() == 1) commit(flight, {pack(flight.reports)});
    });
  return copied;
}

/// On the thread: writes this rank's shard of each series.
void Checkpointer::write_parts(Flight& flight) {
  for (const Result<fs::path>& folder : flight.folders) {
    if (folder && !flight.on_host)
      flight.reports.emplace_back(std::unexpected(flight.on_host.error()));
    else if (folder)
      flight.reports.push_back(write_part(flight, *folder));
    else
      flight.reports.emplace_back(std::unexpected(folder.error()));
  }
}

Result<std::string> Checkpointer::write_part(const Flight& flight, const fs::path& folder) {
  const auto index = shared_ ? static_cast<std::size_t>(communicator_.rank()) : 0;
  // In the background the page cache is bypassed: copying into it would cost the cores that
  // training computes on. A save that training waits for uses it, because a restart soon reads the
  // files.
  const bool in_background = flight.priority == SaveThread::Priority::low;
  SORTIE_ASSIGN_OR_RETURN(const ShardInfo shard,
                          write_shard(folder, index, writers(), flight.pieces,
                                      {.caching = in_background ? Caching::bypassed : Caching::kept,
                                       .allowance = thread_.allowance()}));
  if (index == 0) {
    SORTIE_TRY(carry_import_notes(notes_from_, folder));
    SORTIE_TRY(tokenizer_.files ? write_tokenizer_files(*tokenizer_.files, folder)
                                : carry_tokenizer_files(notes_from_, folder));
  }
  return serialize(shard);
}

/// Rank 0, on the thread: commits what all ranks have written.
void Checkpointer::commit(Flight& flight, const std::vector<std::string>& reports) {
  std::vector<std::vector<Result<std::string>>> by_rank;
  for (const std::string& text : reports) by_rank.push_back(unpack(text));
  for (std::size_t i = 0; i < flight.series.size(); ++i)
    flight.outcomes.push_back({flight.step, flight.series[i], commit_one(flight, i, by_rank)});
}

Result<SavedCheckpoint> Checkpointer::commit_one(
    Flight& flight, std::size_t index,
    const std::vector<std::vector<Result<std::string>>>& reports) {
  if (!flight.folders[index]) return std::unexpected(flight.folders[index].error());
  const bool best = flight.series[index] == Series::best;
  CheckpointStore& store = best ? *best_ : *folder_;
  const fs::path& folder = *flight.folders[index];
  std::vector<ShardInfo> shards;
  Result<> written;
  for (std::size_t rank = 0; rank < reports.size() && written; ++rank) {
    const Result<std::string>& report = reports[rank][index];
    Result<ShardInfo> shard =
        report ? parse_shard_info(*report) : Result<ShardInfo>(std::unexpected(report.error()));
    if (shard)
      shards.push_back(std::move(*shard));
    else
      written = std::unexpected(
          rank == 0 ? std::move(shard).error()
                    : with_context(std::move(shard).error(), fmt::format("rank {}", rank)));
  }
  Result<fs::path> path = written ? store.commit(folder, flight.manifest, shards)
                                  : std::unexpected(std::move(written).error());
  if (!path) {
    if (auto abandoned = store.abandon(folder); !abandoned)
      log::warning("{}", abandoned.error().message);
    return std::unexpected(std::move(path).error());
  }
  notes_from_ = *path;
  SavedCheckpoint saved;
  saved.path = std::move(*path);
  saved.bytes = flight.bytes;
  saved.suspect = flight.manifest.suspect;
  const Result<> pruned = best ? store.keep_only(flight.step)
                               : store.retain(flight.step, job_.trainer.keep_last,
                                              scrubber_ ? scrubber_->newest_good() : 0);
  if (!pruned)
    saved.warning = fmt::format("{}: older checkpoints could not be removed: {}",
                                store.save_dir().string(), pruned.error().message);
  saved.seconds = seconds_since(flight.begin);
  return saved;
}

void Checkpointer::start_scrubbing() {
  if (!folder_ || job_.trainer.scrub_interval.count() == 0) return;
  scrubber_ = std::make_unique<Scrubber>(
      CheckpointStore::join(job_.trainer.save_dir, claimant_, token_), job_.trainer.scrub_interval);
}

void Checkpointer::begin_save(const TrainingProgress& progress, const std::vector<Series>& series) {
  const auto begin = Clock::now();
  std::vector<Outcome> ended = finish();
  if (!launch(progress, series, job_.trainer.async_save ? Source::snapshot : Source::live))
    for (Outcome& outcome : finish()) ended.push_back(std::move(outcome));
  ended_ = std::move(ended);
  if (flight_) flight_->stall_seconds = seconds_since(begin);
}

bool Checkpointer::has_written() const {
  return flight_ && writers() > 1 && !flight_->committing && thread_.done();
}

void Checkpointer::commit_written() {
  const auto begin = Clock::now();
  Flight& flight = *flight_;
  thread_.wait();
  std::vector<std::string> reports = communicator_.all_gather(pack(flight.reports));
  flight.committing = true;
  flight.stall_seconds += seconds_since(begin);
  if (communicator_.rank() == 0)
    thread_.start(flight.priority,
                  [this, &flight, reports = std::move(reports)] { commit(flight, reports); });
}

/// Returns the outcomes of the current save if the thread has ended it.
std::vector<Checkpointer::Outcome> Checkpointer::take_from_flight() {
  if (!flight_ || !thread_.done()) return {};
  for (Outcome& outcome : flight_->outcomes)
    if (outcome.saved)
      outcome.saved->stall_seconds = flight_->priority == SaveThread::Priority::low
                                         ? flight_->stall_seconds
                                         : outcome.saved->seconds;
  return std::exchange(flight_->outcomes, {});
}

std::vector<Checkpointer::Outcome> Checkpointer::take_outcomes() {
  std::vector<Outcome> outcomes = std::exchange(ended_, {});
  for (Outcome& outcome : take_from_flight()) outcomes.push_back(std::move(outcome));
  return outcomes;
}

std::vector<Checkpointer::Outcome> Checkpointer::finish() {
  std::vector<Outcome> outcomes = std::exchange(ended_, {});
  if (!flight_) return outcomes;
  if (writers() > 1 && !flight_->committing) commit_written();
  thread_.wait();
  std::vector<Outcome> last = take_from_flight();
  // All ranks get the outcomes; only rank 0 has the paths.
  std::vector<Result<std::string>> texts;
  for (const Outcome& outcome : last)
    texts.push_back(outcome.saved ? Result<std::string>(outcome.series == Series::best ? "b" : "r")
                                  : std::unexpected(outcome.saved.error()));
  const std::string told = communicator_.all_gather(pack(texts))[0];
  if (communicator_.rank() != 0)
    for (const Result<std::string>& text : unpack(told))
      last.push_back(
          {flight_->step, text && *text == "b" ? Series::best : Series::regular,
           text ? Result<SavedCheckpoint>(SavedCheckpoint{}) : std::unexpected(text.error())});
  flight_.reset();
  for (Outcome& outcome : last) outcomes.push_back(std::move(outcome));
  return outcomes;
}

Result<SavedCheckpoint> Checkpointer::save(const TrainingProgress& progress, Series series) {
  std::vector<Outcome> earlier = finish();
  launch(progress, {series}, Source::live);
  std::vector<Outcome> outcomes = finish();
  SORTIE_CHECK(outcomes.size() == 1, "{} outcomes of one save", outcomes.size());
  ended_ = std::move(earlier);
  return std::move(outcomes.front().saved);
}

}  // namespace sortie::trainer
