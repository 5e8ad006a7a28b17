/* An MPI program as a user would write one: nothing of Sortie in it. The first argument says what
 * it does after MPI_Init. Exit code 10 and above: a check of its own failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;
static const char* what = "ring";

static void check(int condition, int code, const char* what) {
  if (condition) return;
  fprintf(stderr, "rank %d of %d: %s\n", rank, size, what);
  _exit(code);
}

static int env_number(const char* name) {
  const char* text = getenv(name);
  return text ? atoi(text) : -1;
}

/* In the place of libpmix's own: "late-commit" gives the last rank the slow start that a loaded host gives it, between its
 * connection to the server and its data there. */
int PMIx_Commit(void) {
  void* libpmix = dlopen("libpmix.so.2", RTLD_LAZY | RTLD_NOLOAD);
  int (*commit)(void) = libpmix ? (int (*)(void))dlsym(libpmix, "PMIx_Commit") : NULL;
  check(commit != NULL, 24, "no PMIx_Commit in libpmix");
  if (!strcmp(what, "late-commit") && env_number("RANK") == env_number("WORLD_SIZE") - 1) {
    printf("late\n");
    fflush(stdout);
    sleep(4);
  }
  return commit();
}

/* Once around: every rank adds itself. */
static void ring(MPI_Comm comm) {
  int value = 0;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  if (rank == 0) {
    MPI_Send(&value, 1, MPI_INT, next, 1, comm);
    MPI_Recv(&value, 1, MPI_INT, previous, 1, comm, MPI_STATUS_IGNORE);
    check(value == size * (size - 1) / 2, 12, "the ring gave a wrong sum");
  } else {
    MPI_Recv(&value, 1, MPI_INT, previous, 1, comm, MPI_STATUS_IGNORE);
    value += rank;
    MPI_Send(&value, 1, MPI_INT, next, 1, comm);
  }
}

static void allreduce(MPI_Comm comm, int count) {
  double *in = malloc(sizeof(double) * count), *out = malloc(sizeof(double) * count);
  for (int i = 0; i < count; ++i) in[i] = rank + i;
  MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, comm);
  for (int i = 0; i < count; ++i)
    check(out[i] == size * (size - 1) / 2 + (double)size * i, 13, "allreduce gave a wrong sum");
  free(in);
  free(out);
}

static void* thread_body(void* comm) {
  for (int i = 0; i < 20; ++i) allreduce(*(MPI_Comm*)comm, 100);
  return NULL;
}

static void threads(void) {
  enum { kThreads = 4 };
  MPI_Comm comms[kThreads];
  pthread_t ids[kThreads];
  for (int i = 0; i < kThreads; ++i) MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
  for (int i = 0; i < kThreads; ++i) pthread_create(&ids[i], NULL, thread_body, &comms[i]);
  for (int i = 0; i < kThreads; ++i) pthread_join(ids[i], NULL);
  for (int i = 0; i < kThreads; ++i) MPI_Comm_free(&comms[i]);
}

/* Open MPI tells only the root that a spawn failed: over one rank the error comes back, over
 * several it is fatal, as by default. */
static void spawn(char* self, MPI_Comm comm) {
  MPI_Comm children;
  int codes[1];
  if (comm == MPI_COMM_SELF) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  const int status =
      MPI_Comm_spawn(self, MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, comm, &children, codes);
  check(status != MPI_SUCCESS, 15, "MPI_Comm_spawn did not fail");
  printf("spawn refused\n");
}

/* The last rank publishes a port, the first one on another host looks it up: a name that nobody has
 * published is an error, not a hang; one that was taken back too. */
static void names(void) {
  char found[MPI_MAX_PORT_NAME] = "";
  const char* port = "tag#1;a port \"with\" anything in it";
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check(MPI_Lookup_name("nobody", MPI_INFO_NULL, found) != MPI_SUCCESS, 17, "found a missing name");
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == size - 1) {
    check(MPI_Publish_name("service", MPI_INFO_NULL, port) == MPI_SUCCESS, 18, "publish failed");
    check(MPI_Publish_name("service", MPI_INFO_NULL, port) != MPI_SUCCESS, 19, "published twice");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  check(MPI_Lookup_name("service", MPI_INFO_NULL, found) == MPI_SUCCESS, 20, "lookup failed");
  check(!strcmp(found, port), 21, "the name gave another port");
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == size - 1)
    check(MPI_Unpublish_name("service", MPI_INFO_NULL, port) == MPI_SUCCESS, 22, "unpublish failed");
  MPI_Barrier(MPI_COMM_WORLD);
  check(MPI_Lookup_name("service", MPI_INFO_NULL, found) != MPI_SUCCESS, 23, "found it again");
}

int main(int argc, char** argv) {
  if (argc > 1) what = argv[1];
  int provided = 0;
  const int wanted = strcmp(what, "threads") ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE;
  MPI_Init_thread(&argc, &argv, wanted, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  check(size == env_number("WORLD_SIZE"), 10, "MPI_Comm_size is not WORLD_SIZE");
  check(rank == env_number("RANK"), 11, "MPI_Comm_rank is not RANK");
  check(provided >= wanted, 16, "thread level not provided");

  if (!strcmp(what, "late-commit")) {
    ring(MPI_COMM_WORLD);
    printf("ok\n");
  } else if (!strcmp(what, "ring")) {
    int local = 0;
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &local);
    check(local == env_number("LOCAL_WORLD_SIZE"), 14, "wrong number of ranks share memory");
    ring(MPI_COMM_WORLD);
    allreduce(MPI_COMM_WORLD, 10000);
    MPI_Comm_free(&host);
    printf("ok\n");
  } else if (!strcmp(what, "hello")) {
    /* only MPI_Init and MPI_Finalize */
  } else if (!strcmp(what, "threads")) {
    threads();
    printf("ok\n");
  } else if (!strcmp(what, "abort")) {
    if (rank == 1) MPI_Abort(MPI_COMM_WORLD, 7);
    pause();
  } else if (!strcmp(what, "die")) {
    ring(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1) raise(SIGKILL);
    pause();
  } else if (!strcmp(what, "exit")) {
    if (rank == 1) _exit(3);
    pause();
  } else if (!strcmp(what, "leave")) {
    ring(MPI_COMM_WORLD);
    if (rank == 1) _exit(0);
    pause();
  } else if (!strcmp(what, "names")) {
    names();
    printf("ok\n");
  } else if (!strcmp(what, "late-peer")) {
    /* Rank 0 talks to ranks that have long been up and to one that comes late into its receive. */
    if (rank == size - 1) sleep(1);
    ring(MPI_COMM_WORLD);
    printf("ok\n");
  } else if (!strcmp(what, "spawn")) {
    spawn(argv[0], MPI_COMM_SELF);
  } else if (!strcmp(what, "spawn-world")) {
    spawn(argv[0], MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return 0;
}
