#include "trainer/state/memory_checkpoints.h"

#include <fmt/core.h>
#include <sys/statvfs.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/base/elapsed.h"
#include "common/base/log.h"
#include "trainer/ops/host_copy.h"
#include "trainer/state/rank_texts.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

ShardInfo describe_share(const ShareName& name, const std::vector<StatePiece>& pieces) {
  ShardInfo shard;
  shard.file = share_data_path("", name).string();
  shard.bytes = bytes_of(pieces);
  for (const StatePiece& piece : pieces)
    shard.pieces.push_back({.key = fmt::format("{}@{}", piece.name, shard.pieces.size()),
                            .name = piece.name,
                            .type = piece.type,
                            .shape = piece.shape,
                            .piece = piece.piece});
  return shard;
}

}  // namespace

MemoryCheckpoints::MemoryCheckpoints(fs::path folder, Claimant claimant, ParameterStore& store,
                                     Communicator& communicator, ExecutionContext& context)
    : folder_(std::move(folder)),
      claimant_(std::move(claimant)),
      store_(store),
      communicator_(communicator),
      context_(context) {}

Result<> MemoryCheckpoints::prepare() {
  Result<> mine;
  std::error_code ignored;
  if (folder_.empty() || claimant_.run_id.empty())
    mine = fail(ErrorCode::config,
                "trainer.memory_checkpoint_interval: there is no holder of memory (SORTIE_MEMORY "
                "is not set): start the job with `sortie run`, or set it to 0");
  else if (!fs::is_directory(folder_, ignored))
    mine = fail(ErrorCode::io, fmt::format("trainer.memory_checkpoint_interval: {}: the folder of "
                                           "the holder of memory is gone; start the run again",
                                           folder_.string()));
  SORTIE_TRY(share_failure_of_any(communicator_, mine));
  hosts_.emplace(communicator_.all_gather(folder_.string()));
  return {};
}

std::uint64_t MemoryCheckpoints::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [name, memory] : memory_) sum += memory.bytes().size();
  return sum;
}

Result<> MemoryCheckpoints::discard() {
  thread_.wait();
  under_way_.reset();
  found_.reset();
  own_.clear();
  memory_.clear();
  tidied_ = false;
  if (!hosts_->leads(rank())) return {};
  return remove_shares_but(folder_, {});
}

/// Returns this rank's shares with their memory, which is allocated if necessary.
Result<std::vector<MemoryCheckpoints::Part>> MemoryCheckpoints::take_parts(
    char slot, const std::vector<StatePiece>& all) {
  std::vector<Part> parts;
  for (const std::size_t index : hosts_->shares_of(rank())) {
    const ShareName name{index, hosts_->ranks(), slot};
    const std::vector<StatePiece> pieces = share_of(all, index, name.count);
    const auto [at, fresh] = memory_.try_emplace(name);
    if (fresh || !at->second.is_named()) {
      SORTIE_TRY(unseal_share(folder_, name));
      auto taken = ShareMemory::take(folder_, name, bytes_of(pieces));
      if (!taken) {
        memory_.erase(at);
        return std::unexpected(std::move(taken).error());
      }
      at->second = std::move(*taken);
      // Pinned, because training waits while a GPU's state is copied there.
      if (memory_is_apart(context_.device())) {
        DeviceMemory& device = apart_memory(context_.device());
        device.pin(at->second.bytes());
        at->second.on_release([&device](std::span<std::byte> bytes) { device.unpin(bytes); });
      }
    }
    parts.push_back({{name, claimant_.attempt, {}, describe_share(name, pieces)}, &at->second});
  }
  return parts;
}

Result<> MemoryCheckpoints::reserve() {
  Result<> mine;
  if (hosts_->leads(rank())) {
    std::vector<ShareName> kept;
    if (found_)
      for (std::size_t share = 0; share < found_->snapshot.count; ++share)
        kept.push_back(found_->snapshot.name_of(share));
    mine = remove_shares_but(folder_, kept);
  }
  SORTIE_TRY(share_failure_of_any(communicator_, mine));
  const StateView state(store_);
  const std::vector<StatePiece> all = state.pieces(TiedCopies::leave_out);
  if (elements_of(all) != elements_of(state.pieces(TiedCopies::include)))
    mine = fail(ErrorCode::unsupported,
                "trainer.memory_checkpoint_interval: not with parameters that repeat those of "
                "another rank; set it to 0");
  std::uint64_t bytes = 0;
  if (mine) {
    auto parts = take_parts(next_slot_, all);
    if (parts)
      for (const Part& part : *parts) bytes += part.share.shard.bytes;
    else
      mine = fail(ErrorCode::unsupported,
                  "trainer.memory_checkpoint_interval: " + parts.error().message +
                      "; use more hosts, a larger /dev/shm, or set it to 0");
  }
  SORTIE_TRY(share_failure_of_any(communicator_, mine));
  // The second slot is allocated with the second snapshot: until then the files of an earlier
  // attempt there are kept.
  const auto others = communicator_.all_gather(found_ ? "0" : fmt::format("{}", bytes));
  std::uint64_t needed = 0;
  for (const std::size_t one : hosts_->ranks_of(hosts_->host_of(rank())))
    needed += std::stoull(others[one]);
  struct statvfs info {};
  if (::statvfs(folder_.c_str(), &info) == 0) {
    const std::uint64_t free = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
    if (free < needed)
      mine = fail(ErrorCode::unsupported,
                  fmt::format("trainer.memory_checkpoint_interval: {}: {} bytes are free, but {} "
                              "more are needed for a second snapshot; use more hosts, a larger "
                              "/dev/shm, or set it to 0",
                              folder_.string(), free, needed));
  }
  return share_failure_of_any(communicator_, mine);
}

Result<> MemoryCheckpoints::copy(std::vector<Part>& parts, const std::vector<StatePiece>& all) {
  std::vector<ops::HostCopy> copies;
  std::vector<StatePiece> apart;
  std::vector<std::span<std::byte>> places;
  for (const Part& part : parts) {
    SORTIE_TRY(unseal_share(folder_, part.share.name));
    std::byte* at = part.memory->bytes().data();
    for (const StatePiece& piece : share_of(all, part.share.name.index, part.share.name.count)) {
      const std::size_t bytes = piece.bytes.size();
      if (piece.memory == nullptr) {
        copies.push_back({piece.bytes.data(), at, bytes});
      } else {
        apart.push_back(piece);
        places.emplace_back(at, bytes);
      }
      at += bytes;
    }
  }
  read_values(apart, places);
  ops::copy_past_caches(context_, copies);
  return {};
}

void MemoryCheckpoints::begin(const Manifest& manifest) {
  SORTIE_CHECK(!under_way_, "a snapshot of step {} is under way", under_way_->step);
  const auto begin = std::chrono::steady_clock::now();
  under_way_ = Snapshot{.step = manifest.step};
  const StateView state(store_);
  const std::vector<StatePiece> all = state.pieces(TiedCopies::leave_out);
  auto parts = take_parts(next_slot_, all);
  Result<> copied = parts ? copy(*parts, all) : std::unexpected(parts.error());
  if (!copied) {
    failure_ = copied.error().message;
    return;
  }
  for (const Part& part : *parts)
    under_way_->bytes += static_cast<std::int64_t>(part.share.shard.bytes);
  thread_.start(SaveThread::Priority::low,
                [this, parts = std::move(*parts), manifest = Manifest(manifest)]() mutable {
                  write(std::move(parts), std::move(manifest));
                });
  under_way_->stall_seconds = seconds_since(begin);
}

/// On the thread: hashes and seals what was copied.
void MemoryCheckpoints::write(std::vector<Part> parts, Manifest manifest) {
  for (Part& part : parts) {
    part.share.shard.sha256 = sha256_hex(part.memory->bytes());
    part.share.manifest = manifest;
    if (auto sealed = seal_share(folder_, part.share); !sealed) {
      failure_ = std::move(sealed).error().message;
      return;
    }
  }
}

bool MemoryCheckpoints::sealed() {
  if (!under_way_) return true;
  const auto begin = std::chrono::steady_clock::now();
  thread_.wait();
  under_way_->stall_seconds += seconds_since(begin);
  return failure_.empty();
}

std::optional<MemoryCheckpoints::Snapshot> MemoryCheckpoints::settle(bool by_all) {
  const std::optional<Snapshot> snapshot = std::exchange(under_way_, std::nullopt);
  // If a rank failed, the next snapshot uses the same slot: the other has the last complete one.
  if (!snapshot || !by_all) return std::nullopt;
  next_slot_ = other_slot(next_slot_);
  if (!std::exchange(tidied_, true)) {
    found_.reset();
    own_.clear();
    if (hosts_->leads(rank())) {
      std::vector<ShareName> kept;
      // Both slots: another rank may have begun the next snapshot.
      for (const std::size_t share : hosts_->shares_on(hosts_->host_of(rank())))
        for (const char slot : {'a', 'b'}) kept.push_back({share, hosts_->ranks(), slot});
      if (auto removed = remove_shares_but(folder_, kept); !removed)
        log::warning("{}", removed.error().message);
    }
  }
  return snapshot;
}

}  // namespace sortie::trainer
