#include "trainer/checkpoint/manifest.h"

#include <fmt/core.h>

#include <set>

namespace sortie::trainer {
namespace {

/// A file name that stays in its folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

std::uint64_t Manifest::shard_bytes() const {
  std::uint64_t sum = 0;
  for (const File& shard : shards) sum += shard.bytes;
  return sum;
}

Result<> add_shards(Manifest& manifest, const std::vector<ShardInfo>& shards) {
  auto broken = [](std::string text) { return fail(ErrorCode::checkpoint, std::move(text)); };
  std::set<std::string> files;
  for (const ShardInfo& shard : shards) {
    if (!is_plain_name(shard.file) || !files.insert(shard.file).second)
      return broken(
          fmt::format("shard file name \"{}\" is empty, a path, or used twice", shard.file));
    const std::size_t index = manifest.shards.size();
    manifest.shards.push_back({shard.file, shard.bytes, shard.sha256});
    for (const StoredPiece& stored : shard.pieces) {
      auto [at, fresh] = manifest.tensors.try_emplace(stored.name);
      Manifest::Tensor& tensor = at->second;
      if (fresh) {
        tensor.type = stored.type;
        tensor.shape = stored.shape;
      } else if (tensor.type != stored.type || tensor.shape != stored.shape) {
        return broken(fmt::format("tensor {}: {} has another type or shape than {}", stored.name,
                                  shard.file, manifest.shards[tensor.pieces.front().shard].file));
      }
      tensor.pieces.push_back({index, stored.key, stored.piece});
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    std::vector<Piece> pieces;
    for (const Manifest::PlacedPiece& placed : tensor.pieces) pieces.push_back(placed.piece);
    if (const std::string problem = tiling_problem(pieces, tensor.shape); !problem.empty())
      return broken(fmt::format("tensor {}: {}", name, problem));
  }
  return {};
}

std::vector<std::string> differences(const std::map<std::string, std::string>& was,
                                     const std::map<std::string, std::string>& is) {
  std::vector<std::string> lines;
  auto value_in = [](const std::map<std::string, std::string>& map, const std::string& key) {
    const auto found = map.find(key);
    return found == map.end() ? std::string("not recorded") : found->second;
  };
  std::set<std::string> keys;
  for (const auto& [key, value] : was) keys.insert(key);
  for (const auto& [key, value] : is) keys.insert(key);
  for (const std::string& key : keys)
    if (value_in(was, key) != value_in(is, key))
      lines.push_back(fmt::format("{}: was {}, is {}", key, value_in(was, key), value_in(is, key)));
  return lines;
}

}  // namespace sortie::trainer
