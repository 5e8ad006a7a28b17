// Whether a program needs an MPI library, by what its ELF file asks the loader for.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner {

/// Fills `to` from `offset` of a file; false where the file ends before.
using ReadAt = std::function<bool(std::uint64_t offset, std::span<char> to)>;

/// The DT_NEEDED names of a 64-bit little-endian ELF file; none for a static program. Error: it is
/// no such file, or broken. Reads the headers and the dynamic section only.
Result<std::vector<std::string>> needed_libraries(const ReadAt& read);
Result<std::vector<std::string>> needed_libraries(const std::string& path);

/// The MPI library among them ("libmpi.so.40"), empty when there is none.
std::string mpi_library(const std::vector<std::string>& needed);

}  // namespace sortie::runner
