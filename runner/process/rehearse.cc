#include "runner/process/rehearse.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace sortie::runner {
namespace {

constexpr std::size_t kStackBytes = 32u << 10, kHeapBytes = 128u << 10;
// Missing in <linux/mman.h> of older systems.
constexpr int kPopulateRead = 22, kPopulateWrite = 23;

/// Populates the segments of the program itself, which is the first object.
int populate_program(dl_phdr_info* object, std::size_t, void* what) {
  const unsigned wanted =
      *static_cast<const Rehearsed*>(what) == Rehearsed::data ? PF_W : PF_W | PF_X;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::uintptr_t read_only_end = 0;  // end of the data that is read-only after startup
  for (int i = 0; i < object->dlpi_phnum; ++i)
    if (const auto& part = object->dlpi_phdr[i]; part.p_type == PT_GNU_RELRO)
      read_only_end = object->dlpi_addr + part.p_vaddr + part.p_memsz;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    // Skip constants: most of them are the programs that the runner carries, and few are needed.
    if (part.p_type != PT_LOAD || (part.p_flags & wanted) == 0) continue;
    const bool writable = (part.p_flags & PF_W) != 0;
    std::uintptr_t from = object->dlpi_addr + part.p_vaddr;
    const std::uintptr_t to = (from + part.p_memsz + page - 1) / page * page;
    if (writable) from = std::max(from, read_only_end);
    from = from / page * page;
    // An error costs nothing but the faults later. NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const first = reinterpret_cast<void*>(from);
    if (from < to) (void)::madvise(first, to - from, writable ? kPopulateWrite : kPopulateRead);
  }
  return 1;
}

void touch(volatile char* bytes, std::size_t count) {
  for (std::size_t at = 0; at < count; at += 4096) bytes[at] = 0;
}

}  // namespace

void rehearse(Rehearsed what) {
  ::dl_iterate_phdr(populate_program, &what);
  char stack[kStackBytes];
  touch(stack, sizeof stack);
  // The freed block stays at the end of the heap (keep_freed_pieces() in common/base/heap.h).
  if (void* piece = std::malloc(kHeapBytes)) {
    touch(static_cast<char*>(piece), kHeapBytes);
    std::free(piece);
  }
}

}  // namespace sortie::runner
