// Default options of every program of a sanitizer build. They are compiled in, because hosts of the
// end-to-end tests have other environments than the test. ASAN_OPTIONS and the like override them.
// Reports are written to the folder SORTIE_FINDINGS, one file per process. Exit code 97 is used for
// nothing else.
#define SORTIE_COMMON_OPTIONS "exitcode=97:log_exe_name=1:log_path=" SORTIE_FINDINGS "/finding"

#ifndef SORTIE_THREADS
// A library that was unloaded has no name in a report, so no suppression matches it (Open MPI's
// components). Therefore no library is unloaded.
extern "C" int dlclose(void*) {
  return 0;
}
#endif

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): names of the sanitizers
#ifdef SORTIE_THREADS
const char* __tsan_default_options() {
  return SORTIE_COMMON_OPTIONS
      ":second_deadlock_stack=1:history_size=4:suppressions=" SORTIE_SUPPRESSIONS "/thread.supp";
}
#else
const char* __asan_default_options() {
  return SORTIE_COMMON_OPTIONS
      ":detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1";
}
const char* __lsan_default_options() {
  return "print_suppressions=0:suppressions=" SORTIE_SUPPRESSIONS "/leak.supp";
}
const char* __ubsan_default_options() {
  return "print_stacktrace=1";
}
#endif
// NOLINTEND(bugprone-reserved-identifier)
}
