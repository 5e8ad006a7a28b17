// A file that is written from its beginning to its end, through the page cache or past it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

/// Whether the system may keep what is written in its page cache. To copy a byte there costs about
/// as much as to hash it, on cores that a background save shares with training; past the cache the
/// disk takes the bytes from the writer's memory. Who reads the file next reads the disk then.
enum class Caching : bool { kept, bypassed };

class FileOutput {
 public:
  /// Creates the file; it must not exist yet. Where a file system or device can not bypass the
  /// cache, the file is written through it.
  static Result<FileOutput> create(const std::filesystem::path& path, Caching caching);

  Result<> write(std::span<const std::byte> bytes);
  /// Writes what is left, fsyncs and closes. Nothing may be called afterwards.
  Result<> finish();

 private:
  /// A disk takes whole blocks, at addresses that are multiples of a block's size: 4096 is one of
  /// 512 and 4096, the sizes that there are.
  static constexpr std::size_t kBlock = 4096, kBufferBytes = std::size_t{4} << 20;

  struct Free {
    void operator()(std::byte* bytes) const;
  };

  FileOutput(Fd file, std::filesystem::path path)
      : file_(std::move(file)), path_(std::move(path)) {}
  Result<> write_buffer();

  Fd file_;
  std::filesystem::path path_;
  std::unique_ptr<std::byte[], Free> buffer_;  // null: through the cache
  std::size_t filled_ = 0;                     // bytes of the buffer
};

}  // namespace sortie::trainer
