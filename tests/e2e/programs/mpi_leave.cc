// The rank named on the command line, or every rank ("all"), exits with 0 without MPI_Finalize; the
// others wait in a barrier.
#include <mpi.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Barrier(MPI_COMM_WORLD);
  if (argc > 1 && (std::string_view(argv[1]) == "all" || rank == std::atoi(argv[1]))) _exit(0);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
