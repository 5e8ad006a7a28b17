// A file in brief, to tell whether two machines have the same one without reading all of it.
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

/// Regular files only: nothing waits for a pipe. The error says why alone, without the path.
Result<FileSample> sample_file(const std::string& path);

}  // namespace sortie
