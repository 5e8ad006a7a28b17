// Freed memory: kept for buffers of a megabyte that come and go with each piece of a transfer. By
// default malloc hands each back to the kernel and takes new pages, zeroed and faulted in one by
// one, for the next: half of all the CPU time of a transfer.
#pragma once

#include <malloc.h>

namespace sortie {

inline void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 8 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 32 << 20);
}

/// Once such a time is over.
inline void return_freed_memory() {
  ::mallopt(M_TRIM_THRESHOLD, 128 << 10);
  ::malloc_trim(0);
}

}  // namespace sortie
