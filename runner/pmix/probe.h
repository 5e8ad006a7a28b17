// `sortie-pmix --probe LIBMPI`: reports the versions of libpmix and libmpi on this host by loading
// them.
#pragma once

namespace sortie::runner {

/// Prints "pmix VERSION" or "pmix-error WHY", then "mpi VERSION" or "mpi-error WHY". Returns 0.
int probe_libraries(const char* libmpi);

}  // namespace sortie::runner
