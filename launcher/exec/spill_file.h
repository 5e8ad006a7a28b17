// SpillFile: keeps bytes that do not fit in memory in an unlinked temporary file. Data is appended
// once and read at any offset; parts that are no longer needed are freed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

class SpillFile {
 public:
  /// Appends `bytes`; returns their offset. Creates the file on first use, in $TMPDIR or /tmp.
  Result<std::uint64_t> append(std::string_view bytes);
  Result<> read(std::uint64_t offset, std::span<char> bytes) const;
  /// Frees the bytes before `offset`, which must not be read again. No-op if the file system does
  /// not support it.
  void discard_before(std::uint64_t offset);
  std::uint64_t size() const { return size_; }

 private:
  Result<> make();
  Fd file_;
  std::uint64_t size_ = 0, discarded_ = 0;
};

}  // namespace sortie::launcher
