// The smallest MPI program: prints its rank and host. Benchmarks of MPI start-up launch it.
#include <mpi.h>

#include <cstdio>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  int length = 0;
  char host[MPI_MAX_PROCESSOR_NAME];
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Get_processor_name(host, &length);
  std::printf("hello from %d of %d on %s\n", rank, size, host);
  std::fflush(stdout);  // at once: benchmarks measure when all are past MPI_Init
  MPI_Finalize();
  return 0;
}
