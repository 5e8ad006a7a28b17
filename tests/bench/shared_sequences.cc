// bench_shared_sequences THREADS ROUNDS [TOKENS HIDDEN LAYERS f32|bf16 every_layer|disabled], on
// the ranks of mpirun: work per second of ranks that share every sequence (context parallelism),
// compared with that of as many ranks that train on their own sequences, and the memory of a rank.
// With ROUNDS = 0 the ranks make one step together, without a comparison: for sequences that are
// too long for one rank. Rank 0 prints JSON.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "tests/bench/median.h"
#include "tests/bench/trainers_beside.h"
#include "trainer/metrics/memory.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;

Result<> run(int threads, int rounds, config::JobConfig job, DType dtype) {
  SORTIE_ASSIGN_OR_RETURN(const auto world, bench::mpi_world());
  const auto self = make_single_communicator();
  std::unique_ptr<bench::TimedTrainer> alone;
  if (rounds > 0) {
    alone = std::make_unique<bench::TimedTrainer>(job, *self, threads, dtype);
    SORTIE_TRY(alone->training->start());
  }
  job.topology.context_parallel_size = world->size();
  bench::TimedTrainer shared(job, *world, threads, dtype);
  SORTIE_TRY(shared.training->start());
  std::vector<double> seconds[2];
  for (int round = rounds > 0 ? -1 : 0; round < std::max(rounds, 1); ++round) {
    // The first of several rounds is warm-up: plans, memory.
    for (const int kind : {0, 1}) {
      if (kind == 0 && !alone) continue;
      SORTIE_ASSIGN_OR_RETURN(
          const double taken,
          bench::timed_step(*world, kind == 0 ? *alone->training : *shared.training));
      if (round >= 0) seconds[kind].push_back(taken);
    }
  }
  const MemoryUse use =
      tensor_memory(shared.training->store(), shared.training->context().allocator());
  const auto all = world->all_gather(
      fmt::format("{:.1f} {:.1f}", static_cast<double>(use.activations) / 1048576.0,
                  static_cast<double>(peak_memory_bytes()) / 1048576.0));
  if (world->rank() != 0) return {};
  const double ratio = alone
                           ? bench::median(seconds[0]) / (bench::median(seconds[1]) * world->size())
                           : std::nan("");
  fmt::print(
      "{{\"ranks\": {}, \"tokens\": {}, \"alone\": [{:.4f}], \"shared\": [{:.4f}], "
      "\"ratio\": {:.3f}, \"activations and peak MiB by rank\": [\"{}\"]}}\n",
      world->size(), job.model.sequence_length, fmt::join(seconds[0], ", "),
      fmt::join(seconds[1], ", "), ratio, fmt::join(all, "\", \""));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr,
               "usage: bench_shared_sequences THREADS ROUNDS [TOKENS HIDDEN LAYERS f32|bf16 "
               "every_layer|disabled]\n");
    return 2;
  }
  const auto size = [&](int index, std::int64_t otherwise) {
    return argc > index ? std::atoll(argv[index]) : otherwise;
  };
  config::JobConfig job;
  job.model.architecture = "llama";
  job.model.vocab_size = 1024;
  job.model.sequence_length = size(3, 8192);
  job.model.hidden_size = size(4, 256);
  job.model.num_layers = size(5, 4);
  job.model.num_attention_heads = std::max<std::int64_t>(1, job.model.hidden_size / 64);
  job.topology.micro_batch_size = 1;
  job.learning_rate_scheduler.learning_rate = 1e-4;
  const bool bf16 = argc > 6 && std::string_view(argv[6]) == "bf16";
  if (argc > 7) job.topology.activation_checkpointing_type = argv[7];
  const Result<> done =
      run(std::atoi(argv[1]), std::atoi(argv[2]), job, bf16 ? DType::bf16 : DType::f32);
  if (!done) fmt::print(stderr, "bench_shared_sequences: {}\n", done.error().message);
  return done ? 0 : 1;
}
