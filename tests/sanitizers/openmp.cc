// ThreadSanitizer does not see how the threads of libgomp wait for each other, because its locks
// are futexes. This file wraps GOMP_parallel and tells ThreadSanitizer the order: what precedes a
// parallel region happens before all of its threads, and these happen before what follows it.
// Accesses of two threads within a region are not ordered, so a race between them is found. The
// trainer uses nothing else of OpenMP; barriers and critical sections in a region would need the
// same.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

namespace {

struct Region {
  void (*body)(void*);
  void* data;
  char begins = 0, ends = 0;  // their addresses identify the two moments
};

void run(void* of) {
  auto& region = *static_cast<Region*>(of);
  __tsan_acquire(&region.begins);
  region.body(region.data);
  __tsan_release(&region.ends);
}

}  // namespace

extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  static auto* const libgomp =
      reinterpret_cast<decltype(&GOMP_parallel)>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  Region region{body, data};
  __tsan_release(&region.begins);
  libgomp(run, &region, threads, flags);
  __tsan_acquire(&region.ends);
}
