// MPI_THREAD_MULTIPLE: four threads of every rank exchange values with the same threads of all
// other ranks at the same time. Rank 0 prints "threads ok size=<ranks>" at the end. Aborts with
// code 1 if a value is wrong.
#include <mpi.h>

#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 10;

/// Thread `tag` of this rank sends to every other rank's thread `tag` and receives from each.
void exchange(int rank, int size, int tag, int& wrong) {
  for (int round = 0; round < kRounds; ++round) {
    for (int step = 1; step < size; ++step) {
      const int to = (rank + step) % size;
      const int from = (rank + size - step) % size;
      const int mine = (rank * kThreads + tag) * kRounds + round;
      int theirs = -1;
      MPI_Sendrecv(&mine, 1, MPI_INT, to, tag, &theirs, 1, MPI_INT, from, tag, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
      if (theirs != (from * kThreads + tag) * kRounds + round) ++wrong;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (provided != MPI_THREAD_MULTIPLE) MPI_Abort(MPI_COMM_WORLD, 1);
  std::vector<int> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int tag = 0; tag < kThreads; ++tag)
    threads.emplace_back(exchange, rank, size, tag, std::ref(wrong[static_cast<std::size_t>(tag)]));
  for (std::thread& thread : threads) thread.join();
  int total = 0;
  for (const int count : wrong) total += count;
  MPI_Allreduce(MPI_IN_PLACE, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (total != 0) MPI_Abort(MPI_COMM_WORLD, 1);
  if (rank == 0) std::printf("threads ok size=%d\n", size);
  MPI_Finalize();
  return 0;
}
