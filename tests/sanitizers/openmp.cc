// ThreadSanitizer does not see how the threads of libgomp wait for each other: its locks are
// futexes. This stands between a program and libgomp and says it: what was before a parallel region
// happened before all of its threads, and these before what comes after it. Accesses of two threads
// in one region have no order, so a race there is found. That is all of OpenMP that the trainer
// uses; barriers and critical sections in a region would need the same.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

namespace {

struct Region {
  void (*body)(void*);
  void* data;
  char begins = 0, ends = 0;  // their addresses name the two moments
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
