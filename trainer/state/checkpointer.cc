#include "trainer/state/checkpointer.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/log.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/nn/lora.h"
#include "trainer/samples/chat_agreement.h"
#include "trainer/state/checkpoint_state.h"
#include "trainer/state/rank_texts.h"
#include "trainer/state/saved_job.h"
#include "trainer/state/shared_folder.h"
#include "trainer/state/state_view.h"

namespace sortie::trainer {
Checkpointer::Checkpointer(const config::JobConfig& job, const BitFacts& facts,
                           ParameterStore& store, const Layout& layout, ExecutionContext& context)
    : job_(job),
      facts_(facts),
      store_(store),
      layout_(layout),
      communicator_(layout.world()),
      context_(context) {}

/// Rank 0: opens and claims the folder, and checks that it has room for the next checkpoints.
Result<> Checkpointer::open_save_dir() {
  const std::filesystem::path save_dir = job_.trainer.save_dir;
  if (save_dir.empty()) return {};
  const auto in_context = [](Error error) {
    return std::unexpected(with_context(std::move(error), "trainer.save_dir"));
  };
  auto store = CheckpointStore::open(save_dir, claimant_);
  if (!store) return in_context(std::move(store).error());
  folder_ = std::move(*store);
  // Room for a checkpoint and, while there is none yet, for the next one; the same for the best.
  const auto count_saves = [&](const CheckpointStore& folder) -> Result<> {
    SORTIE_ASSIGN_OR_RETURN(const auto entries,
                            list_checkpoints(folder.save_dir(), CheckDepth::sizes));
    saves_ += entries.empty() ? 2 : 1;
    return {};
  };
  if (auto counted = count_saves(*folder_); !counted) return in_context(counted.error());
  if (keeps_best()) {
    auto best = CheckpointStore::open(save_dir / kBestFolder, claimant_);
    if (!best) return in_context(std::move(best).error());
    best_ = std::move(*best);
    if (auto counted = count_saves(*best_); !counted) return in_context(counted.error());
  }
  if (auto room = folder_->check_room(saves_ * state_bytes_); !room)
    return in_context(std::move(room).error());
  return {};
}

/// Rank 0: chooses where the run starts, and checks that it is a checkpoint of the same model.
Result<> Checkpointer::choose() {
  SORTIE_TRY(open_save_dir());
  SORTIE_ASSIGN_OR_RETURN(start_, choose_start(job_.trainer));
  SORTIE_TRY(check_same_model(start_, job_));
  SORTIE_TRY(check_same_optimizer(start_, job_));
  if (start_.kind == StartPoint::Kind::resume) {
    SORTIE_ASSIGN_OR_RETURN(const auto file, read_rollbacks(start_.save_dir));
    rollbacks_ = rollbacks_from(*start_.manifest, file);
    SORTIE_ASSIGN_OR_RETURN(const auto own, read_rollbacks(job_.trainer.save_dir));
    // Of a rollback that was cut short. No start uses those that cannot be removed now.
    if (auto removed = folder_->discard_abandoned(own); !removed)
      log::warning("{}", removed.error().message);
  } else if (start_.kind == StartPoint::Kind::fork) {
    rollbacks_ = start_.manifest->rollbacks;
  }
  SORTIE_ASSIGN_OR_RETURN(start_notes_, check_chatml(tokenizer_, start_.folder));
  if (start_.kind == StartPoint::Kind::seed) return {};
  return check_tokenizer_of_checkpoint(tokenizer_, start_.folder);
}

/// Sends what every rank must know of rank 0's start: to skip samples, and for its own save when
/// rank 0 is gone. Collective.
Result<> Checkpointer::share_start() {
  std::vector<Result<std::string>> mine;
  if (communicator_.rank() == 0) {
    token_ = folder_ ? folder_->token() : "";
    const Manifest::Origin origin = start_.origin.value_or(Manifest::Origin{});
    mine = {to_json_text(rollbacks_),
            token_,
            start_.lineage,
            start_.first_run_id,
            origin.lineage,
            origin.folder,
            fmt::format("{}", origin.step),
            fmt::format("{}", start_.named_step)};
  }
  const auto told = unpack(communicator_.all_gather(pack(mine))[0]);
  if (communicator_.rank() == 0) return {};
  SORTIE_ASSIGN_OR_RETURN(rollbacks_, parse_rollbacks(*told[0], "rollbacks of rank 0"));
  token_ = *told[1];
  start_.lineage = *told[2];
  start_.first_run_id = *told[3];
  start_.named_step = std::stoll(*told[7]);
  if (!told[4]->empty()) start_.origin = Manifest::Origin{*told[4], std::stoll(*told[6]), *told[5]};
  return {};
}

/// Whether this rank writes a parameter, or only computes with it. A parameter that all ranks of a
/// tensor-parallel group have whole is written by the first one; one that repeats another stage's
/// is written by that stage.
bool Checkpointer::owns(const Parameter& parameter) const {
  const CutRule& cut = parameter.spec().cut;
  return parameter.spec().tied_to.empty() &&
         (cut.axis || layout_.places().of(cut.group).index == 0);
}

/// Returns the bytes of a checkpoint: what all ranks own, once per group that holds the same.
std::uint64_t Checkpointer::count_state_bytes() const {
  double bytes = 0.0;
  for (const auto& parameter : store_.parameters()) {
    const bool apart = store_.held_by(*parameter) == ReduceGroup::expert;
    const Communicator& alike = apart ? layout_.expert_replicas() : layout_.replicas();
    if (!owns(*parameter)) continue;
    const double elements = static_cast<double>(own_elements(parameter->blocks()));
    const double own = elements * sizeof(float);
    const bool moments = parameter->trained() && !store_.own_momentum();
    const double moment = elements * static_cast<double>(dtype_bytes(store_.moment_dtype()));
    if (alike.rank() == 0) bytes += own + (moments ? 2.0 * moment : 0.0);
    if (parameter->trained() && store_.own_momentum()) bytes += own;
  }
  bytes += static_cast<double>(extras_.most) * sizeof(float);
  layout_.world().all_reduce_sum({&bytes, 1});
  return static_cast<std::uint64_t>(bytes);
}

Result<> Checkpointer::count_extras() {
  const std::uint64_t before = state_bytes_;
  state_bytes_ = count_state_bytes();
  Result<> outcome;
  if (folder_ && state_bytes_ != before)
    if (auto room = folder_->check_room(saves_ * state_bytes_); !room)
      outcome = std::unexpected(with_context(std::move(room).error(), "trainer.save_dir"));
  return share_outcome(communicator_, outcome);
}

Result<> Checkpointer::prepare() {
  state_bytes_ = count_state_bytes();
  Result<> outcome;
  if (communicator_.rank() == 0) outcome = choose();
  SORTIE_TRY(share_outcome(communicator_, outcome));
  SORTIE_TRY(share_start());
  SORTIE_TRY(choose_from_memory());
  if (!job_.trainer.save_dir.empty()) {
    Result<bool> shared = all_ranks_write_to(communicator_, job_.trainer.save_dir);
    if (!shared) return std::unexpected(with_context(shared.error(), "trainer.save_dir"));
    shared_ = *shared;
    if (!shared_ && !has_weights())
      return fail(ErrorCode::config,
                  fmt::format("trainer.save_dir: {} is not one folder for all hosts, and no rank "
                              "has the whole {} to write; use a folder that hosts share",
                              job_.trainer.save_dir, state_name()));
  }
  const auto hosts = communicator_.all_gather(host_);
  ranks_of_host_ = std::ranges::count(hosts, hosts[static_cast<std::size_t>(communicator_.rank())]);
  // Low-rank updates may begin on weights that have none. Rank 0 knows only the parameters of its
  // own stage.
  std::uint8_t all = start_.manifest && layout_.size(Axis::pipeline) == 1 &&
                     std::ranges::all_of(store_.parameters(), [&](const auto& p) {
                       return start_.manifest->tensors.contains("model." + p->name());
                     });
  communicator_.broadcast(std::as_writable_bytes(std::span(&all, 1)), 0);
  loads_all_values_ = all != 0;
  return {};
}

namespace {

Error never_trained(const CheckpointReader& reader, const StatePiece& piece) {
  return {ErrorCode::checkpoint,
          fmt::format("{} was not trained when the checkpoint of step {} was saved, so the "
                      "optimizer has no state for it; freeze what was frozen, or start a new run "
                      "with trainer.load_weights_from",
                      piece.parameter->name(), reader.manifest().step)};
}

/// Returns the number of members that have saved their own momentum; 0 if none has.
int saved_members(const Manifest& manifest) {
  const auto saved = [&](int member) {
    const std::string prefix = momentum_prefix(member);
    const auto found = manifest.tensors.lower_bound(prefix);
    return found != manifest.tensors.end() && found->first.starts_with(prefix);
  };
  int members = 0;
  while (saved(members)) ++members;
  return members;
}

/// Says how a load converts AdamW's moments; "" if it does not, or there are none.
std::string converted_moments(const Manifest& manifest, const ParameterStore& store) {
  constexpr std::string_view kFirst = "optimizer.m.";
  const auto saved = manifest.tensors.lower_bound(std::string(kFirst));
  if (saved == manifest.tensors.end() || !saved->first.starts_with(kFirst)) return "";
  const bool were_narrow = saved->second.type == StorageType::bf16;
  const bool are_narrow = store.moment_dtype() == DType::bf16;
  if (were_narrow == are_narrow) return "";
  return are_narrow ? "optimizer.moments: was f32, is bf16: the moments are rounded to it"
                    : "optimizer.moments: was bf16, is f32: the moments go on with those bits";
}

/// Reads a member's own momentum. If another number of members has saved theirs, it becomes an
/// equal part of the sum of theirs: the total of all members does not change.
Result<> read_momentum(CheckpointReader& reader, const StatePiece& piece,
                       const ParameterStore::Member& member) {
  const std::string parameter = piece.name.substr(momentum_prefix(member.index).size());
  const auto name_of = [&](int one) { return momentum_prefix(one) + parameter; };
  int saved = 0;
  while (reader.find(name_of(saved)) != nullptr) ++saved;
  if (saved == 0) return std::unexpected(never_trained(reader, piece));
  return fill_values(piece, [&](const Piece& part, std::span<std::byte> bytes) -> Result<> {
    const std::span<float> values = floats_in(bytes);
    if (saved == member.count) return reader.read_f32(piece.name, piece.shape, part, values);
    std::ranges::fill(values, 0.0f);
    std::vector<float> one(values.size());
    for (int other = 0; other < saved; ++other) {
      SORTIE_TRY(reader.read_f32(name_of(other), piece.shape, part, one));
      for (std::size_t i = 0; i < one.size(); ++i) values[i] += one[i];
    }
    for (float& value : values) value /= static_cast<float>(member.count);
    return {};
  });
}

/// Reads a piece. Low-rank updates that the checkpoint lacks keep their initial values: they begin.
/// Moments of what was not trained when the checkpoint was saved are an error.
Result<> read_piece(CheckpointReader& reader, const StatePiece& piece) {
  const bool there = reader.find(piece.name) != nullptr;
  if (!there && !piece.moment && is_lora_name(piece.parameter->name())) return {};
  if (!there && piece.moment) return std::unexpected(never_trained(reader, piece));
  return fill_values(piece, [&](const Piece& part, std::span<std::byte> bytes) {
    return reader.read_as(piece.name, piece.type, piece.shape, part, bytes);
  });
}

}  // namespace

/// Reads this rank's state from a checkpoint in a folder that it sees.
Result<> Checkpointer::read_state(const std::filesystem::path& folder, bool weights_alone) {
  // Its bytes were verified when it was chosen.
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::open(folder, CheckDepth::sizes));
  // Imported weights have no moments; these then start at zero.
  const bool without_moments = weights_alone || reader.manifest().run_id == kImportRun;
  const StateView state(store_);
  for (const StatePiece& piece : state.pieces(TiedCopies::include))
    if (piece.moment && without_moments)
      continue;
    else if (piece.moment && store_.own_momentum())
      SORTIE_TRY(read_momentum(reader, piece, *store_.own_momentum()));
    else
      SORTIE_TRY(read_piece(reader, piece));
  if (weights_alone || !extras_.to_load) return {};
  for (const ExtraPiece& piece : extras_.to_load())
    if (reader.find(piece.name) != nullptr)
      SORTIE_TRY(reader.read_f32(piece.name, piece.shape, piece.piece, piece.values));
  return {};
}

/// Rank 0: reads the momenta of the other members, member by member, into `room`; imported weights
/// have none.
Result<std::vector<StatePiece>> Checkpointer::read_momenta(const std::filesystem::path& folder,
                                                           std::vector<std::vector<float>>& room) {
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::open(folder, CheckDepth::sizes));
  const bool none = reader.manifest().run_id == kImportRun;
  const StateView state(store_);
  std::vector<StatePiece> momenta;
  for (int member = 1; member < members(); ++member)
    for (const StatePiece& piece : state.pieces(TiedCopies::include)) {
      if (!piece.alone) continue;
      const StatePiece& other = momenta.emplace_back(momentum_of(member, piece, room));
      if (!none) SORTIE_TRY(read_momentum(reader, other, {member, members()}));
    }
  return momenta;
}

/// Loads the state of rank 0's checkpoint into the store of every rank; collective.
Result<> Checkpointer::load_state(const std::filesystem::path& folder, bool weights_alone) {
  const bool own_folder = job_.trainer.save_dir.empty() || shared_;
  const bool each_reads = all_ranks_see(communicator_, own_folder ? folder : "");
  if (!each_reads && !has_weights())
    return fail(ErrorCode::config,
                fmt::format("trainer.load_dir, trainer.load_weights_from: not all ranks see the "
                            "checkpoint, and each reads its own part of the {}; use a folder that "
                            "hosts share",
                            state_name()));
  Result<> outcome;
  if (each_reads || communicator_.rank() == 0) outcome = read_state(folder, weights_alone);
  std::vector<std::vector<float>> room;
  std::vector<StatePiece> momenta;  // of the other members, which rank 0 reads for them
  const bool for_members = !each_reads && !weights_alone && members() > 1;
  if (for_members && communicator_.rank() == 0 && outcome) {
    if (auto read = read_momenta(folder, room))
      momenta = std::move(*read);
    else
      outcome = std::unexpected(std::move(read).error());
  }
  SORTIE_TRY(share_failure_of_any(communicator_, outcome));
  if (!each_reads) {
    SORTIE_CHECK(!store_.sharded(), "replicas of a sharded store have other values");
    const StateView state(store_);
    const std::vector<StatePiece> all = state.pieces(TiedCopies::include);
    for (const StatePiece& piece : all)
      if (!piece.alone && !(piece.moment && weights_alone))
        broadcast_values(communicator_, piece, 0);
    if (!for_members) return {};
    auto next = momenta.begin();
    for (int member = 1; member < members(); ++member)
      for (const StatePiece& piece : all) {
        if (!piece.alone) continue;
        if (communicator_.rank() == 0) send_values(communicator_, *next++, member);
        if (communicator_.rank() == member) receive_values(communicator_, piece, 0);
      }
  }
  return {};
}

/// Rank 0: describes the chosen checkpoint without its tensors; nullopt if the run starts from the
/// seed.
Result<std::optional<LoadedCheckpoint>> Checkpointer::describe() {
  if (start_.kind == StartPoint::Kind::seed) return std::nullopt;
  const Manifest& manifest = *start_.manifest;
  LoadedCheckpoint loaded;
  loaded.kind = start_.kind;
  loaded.path = start_.folder;
  loaded.reason = start_.reason;
  if (!from_memory_) notes_from_ = start_.folder;
  if (start_.kind == StartPoint::Kind::weights) return loaded;
  loaded.progress = recorded_progress(manifest);
  // A fork has its own save_dir, with no best checkpoint yet.
  const bool fork = start_.kind == StartPoint::Kind::fork;
  SORTIE_ASSIGN_OR_RETURN(loaded.progress.best,
                          settle_best(fork ? BestValidation{} : loaded.progress.best));
  if (manifest.run_id != kImportRun) {
    SORTIE_ASSIGN_OR_RETURN(loaded.differences,
                            changes_since(manifest, start_.folder, facts_, job_));
    if (const int saved = saved_members(manifest);
        store_.own_momentum() && saved > 0 && saved != members())
      loaded.differences.push_back(
          fmt::format("momentum: those of {} members are added up, and {} have equal parts of it",
                      saved, members()));
    if (const std::string text = converted_moments(manifest, store_); !text.empty())
      loaded.differences.push_back(text);
  }
  return loaded;
}

Result<std::optional<LoadedCheckpoint>> Checkpointer::load() {
  std::optional<LoadedCheckpoint> loaded;
  Result<> outcome;
  if (communicator_.rank() == 0) {
    if (auto found = describe())
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
  const std::filesystem::path folder = communicator_.all_gather(start_.folder.string())[0];
  SORTIE_TRY(from_memory_ ? memory_->load()
                          : load_state(folder, header.kind == StartPoint::Kind::weights));
  if (!loaded) {
    loaded.emplace();
    loaded->progress = header.progress;
    loaded->kind = header.kind;
  }
  return loaded;
}

std::string Checkpointer::saved_product_choices() const {
  const bool goes_on =
      start_.kind == StartPoint::Kind::resume || start_.kind == StartPoint::Kind::fork;
  return goes_on && start_.manifest ? start_.manifest->product_choices : "";
}

}  // namespace sortie::trainer
