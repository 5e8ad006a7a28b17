// CheckpointReader: tensors of a committed checkpoint by global name, whole or any part.
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

  /// ErrorCode::checkpoint where the checkpoint has tensors whose names begin with `prefix` and are
  /// not in `known`: what reads the others would be something else than what was saved.
  Result<> expect_no_others(std::string_view prefix, const std::set<std::string>& known) const;

  /// Fills `out` with a part of a tensor: out.size() must be its elements times the element size.
  /// However the writers had cut the tensor, the parts are put together. Type and shape must be as
  /// stored: else, and for an absent name, an Error with ErrorCode::checkpoint.
  Result<> read(const std::string& name, StorageType type, const Dims& shape, const Piece& piece,
                std::span<std::byte> out);
  /// The same of an F32, BF16 or F16 tensor, as another of these types (weight_types.h).
  Result<> read_as(const std::string& name, StorageType type, const Dims& shape, const Piece& piece,
                   std::span<std::byte> out);
  Result<> read_f32(const std::string& name, const Dims& shape, const Piece& piece,
                    std::span<float> out) {
    return read_as(name, StorageType::f32, shape, piece, std::as_writable_bytes(out));
  }
  /// The bytes of a whole tensor where they lie in one place of a shard; empty where they do not.
  /// They are there as long as the reader.
  Result<std::span<const std::byte>> view(const std::string& name);

 private:
  CheckpointReader(std::filesystem::path folder, Manifest manifest);
  /// Calls copy(from, at, count) for every run of elements of the piece: where they are, where they
  /// belong in it, how many.
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
