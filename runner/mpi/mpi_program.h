// Determines from a program's ELF file whether it needs an MPI library.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner {

/// Fills `to` with bytes of a file, from `offset` on. Returns false if the file ends before.
using ReadAt = std::function<bool(std::uint64_t offset, std::span<char> to)>;

/// The DT_NEEDED names of a 64-bit little-endian ELF file; empty for a static program. Error: not
/// such a file, or malformed. Reads only the headers and the dynamic section.
Result<std::vector<std::string>> needed_libraries(const ReadAt& read);
Result<std::vector<std::string>> needed_libraries(const std::string& path);

/// The MPI library among `needed` ("libmpi.so.40"), empty if there is none.
std::string mpi_library(const std::vector<std::string>& needed);

}  // namespace sortie::runner
