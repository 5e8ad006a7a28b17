// How much freed memory malloc keeps. By default malloc returns a large buffer to the kernel and
// gets new pages for the next one, which are zeroed and faulted in one by one. During a file
// transfer that takes half of the CPU time.
#pragma once

#include <malloc.h>

namespace sortie {

/// For a program that forwards output, from its start: it allocates and frees pieces of 64 KiB.
inline void keep_freed_pieces() {
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

/// For the time of a file transfer, in which every piece allocates and frees buffers of a megabyte.
inline void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 8 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 32 << 20);
}

/// Undoes keep_freed_memory() after the transfers, before a job starts, and returns free memory to
/// the kernel.
inline void return_freed_memory() {
  keep_freed_pieces();
  ::malloc_trim(0);
}

}  // namespace sortie
