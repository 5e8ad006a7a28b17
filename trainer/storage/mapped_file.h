// MappedFile: a whole file, read-only, in the address space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "common/base/result.h"

namespace sortie::trainer {

class MappedFile {
 public:
  /// Maps a regular file; an empty file maps to an empty span. A file that is cut short while it
  /// is mapped makes reads past its new end fatal (SIGBUS), so data files must not be edited in
  /// place.
  static Result<MappedFile> open(const std::filesystem::path& path,
                                 ErrorCode code = ErrorCode::data);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// Hints to the kernel that the file will be read once, soon, from front to back.
  void expect_sequential() const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sortie::trainer
