// MemoryCheckpoints: the restart. Finds out which snapshots the hosts have, and copies one to the
// buffers of every rank.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/log.h"
#include "trainer/state/memory_checkpoints.h"
#include "trainer/state/rank_texts.h"
#include "trainer/storage/mapped_file.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

bool same_pieces(const std::vector<StoredPiece>& stored, const std::vector<StatePiece>& pieces) {
  return std::ranges::equal(stored, pieces, [](const StoredPiece& a, const StatePiece& b) {
    return a.name == b.name && a.shape == b.shape && a.piece == b.piece && a.type == b.type;
  });
}

}  // namespace

/// Returns the copies whose bytes do not match their seals. Every rank hashes some of its host's
/// copies. Collective.
std::set<ShareCopy> MemoryCheckpoints::check_copies(const MemorySnapshot& snapshot) {
  const std::size_t host = hosts_->host_of(rank());
  const auto& ranks = hosts_->ranks_of(host);
  std::vector<ShareCopy> bad;
  std::size_t number = 0;
  for (const auto& copies : snapshot.copies)
    for (const ShareCopy& copy : copies) {
      if (copy.host != host || ranks[number++ % ranks.size()] != rank()) continue;
      const auto file = MappedFile::open(share_data_path(folder_, copy.name));
      if (file && sha256_hex(file->bytes()) == copy.sha256) continue;
      log::warning("{}: {}", share_data_path(folder_, copy.name).string(),
                   file ? "its bytes are not those that were sealed" : file.error().message);
      bad.push_back(copy);
    }
  std::set<ShareCopy> all;
  for (const std::string& text : communicator_.all_gather(serialize(bad)))
    for (ShareCopy& copy : parse_share_copies(text)) all.insert(std::move(copy));
  return all;
}

/// Chooses the source of each share, alternating between the hosts that have copies.
MemoryCheckpoints::Found MemoryCheckpoints::plan_load(MemorySnapshot snapshot) const {
  Found found;
  std::vector<std::size_t> load(hosts_->hosts(), 0);
  for (const auto& copies : snapshot.copies) {
    std::set<std::size_t> with;
    for (const ShareCopy& copy : copies) with.insert(copy.host);
    const std::size_t host =
        *std::ranges::min_element(with, {}, [&](std::size_t one) { return load[one]; });
    const auto& ranks = hosts_->ranks_of(host);
    found.source.push_back(ranks[load[host]++ % ranks.size()]);
    found.everywhere.push_back(with.size() == hosts_->hosts());
  }
  found.snapshot = std::move(snapshot);
  return found;
}

/// Returns the manifest with the tensors of all shares; checks that these contain every element of
/// every tensor once. Collective.
Result<Manifest> MemoryCheckpoints::assemble(const Found& found) {
  const std::size_t count = found.snapshot.count;
  std::vector<Result<std::string>> mine;
  for (std::size_t share = 0; share < count; ++share)
    if (found.source[share] == rank())
      mine.emplace_back(serialize(own_.at(found.snapshot.name_of(share)).shard));
  if (found.source[0] == rank())
    mine.emplace_back(to_json(own_.at(found.snapshot.name_of(0)).manifest));
  const auto told = communicator_.all_gather(pack(mine));
  std::vector<std::vector<Result<std::string>>> by_rank;
  for (const std::string& text : told) by_rank.push_back(unpack(text));
  SORTIE_ASSIGN_OR_RETURN(Manifest manifest,
                          parse_manifest(*by_rank[found.source[0]].back(), "memory"));
  std::vector<std::size_t> taken(by_rank.size(), 0);
  std::vector<ShardInfo> shards;
  for (std::size_t share = 0; share < count; ++share) {
    const std::size_t source = found.source[share];
    SORTIE_ASSIGN_OR_RETURN(ShardInfo shard, parse_shard_info(*by_rank[source][taken[source]++]));
    shards.push_back(std::move(shard));
  }
  SORTIE_TRY(add_shards(manifest, shards));
  if (manifest.step != found.snapshot.step)
    return fail(ErrorCode::checkpoint, fmt::format("its manifest is of step {}", manifest.step));
  return manifest;
}

std::optional<Manifest> MemoryCheckpoints::find(std::int64_t after, const Judge& judge,
                                                std::vector<std::string>& refused) {
  std::vector<ShareCopy> mine;
  for (SealedShare& share : sealed_shares(folder_, claimant_.run_id)) {
    if (hosts_->leads(rank()))
      mine.push_back({hosts_->host_of(rank()), share.name, share.manifest.step, share.attempt,
                      share.shard.sha256});
    own_.insert_or_assign(share.name, std::move(share));
  }
  std::vector<ShareCopy> copies;
  for (const std::string& text : communicator_.all_gather(serialize(mine)))
    for (ShareCopy& copy : parse_share_copies(text)) copies.push_back(std::move(copy));
  std::set<ShareCopy> bad;
  for (;;) {
    MemoryChoice choice = choose_snapshot(copies, bad, after);
    if (!choice.snapshot) {
      for (std::string& text : choice.refused) refused.push_back(std::move(text));
      return std::nullopt;
    }
    const std::set<ShareCopy> damaged = check_copies(*choice.snapshot);
    bad.insert(damaged.begin(), damaged.end());
    if (!damaged.empty()) continue;  // perhaps other copies are enough
    Found found = plan_load(std::move(*choice.snapshot));
    Result<Manifest> manifest = assemble(found);
    std::string why = manifest ? "" : manifest.error().message;
    if (manifest && communicator_.rank() == 0) why = judge(*manifest);
    why = communicator_.all_gather(why)[0];
    if (why.empty()) {
      for (std::string& text : choice.refused) refused.push_back(std::move(text));
      found_ = std::move(found);
      next_slot_ =
          found_->snapshot.count == hosts_->ranks() ? other_slot(found_->snapshot.slot) : 'a';
      return std::move(*manifest);
    }
    refused.push_back(
        fmt::format("step {} in memory is passed over: {}", found.snapshot.step, why));
    for (const auto& of_share : found.snapshot.copies) bad.insert(of_share.begin(), of_share.end());
  }
}

Result<> MemoryCheckpoints::read_share(std::size_t index, const std::vector<StatePiece>& part) {
  const ShareName name = found_->snapshot.name_of(index);
  const SealedShare& share = own_.at(name);
  const fs::path path = share_data_path(folder_, name);
  if (!same_pieces(share.shard.pieces, part))
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: it holds other parts of the state than this model has there; was "
                            "sortie-train replaced during the run?",
                            path.string()));
  SORTIE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path, ErrorCode::checkpoint));
  if (file.size() != bytes_of(part))
    return fail(ErrorCode::checkpoint, fmt::format("{}: has {} bytes", path.string(), file.size()));
  const std::byte* at = file.data();
  for (const StatePiece& piece : part) {
    write_values(piece, 0, {at, piece.bytes.size()});
    at += piece.bytes.size();
  }
  return {};
}

Result<> MemoryCheckpoints::load() {
  SORTIE_CHECK(found_.has_value(), "no snapshot was found");
  const StateView state(store_);
  const std::vector<StatePiece> all = state.pieces(TiedCopies::leave_out);
  const std::size_t count = found_->snapshot.count;
  Result<> outcome;
  for (std::size_t share = 0; share < count && outcome; ++share)
    if (found_->everywhere[share] || found_->source[share] == rank())
      outcome = read_share(share, share_of(all, share, count));
  SORTIE_TRY(share_failure_of_any(communicator_, outcome));
  for (std::size_t share = 0; share < count; ++share) {
    if (found_->everywhere[share]) continue;
    for (const StatePiece& piece : share_of(all, share, count))
      broadcast_values(communicator_, piece, static_cast<int>(found_->source[share]));
  }
  return {};
}

}  // namespace sortie::trainer
