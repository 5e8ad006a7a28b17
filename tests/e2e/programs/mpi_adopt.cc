// An MPI job across an adoption, in three steps. The second and third start when a file appears in
// the folder argv[1]. First a name is published. With "lost", while there is no supervisor, it is
// looked up, and another name is published. With "adopted", ranks that had not communicated before
// do so, and MPI_Finalize follows. Rank 0 prints "adopt ok" at the end.
#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

void wait_for_file(const std::string& path) {
  while (::access(path.c_str(), F_OK) != 0) ::usleep(20000);
}

void say(int rank, const char* what) {
  std::printf("rank %d %s\n", rank, what);
  std::fflush(stdout);
}

bool found(const char* name, const char* expected) {
  char port[MPI_MAX_PORT_NAME] = {};
  if (MPI_Lookup_name(name, MPI_INFO_NULL, port) != MPI_SUCCESS) return false;
  return std::strcmp(port, expected) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  const std::string folder = argv[1];
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int last = size - 1;
  char first[] = "first-port", second[] = "second-port";
  if (rank == 0) MPI_Publish_name("first", MPI_INFO_NULL, first);
  say(rank, "published");
  wait_for_file(folder + "/lost");
  say(rank, "asks");
  // Rank `last`, on another host, looks up rank 0's name; rank 1 publishes another one.
  if (rank == last && !found("first", first)) MPI_Abort(MPI_COMM_WORLD, 3);
  if (rank == 1) MPI_Publish_name("second", MPI_INFO_NULL, second);
  say(rank, "was answered");
  wait_for_file(folder + "/adopted");
  if (rank == last && !found("second", second)) MPI_Abort(MPI_COMM_WORLD, 4);
  if (rank == last && !found("first", first)) MPI_Abort(MPI_COMM_WORLD, 5);
  int sum = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  for (int step = 1; step < size; ++step) {
    int theirs = -1;
    const int from = (rank + size - step) % size;
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + step) % size, step, &theirs, 1, MPI_INT, from, step,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (theirs != from) MPI_Abort(MPI_COMM_WORLD, 6);
  }
  if (sum != size * (size - 1) / 2) MPI_Abort(MPI_COMM_WORLD, 7);
  if (rank == 0) MPI_Unpublish_name("first", MPI_INFO_NULL, first);
  if (rank == 1) MPI_Unpublish_name("second", MPI_INFO_NULL, second);
  MPI_Finalize();
  if (rank == 0) std::printf("adopt ok size=%d\n", size);
  return 0;
}
