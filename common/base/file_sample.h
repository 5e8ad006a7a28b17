// Size and partial hash of a file, to compare a file on two machines without reading all of it.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace sortie {

struct FileSample {
  std::uint64_t size = 0;
  std::uint64_t hash = 0;  // XXH3 over the first and the last 256 KiB and the size
  bool operator==(const FileSample&) const = default;
};

/// Fails for anything but a regular file; does not block on a pipe. The error message is the reason
/// alone, without the path.
Result<FileSample> sample_file(const std::string& path);

}  // namespace sortie
