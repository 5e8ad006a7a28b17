#include "trainer/checkpoint/reader.h"

#include <fmt/core.h>

#include <cstring>

#include "common/base/check.h"
#include "common/base/command_name.h"
#include "trainer/checkpoint/weight_types.h"

namespace sortie::trainer {

CheckpointReader::CheckpointReader(std::filesystem::path folder, Manifest manifest)
    : folder_(std::move(folder)), manifest_(std::move(manifest)) {
  shards_.resize(manifest_.shards.size());
}

Result<CheckpointReader> CheckpointReader::open(const std::filesystem::path& folder,
                                                CheckDepth depth, const OnProgress& progress) {
  SORTIE_ASSIGN_OR_RETURN(Manifest manifest,
                          check_checkpoint(folder, depth, /*stop=*/{}, progress));
  return CheckpointReader(folder, std::move(manifest));
}

const Manifest::Tensor* CheckpointReader::find(const std::string& name) const {
  const auto found = manifest_.tensors.find(name);
  return found == manifest_.tensors.end() ? nullptr : &found->second;
}

Result<> CheckpointReader::expect_no_others(std::string_view prefix,
                                            const std::set<std::string>& known) const {
  constexpr std::size_t kMostNames = 3;
  std::string names;
  std::size_t others = 0;
  for (auto next = manifest_.tensors.lower_bound(std::string(prefix));
       next != manifest_.tensors.end() && next->first.starts_with(prefix); ++next) {
    if (known.contains(next->first) || ++others > kMostNames) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", next->first);
  }
  if (others == 0) return {};
  if (others > kMostNames) names += fmt::format(" and {} more", others - kMostNames);
  return fail(ErrorCode::checkpoint,
              fmt::format("{}: the model of its config does not have these tensors: {}; use the "
                          "version of sortie-train that saved it",
                          folder_.string(), names));
}

Result<std::span<const std::byte>> CheckpointReader::stored_bytes(
    const Manifest::Tensor& tensor, const Manifest::PlacedPiece& placed) {
  auto& shard = shards_[placed.shard];
  const std::filesystem::path path = folder_ / manifest_.shards[placed.shard].file;
  if (!shard) {
    SORTIE_ASSIGN_OR_RETURN(shard, SafetensorsFile::open(path));
  }
  const TensorEntry* entry = shard->find(placed.key);
  if (entry == nullptr || entry->type != tensor.type || entry->shape != placed.piece.local_shape())
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: tensor {} is missing or not as the manifest says", path.string(),
                            placed.key));
  return shard->data(*entry);
}

Result<> CheckpointReader::read(const std::string& name, StorageType type, const Dims& shape,
                                const Piece& piece, std::span<std::byte> out) {
  const Manifest::Tensor* tensor = find(name);
  if (tensor == nullptr)
    return fail(ErrorCode::checkpoint, fmt::format("{}: has no tensor {}", folder_.string(), name));
  if (tensor->type != type || tensor->shape != shape) {
    auto text = [](StorageType t, const Dims& s) {
      std::string result = fmt::format("{} [", storage_name(t));
      for (std::size_t d = 0; d < s.size(); ++d) result += fmt::format("{}{}", d ? ", " : "", s[d]);
      return result + "]";
    };
    return fail(
        ErrorCode::checkpoint,
        fmt::format("{}: tensor {} is {}, the model wants {}; `{}` prints the [model] that "
                    "it was saved with",
                    folder_.string(), name, text(tensor->type, tensor->shape), text(type, shape),
                    command_line({"checkpoint", "model", folder_.string()})));
  }
  const std::size_t size = storage_bytes(type);
  SORTIE_CHECK(out.size() == static_cast<std::size_t>(piece.elements()) * size,
               "tensor {}: {} bytes", name, out.size());
  return for_each_run(*tensor, name, piece,
                      [&](const std::byte* from, std::int64_t at, std::int64_t count) {
                        std::memcpy(out.data() + static_cast<std::size_t>(at) * size, from,
                                    static_cast<std::size_t>(count) * size);
                      });
}

Result<> CheckpointReader::read_as(const std::string& name, StorageType type, const Dims& shape,
                                   const Piece& piece, std::span<std::byte> out) {
  const Manifest::Tensor* tensor = find(name);
  if (tensor == nullptr || tensor->shape != shape || !is_weight_type(tensor->type))
    return read(name, type, shape, piece, out);  // reports the error
  const std::size_t size = storage_bytes(type);
  SORTIE_CHECK(out.size() == static_cast<std::size_t>(piece.elements()) * size,
               "tensor {}: {} bytes", name, out.size());
  return for_each_run(
      *tensor, name, piece, [&](const std::byte* from, std::int64_t at, std::int64_t count) {
        convert(tensor->type, from, count, type, out.data() + static_cast<std::size_t>(at) * size);
      });
}

Result<std::span<const std::byte>> CheckpointReader::view(const std::string& name) {
  const Manifest::Tensor* tensor = find(name);
  if (tensor == nullptr)
    return fail(ErrorCode::checkpoint, fmt::format("{}: has no tensor {}", folder_.string(), name));
  if (tensor->pieces.size() != 1) return std::span<const std::byte>();
  return stored_bytes(*tensor, tensor->pieces[0]);
}

Result<> CheckpointReader::for_each_run(
    const Manifest::Tensor& tensor, const std::string& name, const Piece& piece,
    const std::function<void(const std::byte*, std::int64_t, std::int64_t)>& copy) {
  const std::string problem = piece_problem(piece, tensor.shape);
  SORTIE_CHECK(problem.empty(), "tensor {}: {}", name, problem);
  std::int64_t copied = 0;
  for (const Manifest::PlacedPiece& placed : tensor.pieces) {
    std::span<const std::byte> stored;
    Result<> opened;
    for_each_shared_run(
        placed.piece, piece, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
          if (!opened) return;
          if (stored.empty()) {
            auto bytes = stored_bytes(tensor, placed);
            if (!bytes) {
              opened = std::unexpected(std::move(bytes).error());
              return;
            }
            stored = *bytes;
          }
          copy(stored.data() + static_cast<std::size_t>(from) * storage_bytes(tensor.type), to,
               count);
          copied += count;
        });
    SORTIE_TRY(opened);
  }
  SORTIE_CHECK(copied == piece.elements(), "tensor {}: {} of {} elements", name, copied,
               piece.elements());
  return {};
}

}  // namespace sortie::trainer
