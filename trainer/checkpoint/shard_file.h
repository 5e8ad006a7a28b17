// Writes and maps safetensors files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/checkpoint/byte_stream.h"
#include "trainer/checkpoint/file_output.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/storage/mapped_file.h"

namespace sortie::trainer {

struct TensorToWrite {
  TensorEntry entry{};  // name, type and shape
  TensorData data{};    // row-major, as many bytes as type and shape say
};

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::string sha256{};  // empty if it was not requested
};

enum class Hashed : bool { no, yes };

/// Called with the number of bytes that were just written, from one thread. May be empty.
using OnWritten = std::function<void(std::uint64_t bytes)>;

/// How a file is written.
struct Writing {
  OnWritten on_written{};
  Caching caching = Caching::kept;
  CpuAllowance* allowance = nullptr;  // for the threads that hash and write; null: no limit
};

/// Writes a new safetensors file and fsyncs it; a second thread hashes it meanwhile. Tensors are
/// ordered by falling element size, then by name, so that each is aligned to its element. The
/// caller must fsync the folder. On failure there is no file, unless it existed before.
Result<WrittenFile> write_safetensors(const std::filesystem::path& path,
                                      std::vector<TensorToWrite> tensors,
                                      const std::map<std::string, std::string>& metadata,
                                      Hashed hashed = Hashed::yes, const Writing& writing = {});

/// A piece of a tensor of the job, and its bytes.
struct PieceToWrite {
  std::string name{};  // the tensor's global name
  StorageType type = StorageType::f32;
  Dims shape{};  // of the whole tensor
  Piece piece{};
  TensorData data{};
};

/// Writes "shard-00003-of-00008.safetensors" into the folder that CheckpointStore::begin() has
/// created; each writing rank calls it with its own index. Returns what rank 0 needs for the
/// commit.
Result<ShardInfo> write_shard(const std::filesystem::path& folder, std::size_t index,
                              std::size_t count, const std::vector<PieceToWrite>& pieces,
                              const Writing& writing = {});

/// A safetensors file, mapped into memory, whose header is checked.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  const SafetensorsHeader& header() const { return header_; }
  /// Returns nullptr if there is no such tensor.
  const TensorEntry* find(std::string_view name) const;
  std::span<const std::byte> data(const TensorEntry& entry) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

}  // namespace sortie::trainer
