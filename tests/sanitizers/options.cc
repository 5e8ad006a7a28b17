// What every program of a sanitizer build starts with, wherever and by whom it is started: hosts of
// the end-to-end tests have an environment of their own. ASAN_OPTIONS and the like come after this.
// SORTIE_FINDINGS: the folder that reports are written to, one file per process. Exit code 97 is
// nobody else's.
#define SORTIE_COMMON_OPTIONS "exitcode=97:log_exe_name=1:log_path=" SORTIE_FINDINGS "/finding"

#ifndef SORTIE_THREADS
// A library that is unloaded has no name in a report, and no suppression is for it: Open MPI's
// components. So none is.
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
