// CheckpointReader: tensors of a committed checkpoint by global name, whole or any part.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/shard_file.h"

namespace sortie::trainer {

/// Maps a shard when a part of it is first asked for, so a rank touches only what it needs. Not
/// thread-safe.
class CheckpointReader {
 public:
  /// Checks as deep as told before anything is read. With `sizes` a rank relies on another one (or
  /// `checkpoint verify`) having looked at the bytes.
  static Result<CheckpointReader> open(const std::filesystem::path& folder, CheckDepth depth);

  const Manifest& manifest() const { return manifest_; }
  /// Null when the checkpoint has no such tensor.
  const Manifest::Tensor* find(const std::string& name) const;

  /// Fills `out` with a part of a tensor: out.size() must be its elements times the element size.
  /// However the writers had cut the tensor, the parts are put together. Type and shape must be as
  /// stored: else, and for an absent name, an Error with ErrorCode::checkpoint.
  Result<> read(const std::string& name, StorageType type, const Dims& shape, const Piece& piece,
                std::span<std::byte> out);

 private:
  CheckpointReader(std::filesystem::path folder, Manifest manifest);
  Result<std::span<const std::byte>> stored_bytes(const Manifest::Tensor& tensor,
                                                  const Manifest::PlacedPiece& placed);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::vector<std::optional<SafetensorsFile>> shards_;
};

}  // namespace sortie::trainer
