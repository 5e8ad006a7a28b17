// Sends a token once around all ranks, then runs all-reduces of growing size, and checks every
// value on every rank. Rank 0 prints "ring ok size=<ranks> sum=<sum of ranks>" at the end. Aborts
// with code 1 if a value is wrong.
#include <mpi.h>

#include <cstdio>
#include <vector>

namespace {

bool ring(int rank, int size) {
  const int next = (rank + 1) % size;
  const int previous = (rank + size - 1) % size;
  int token = 0;
  if (rank == 0) {
    if (size > 1) {
      MPI_Send(&token, 1, MPI_INT, next, 7, MPI_COMM_WORLD);
      MPI_Recv(&token, 1, MPI_INT, previous, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return token == size * (size - 1) / 2;
  }
  MPI_Recv(&token, 1, MPI_INT, previous, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  token += rank;
  MPI_Send(&token, 1, MPI_INT, next, 7, MPI_COMM_WORLD);
  return true;
}

bool all_reduce(int rank, int size, int count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = rank + i;
  MPI_Allreduce(MPI_IN_PLACE, values.data(), count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  const double ranks = size * (size - 1) / 2.0;
  for (int i = 0; i < count; ++i) {
    const double expected = ranks + static_cast<double>(i) * size;
    if (values[static_cast<std::size_t>(i)] != expected) {
      std::fprintf(stderr, "rank %d: element %d of %d is %g, not %g\n", rank, i, count,
                   values[static_cast<std::size_t>(i)], expected);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  bool good = ring(rank, size);
  for (int count = 1; count <= 1 << 18; count *= 64) good = all_reduce(rank, size, count) && good;
  if (!good) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) std::printf("ring ok size=%d sum=%d\n", size, size * (size - 1) / 2);
  MPI_Finalize();
  return 0;
}
