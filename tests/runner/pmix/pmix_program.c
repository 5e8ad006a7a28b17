/* A PMIx client that uses what Open MPI 4 does not use by default: values fetched from their owner
 * when asked for (direct modex), fences of some ranks only, refused services. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(void) {
  pmix_proc_t all;
  pmix_value_t value;
  pmix_value_t* got = NULL;
  int status = PMIx_Init(&me, NULL, 0);
  check(status == PMIX_SUCCESS, 23, "PMIx_Init failed", status);
  PMIX_PROC_LOAD(&all, me.nspace, PMIX_RANK_WILDCARD);
  status = PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &got);
  check(status == PMIX_SUCCESS, 24, "no job size", status);
  size = got->data.uint32;

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
