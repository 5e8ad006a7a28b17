// SpillFile: bytes beyond what may stay in memory, in a file without a name that goes with the
// process. Appended to once, read at any offset; a part that nobody needs is given back.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

class SpillFile {
 public:
  /// Made at the first call, in $TMPDIR or /tmp. Returns the offset.
  Result<std::uint64_t> append(std::string_view bytes);
  Result<> read(std::uint64_t offset, std::span<char> bytes) const;
  /// Bytes before `offset` are not read again. Without support of the file system: nothing happens.
  void discard_before(std::uint64_t offset);
  std::uint64_t size() const { return size_; }

 private:
  Result<> make();
  Fd file_;
  std::uint64_t size_ = 0, discarded_ = 0;
};

}  // namespace sortie::launcher
