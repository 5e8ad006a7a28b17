// Checkpoints in host memory: fast to take, lost when the run ends. README.md describes the
// sequence of a snapshot. All ranks call the collective functions in the same order, from the
// thread that owns the communicator.
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
  /// `folder`: in memory, one per host and run, kept by the run's holder (runner/memory).
  /// Referenced objects must outlive this one.
  MemoryCheckpoints(std::filesystem::path folder, Claimant claimant, ParameterStore& store,
                    Communicator& communicator, ExecutionContext& context);
  /// Waits until this rank has finished hashing.
  ~MemoryCheckpoints() = default;

  /// Checks that every rank has a folder, and finds out which ranks share a host; collective.
  Result<> prepare();
  /// Bytes of this rank's files.
  std::uint64_t bytes() const;
  std::size_t hosts() const { return hosts_->hosts(); }

  /// Decides on rank 0 whether the run may continue from a snapshot: returns why not; "" = it may.
  using Judge = std::function<std::string(const Manifest&)>;
  /// Finds the newest complete snapshot of this run after step `after`, and verifies its bytes
  /// against their hashes. Returns its manifest, with shards and tensors; nullopt if there is none.
  /// Appends to `refused` which newer ones were skipped, and why. Collective; the same result on
  /// every rank.
  std::optional<Manifest> find(std::int64_t after, const Judge& judge,
                               std::vector<std::string>& refused);
  /// Copies the snapshot that find() has found to the buffers of every rank; collective.
  /// ErrorCode::checkpoint if it does not fit this model.
  Result<> load();

  /// Call after the start: removes all snapshots except the one that was found, and allocates the
  /// memory of the next one. ErrorCode::unsupported if a host does not have enough for two;
  /// collective.
  Result<> reserve();
  /// Removes all snapshots, because they belong to an abandoned course. No communication, but all
  /// ranks must call it.
  Result<> discard();

  /// Copies this rank's shares of the current state, and then hashes and seals them in the
  /// background. The state may change once this returns. The previous snapshot must have settled.
  void begin(const Manifest& manifest);
  /// Waits until this rank's part is sealed. Returns false if that failed; take_failure() says why.
  bool sealed();
  std::string take_failure() { return std::exchange(failure_, {}); }
  struct Snapshot {
    std::int64_t step = 0;
    std::int64_t bytes = 0;      // of this rank's shares
    double stall_seconds = 0.0;  // how long training waited for this rank's part
  };
  /// Ends the snapshot that has begun. Call after all ranks have exchanged the results of sealed();
  /// `by_all`: whether all of them succeeded, the same on every rank. Returns the snapshot if it is
  /// now complete; nullopt if it failed, or none had begun.
  std::optional<Snapshot> settle(bool by_all);
  /// Whether a snapshot has begun and not settled.
  bool under_way() const { return under_way_.has_value(); }

 private:
  struct Part {
    SealedShare share;
    ShareMemory* memory = nullptr;
  };
  /// A snapshot, and where its shares are read.
  struct Found {
    MemorySnapshot snapshot;
    std::vector<std::size_t> source;  // by share: the rank that reads it
    std::vector<bool> everywhere;     // by share: every host has it
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
  std::map<ShareName, SealedShare> own_;  // shares that this host had when find() looked
  std::optional<Found> found_;
  std::map<ShareName, ShareMemory> memory_;  // of this rank, by share and slot
  char next_slot_ = 'a';
  std::optional<Snapshot> under_way_;
  bool tidied_ = false;  // the files of earlier attempts are removed
  std::string failure_;
  SaveThread thread_;  // the last member: its destructor waits before others are destroyed
};

}  // namespace sortie::trainer
