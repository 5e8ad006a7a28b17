// Checkpoints in the memory of the hosts: quick to take, gone with the run; README.md has the order
// of a snapshot. All ranks call the collective functions alike, from the thread that has the
// communicator.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/memory_share.h"
#include "trainer/checkpoint/ownership.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/parallel/communicator.h"
#include "trainer/state/memory_choice.h"
#include "trainer/state/save_thread.h"
#include "trainer/state/state_view.h"
#include "trainer/tensor/context.h"

namespace sortie::trainer {

class MemoryCheckpoints {
 public:
  /// `folder`: in memory, one per host and run, kept by its holder. References must outlive it.
  MemoryCheckpoints(std::filesystem::path folder, Claimant claimant, ParameterStore& store,
                    Communicator& communicator, ExecutionContext& context);
  /// Waits for what this rank hashes.
  ~MemoryCheckpoints() = default;

  /// Every rank has a folder, and which hosts there are; collective.
  Result<> prepare();
  /// Of this rank's files.
  std::uint64_t bytes() const;
  std::size_t hosts() const { return hosts_->hosts(); }

  /// Why a snapshot is not to be taken, as rank 0 judges; "" = it may be.
  using Judge = std::function<std::string(const Manifest&)>;
  /// The newest whole snapshot of this run after step `after`, its bytes compared with their
  /// hashes: its manifest, with shards and tensors. Collective; the same on every rank. Those that
  /// were passed over are in `refused`.
  std::optional<Manifest> find(std::int64_t after, const Judge& judge,
                               std::vector<std::string>& refused);
  /// What find() has found into the buffers of every rank; collective. ErrorCode::checkpoint where
  /// it does not fit this model.
  Result<> load();

  /// After the start: drops all snapshots but the one that was found, and takes the memory of the
  /// next one. ErrorCode::unsupported where a host has not enough for two; collective.
  Result<> reserve();
  /// Drops all snapshots: they are of a course that was left. Collective only in so far as all
  /// ranks must do it.
  Result<> discard();

  /// Copies this rank's shares of the state of now, and hashes and seals them beside training. The
  /// state may change when it returns. The snapshot before must have settled.
  void begin(const Manifest& manifest);
  /// Waits until this rank's part is sealed. False: it failed; take_failure() says why.
  bool sealed();
  std::string take_failure() { return std::exchange(failure_, {}); }
  struct Snapshot {
    std::int64_t step = 0;
    std::int64_t bytes = 0;      // of this rank's shares
    double stall_seconds = 0.0;  // training stood still for this rank's
  };
  /// After every rank has said sealed(): whether all of them had, alike on every rank. The snapshot
  /// that is complete by that, once.
  std::optional<Snapshot> settle(bool by_all);
  /// A snapshot has begun and not settled.
  bool under_way() const { return under_way_.has_value(); }

 private:
  struct Part {
    SealedShare share;
    ShareMemory* memory = nullptr;
  };
  /// A snapshot with where its shares are to be read.
  struct Found {
    MemorySnapshot snapshot;
    std::vector<std::size_t> source;  // rank, by share
    std::vector<bool> everywhere;     // every host has it
    Manifest manifest;
  };

  std::size_t rank() const { return static_cast<std::size_t>(communicator_.rank()); }
  std::set<ShareCopy> check_copies(const MemorySnapshot& snapshot);
  Found plan_load(MemorySnapshot snapshot) const;
  Result<Manifest> assemble(const Found& found);
  Result<> read_share(std::size_t index, const std::vector<StatePiece>& part);
  Result<std::vector<Part>> take_parts(char slot, const std::vector<StatePiece>& all);
  Result<> copy(std::vector<Part>& parts, const std::vector<StatePiece>& all);
  void write(std::vector<Part> parts, Manifest manifest);

  const std::filesystem::path folder_;
  const Claimant claimant_;
  ParameterStore& store_;
  Communicator& communicator_;
  ExecutionContext& context_;
  std::optional<MemoryHosts> hosts_;
  std::map<ShareName, SealedShare> own_;  // that this host had when find() looked
  std::optional<Found> found_;
  std::map<ShareName, ShareMemory> memory_;  // of this rank, by share and slot
  char next_slot_ = 'a';
  std::optional<Snapshot> under_way_;
  bool tidied_ = false;  // nothing is left of earlier attempts
  std::string failure_;
  SaveThread thread_;  // the last member: it is waited for before others go
};

}  // namespace sortie::trainer
