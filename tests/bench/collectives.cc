// One rank of tests/bench/collectives: in-place all-reduce of f32 sums by Sortie, MPI_Allreduce and
// MPI_Iallreduce without tuning, interleaved. Rank 0 prints one line of JSON per size.
//
//   bench_collectives ROUNDS SECONDS BYTES...
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "common/base/elapsed.h"
#include "tests/bench/median.h"
#include "trainer/parallel/communicator.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

int number_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

double slowest(double seconds) {
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

double seconds_of(const std::function<void()>& work, int times) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) work();
  return slowest(seconds_since(begin)) / times;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int rounds = std::atoi(argv[1]);
  const double seconds = std::atof(argv[2]);
  auto made = make_mpi_communicator(number_of("RANK"), number_of("WORLD_SIZE"));
  if (!made) {
    fmt::print(stderr, "{}\n", made.error().message);
    return 1;
  }
  Communicator& group = **made;
  for (int argument = 3; argument < argc; ++argument) {
    const std::int64_t count = std::atoll(argv[argument]) / 4;
    std::vector<float> values(static_cast<std::size_t>(count));
    const auto fill = [&] {
      for (std::int64_t i = 0; i < count; ++i)
        values[static_cast<std::size_t>(i)] = static_cast<float>((i + group.rank()) % 7);
    };
    const Tensor tensor = Tensor::wrap(values.data(), DType::f32, {count});
    const int mpi_count = static_cast<int>(count);
    const std::pair<const char*, std::function<void()>> rows[] = {
        {"sortie", [&] { group.all_reduce(tensor, ReduceOp::sum); }},
        {"MPI_Allreduce",
         [&] {
           MPI_Allreduce(MPI_IN_PLACE, values.data(), mpi_count, MPI_FLOAT, MPI_SUM,
                         MPI_COMM_WORLD);
         }},
        {"MPI_Iallreduce",
         [&] {
           MPI_Request request;
           MPI_Iallreduce(MPI_IN_PLACE, values.data(), mpi_count, MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD, &request);
           MPI_Wait(&request, MPI_STATUS_IGNORE);
         }},
    };
    std::vector<std::vector<double>> took(std::size(rows));
    for (std::size_t row = 0; row < std::size(rows); ++row) {  // warms up, and checks the values
      fill();
      rows[row].second();
      for (std::int64_t i = 0; i < count; ++i) {
        float expected = 0;
        for (int rank = 0; rank < group.size(); ++rank)
          expected += static_cast<float>((i + rank) % 7);
        if (values[static_cast<std::size_t>(i)] == expected) continue;
        fmt::print(stderr, "{}: element {} is wrong\n", rows[row].first, i);
        group.abort(1);
      }
    }
    std::ranges::fill(values, 0.0f);
    const double once = seconds_of(rows[0].second, 1);
    const int times = std::clamp(static_cast<int>(seconds / once), 1, 1000);
    for (int round = 0; round < rounds; ++round)
      for (std::size_t row = 0; row < std::size(rows); ++row)
        took[row].push_back(seconds_of(rows[row].second, times));
    if (group.rank() != 0) continue;
    std::string text =
        fmt::format("\"bytes\": {}, \"ranks\": {}, \"times\": {}", count * 4, group.size(), times);
    for (std::size_t row = 0; row < std::size(rows); ++row)
      text += fmt::format(", \"{}\": {{\"median\": {}, \"best\": {}}}", rows[row].first,
                          bench::median(took[row]), *std::ranges::min_element(took[row]));
    fmt::print("{{{}}}\n", text);
    std::fflush(stdout);
  }
  return 0;
}
