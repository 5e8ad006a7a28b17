// A file that is written sequentially, through the page cache or bypassing it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

/// Whether the system may keep written bytes in its page cache. Copying a byte into it costs about
/// as much as hashing it, on cores that a background save shares with training. If it is bypassed,
/// the disk takes the bytes from the writer's memory, and a later reader must read from the disk.
enum class Caching : bool { kept, bypassed };

class FileOutput {
 public:
  /// Creates the file; it must not exist yet. If a file system or device cannot bypass the cache,
  /// the file is written through it.
  static Result<FileOutput> create(const std::filesystem::path& path, Caching caching);

  Result<> write(std::span<const std::byte> bytes);
  /// Writes the buffered rest, fsyncs and closes. Nothing may be called afterwards.
  Result<> finish();

 private:
  /// A disk takes whole blocks, at addresses that are multiples of the block size. 4096 is a
  /// multiple of 512 and 4096, the sizes in use.
  static constexpr std::size_t kBlock = 4096, kBufferBytes = std::size_t{4} << 20;

  struct Free {
    void operator()(std::byte* bytes) const;
  };

  FileOutput(Fd file, std::filesystem::path path)
      : file_(std::move(file)), path_(std::move(path)) {}
  Result<> write_buffer();

  Fd file_;
  std::filesystem::path path_;
  std::unique_ptr<std::byte[], Free> buffer_;  // null: writes go through the cache
  std::size_t filled_ = 0;                     // bytes in the buffer
};

}  // namespace sortie::trainer
