// `sortie-pmix --probe LIBMPI`: which libpmix and libmpi this host has, found out by loading them.
#pragma once

namespace sortie::runner {

/// Prints "pmix VERSION" or "pmix-error WHY", then "mpi VERSION" or "mpi-error WHY"; exit code 0.
int probe_libraries(const char* libmpi);

}  // namespace sortie::runner
