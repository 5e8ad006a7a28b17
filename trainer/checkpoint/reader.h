// CheckpointReader: reads tensors of a committed checkpoint by global name, whole or any part.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/shard_file.h"

namespace sortie::trainer {

/// Maps a shard when a part of it is first read, so a rank accesses only what it needs. Not
/// thread-safe.
class CheckpointReader {
 public:
  /// Checks the checkpoint to that depth. With CheckDepth::sizes a rank relies on another one (or
  /// `checkpoint verify`) having verified the bytes.
  static Result<CheckpointReader> open(const std::filesystem::path& folder, CheckDepth depth,
                                       const OnProgress& progress = {});

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  /// Returns nullptr if the checkpoint has no such tensor.
  const Manifest::Tensor* find(const std::string& name) const;

  /// ErrorCode::checkpoint if the checkpoint has tensors whose names begin with `prefix` and are
  /// not in `known`: a model without them would not be the one that was saved.
  Result<> expect_no_others(std::string_view prefix, const std::set<std::string>& known) const;

  /// Fills `out` with a part of a tensor: out.size() must be its elements times the element size.
  /// The part is assembled from the pieces into which the writers have cut the tensor.
  /// ErrorCode::checkpoint if the name is absent, or if type or shape are not as stored.
  Result<> read(const std::string& name, StorageType type, const Dims& shape, const Piece& piece,
                std::span<std::byte> out);
  /// The same for an F32, BF16 or F16 tensor, converted to any of these types (weight_types.h).
  Result<> read_as(const std::string& name, StorageType type, const Dims& shape, const Piece& piece,
                   std::span<std::byte> out);
  Result<> read_f32(const std::string& name, const Dims& shape, const Piece& piece,
                    std::span<float> out) {
    return read_as(name, StorageType::f32, shape, piece, std::as_writable_bytes(out));
  }
  /// Returns the bytes of a whole tensor if they are contiguous in a shard; empty if not. They are
  /// valid as long as the reader exists.
  Result<std::span<const std::byte>> view(const std::string& name);

 private:
  CheckpointReader(std::filesystem::path folder, Manifest manifest);
  /// Calls copy(from, at, count) for every run of elements of the piece: their address, their
  /// position in the piece, their number.
  Result<> for_each_run(
      const Manifest::Tensor& tensor, const std::string& name, const Piece& piece,
      const std::function<void(const std::byte*, std::int64_t, std::int64_t)>& copy);
  Result<std::span<const std::byte>> stored_bytes(const Manifest::Tensor& tensor,
                                                  const Manifest::PlacedPiece& placed);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<std::optional<SafetensorsFile>> shards_;
};

}  // namespace sortie::trainer
