/* A PMIx client that uses what Open MPI 4 does not use by default: values fetched from their owner
 * when asked for (direct modex), fences of some ranks only, refused services. With an argument: what
 * the last rank commits after its first commit, and others ask for before. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pmix_proc_t me;
static unsigned size;

static void check(int condition, int code, const char* what, int status) {
  if (condition) return;
  fprintf(stderr, "rank %u: %s (%d)\n", me.rank, what, status);
  _exit(code);
}

static void get_number(unsigned rank, unsigned expected) {
  pmix_proc_t other;
  pmix_value_t* value = NULL;
  PMIX_PROC_LOAD(&other, me.nspace, rank);
  const int status = PMIx_Get(&other, "sortie.number", NULL, 0, &value);
  check(status == PMIX_SUCCESS, 20, "PMIx_Get failed", status);
  check(value->type == PMIX_UINT32 && value->data.uint32 == expected, 21, "wrong value", 0);
  PMIX_VALUE_RELEASE(value);
}

/* Fences of the even ranks only: as often as `times`. */
static void fence_even(int times) {
  pmix_proc_t* even = calloc(size, sizeof *even);
  size_t count = 0;
  for (unsigned rank = 0; rank < size; rank += 2) {
    PMIX_PROC_LOAD(&even[count], me.nspace,
                   rank); /* a macro: it names its argument more than once */
    ++count;
  }
  for (int i = 0; i < times; ++i) {
    const int status = PMIx_Fence(even, count, NULL, 0);
    check(status == PMIX_SUCCESS, 22, "fence of the even ranks failed", status);
  }
  free(even);
}

static void commit_number(const char* key, unsigned number) {
  pmix_value_t value;
  value.type = PMIX_UINT32;
  value.data.uint32 = number;
  const int status = PMIx_Put(PMIX_GLOBAL, key, &value);
  check(status == PMIX_SUCCESS, 30, "PMIx_Put failed", status);
  PMIx_Commit();
}

/* The status of a get; `seconds` of PMIX_TIMEOUT, 0 for none. */
static int get_of_last(const char* key, int seconds, unsigned* number) {
  pmix_proc_t last;
  pmix_info_t limit;
  pmix_value_t* value = NULL;
  PMIX_PROC_LOAD(&last, me.nspace, size - 1);
  memset(&limit, 0, sizeof limit);
  strcpy(limit.key, PMIX_TIMEOUT);
  limit.value.type = PMIX_INT;
  limit.value.data.integer = seconds;
  const int status = PMIx_Get(&last, key, seconds ? &limit : NULL, seconds ? 1 : 0, &value);
  if (status == PMIX_SUCCESS) {
    *number = value->data.uint32;
    PMIX_VALUE_RELEASE(value);
  }
  return status;
}

/* The test makes this file when it has seen the others ask. */
static void wait_for_file(void) {
  while (access(getenv("SORTIE_TEST_GO"), F_OK) != 0) usleep(2000);
}

/* Of two ranks of a host that ask for different keys at once libpmix passes on the first key alone: each has its first one
   before any asks for the next. */
static void wait_for_the_others(void) {
  char path[4096];
  const unsigned others = size - 1;
  for (unsigned rank = me.rank, left = others; left > 0; --left, rank = (rank + 1) % others) {
    snprintf(path, sizeof path, "%s.%u", getenv("SORTIE_TEST_GO"), rank);
    if (rank == me.rank) {
      FILE* file = fopen(path, "w");
      if (file) fclose(file);
    }
    while (access(path, F_OK) != 0) usleep(2000);
  }
}

static int ask_the_last(const char* what) {
  unsigned number = 0;
  const int is_owner = me.rank == size - 1;
  int status = 0;
  if (is_owner) commit_number("sortie.first", 1);
  if (!is_owner) {
    status = get_of_last("sortie.first", 0, &number);
    check(status == PMIX_SUCCESS && number == 1, 31, "the first key", status);
    wait_for_the_others();
  }
  if (!strcmp(what, "second-commit")) {
    if (is_owner) {
      wait_for_file();
      commit_number("sortie.between", 2); /* not what the others wait for */
      usleep(300000);
      commit_number("sortie.second", 3);
    } else {
      status = get_of_last("sortie.second", 0, &number);
      check(status == PMIX_SUCCESS && number == 3, 32, "the second key", status);
    }
  } else if (!strcmp(what, "timeout")) {
    if (is_owner) {
      wait_for_file();
    } else {
      struct timespec begin, end;
      clock_gettime(CLOCK_MONOTONIC, &begin);
      status = get_of_last("sortie.never", 1, &number);
      clock_gettime(CLOCK_MONOTONIC, &end);
      check(status == PMIX_ERR_TIMEOUT, 33, "a get with PMIX_TIMEOUT", status);
      check((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000 >= 990, 34,
            "it ended before its time", 0);
    }
  } else { /* the owner finalizes while others wait */
    if (is_owner) {
      wait_for_file();
    } else {
      status = get_of_last("sortie.never", 0, &number);
      check(status == PMIX_ERR_NOT_FOUND, 35, "a get of a rank that has finalized", status);
    }
  }
  PMIx_Finalize(NULL, 0);
  printf("ok\n");
  return 0;
}

int main(int argc, char** argv) {
  pmix_proc_t all;
  pmix_value_t value;
  pmix_value_t* got = NULL;
  int status = PMIx_Init(&me, NULL, 0);
  check(status == PMIX_SUCCESS, 23, "PMIx_Init failed", status);
  PMIX_PROC_LOAD(&all, me.nspace, PMIX_RANK_WILDCARD);
  status = PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &got);
  check(status == PMIX_SUCCESS, 24, "no job size", status);
  size = got->data.uint32;
  if (argc > 1) return ask_the_last(argv[1]);

  value.type = PMIX_UINT32;
  value.data.uint32 = 100 + me.rank;
  status = PMIx_Put(PMIX_GLOBAL, "sortie.number", &value);
  check(status == PMIX_SUCCESS, 25, "PMIx_Put failed", status);
  PMIx_Commit();
  if (me.rank % 2 == 0) fence_even(3);
  status = PMIx_Fence(NULL, 0, NULL, 0); /* collects nothing: what follows asks the owners */
  check(status == PMIX_SUCCESS, 26, "fence failed", status);
  for (unsigned rank = 0; rank < size; ++rank) get_number(rank, 100 + rank);

  pmix_info_t info;
  memset(&info, 0, sizeof info);
  strcpy(info.key, "sortie.published");
  info.value.type = PMIX_UINT32;
  status = PMIx_Publish(&info, 1);
  check(status == PMIX_ERR_NOT_SUPPORTED, 27, "PMIx_Publish was not refused", status);
  status = PMIx_Fence(NULL, 0, NULL, 0);
  check(status == PMIX_SUCCESS, 28, "last fence failed", status);
  PMIx_Finalize(NULL, 0);
  printf("ok\n");
  return 0;
}
