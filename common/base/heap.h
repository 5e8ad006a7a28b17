// How much freed memory malloc keeps. By default it hands a large buffer back to the kernel and
// takes new pages, zeroed and faulted in one by one, for the next: half of all the CPU time of a
// transfer.
#pragma once

#include <malloc.h>

namespace sortie {

/// From the start of a program that passes output on: pieces of 64 KiB come and go.
inline void keep_freed_pieces() {
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

/// While files are moved: buffers of a megabyte come and go with each piece.
inline void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 8 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 32 << 20);
}

/// Once that is over, and a job follows.
inline void return_freed_memory() {
  keep_freed_pieces();
  ::malloc_trim(0);
}

}  // namespace sortie
