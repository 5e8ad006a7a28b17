// bench_shared_layers THREADS ROUNDS [HIDDEN LAYERS TOKENS BATCH f32|bf16 layers|experts], on the
// ranks of mpirun: work per second of ranks that share every layer (tensor and sequence
// parallelism), or that divide the experts of every mixture (expert parallelism), compared with
// that of as many ranks that each train their own model. Rounds with a step of either kind
// alternate. Rank 0 prints JSON: seconds of the steps and the ratio.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <string_view>

#include "tests/bench/median.h"
#include "tests/bench/trainers_beside.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;

Result<> run(int threads, int rounds, config::JobConfig job, DType dtype) {
  SORTIE_ASSIGN_OR_RETURN(const auto world, bench::mpi_world());
  const auto self = make_single_communicator();
  bench::TimedTrainer alone(job, *self, threads, dtype);
  const bool experts = job.model.architecture == "mixtral";
  if (experts) {
    job.topology.expert_parallel_size = world->size();
  } else {
    job.topology.tensor_parallel_size = world->size();
    job.topology.sequence_parallel = true;
  }
  bench::TimedTrainer shared(job, *world, threads, dtype);
  std::vector<double> seconds[2];
  SORTIE_TRY(alone.training->start());
  SORTIE_TRY(shared.training->start());
  for (int round = -1; round < rounds; ++round)  // the first round is warm-up: plans, memory
    for (const int kind : {0, 1}) {
      SORTIE_ASSIGN_OR_RETURN(const double taken,
                              bench::timed_step(*world, *(kind == 0 ? alone : shared).training));
      if (round >= 0) seconds[kind].push_back(taken);
    }
  if (world->rank() != 0) return {};
  const double one = bench::median(seconds[0]), all = bench::median(seconds[1]);
  fmt::print("{{\"ranks\": {}, \"alone\": [{:.4f}], \"shared\": [{:.4f}], \"ratio\": {:.3f}}}\n",
             world->size(), fmt::join(seconds[0], ", "), fmt::join(seconds[1], ", "),
             one / (experts ? all : all * world->size()));  // each replica has its own batch
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr,
               "usage: bench_shared_layers THREADS ROUNDS [HIDDEN LAYERS TOKENS BATCH f32|bf16 "
               "layers|experts]\n");
    return 2;
  }
  const auto size = [&](int index, std::int64_t otherwise) {
    return argc > index ? std::atoll(argv[index]) : otherwise;
  };
  config::JobConfig job;
  job.model.architecture = argc > 8 && std::string_view(argv[8]) == "experts" ? "mixtral" : "llama";
  job.model.vocab_size = 32000;
  job.model.hidden_size = size(3, 768);
  job.model.num_layers = size(4, 6);
  job.model.num_attention_heads = job.model.hidden_size / 64;
  job.model.sequence_length = size(5, 512);
  job.topology.micro_batch_size = size(6, 2);
  job.learning_rate_scheduler.learning_rate = 1e-4;
  const bool bf16 = argc > 7 && std::string_view(argv[7]) == "bf16";
  const Result<> done =
      run(std::atoi(argv[1]), std::atoi(argv[2]), job, bf16 ? DType::bf16 : DType::f32);
  if (!done) fmt::print(stderr, "bench_shared_layers: {}\n", done.error().message);
  return done ? 0 : 1;
}
