// bench_family_step CONFIG.json f32|bf16 BATCH TOKENS THREADS: training steps of the model
// that a Hugging Face config.json describes, for tests/bench/family_step. Creates the model after a
// first line on standard input. Each further line is a number of steps to make, answered by a line
// with the seconds of each. At the end of input, prints the peak resident size of all steps.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/bench/random_source.h"
#include "trainer/hf/config_json.h"
#include "trainer/loop/trainer.h"
#include "trainer/metrics/memory.h"
#include "trainer/parallel/communicator.h"

namespace {

using namespace sortie;
using namespace sortie::trainer;

/// Resets the peak resident size.
void restart_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

Result<> run(const std::string& path, DType dtype, std::int64_t batch, std::int64_t tokens,
             int threads) {
  const auto json = nlohmann::json::parse(std::ifstream(path), nullptr, false);
  if (!json.is_object()) return fail(ErrorCode::data, path + ": no JSON object");
  std::string line;
  std::getline(std::cin, line);
  const std::int64_t before = peak_memory_bytes();
  config::JobConfig job;
  SORTIE_ASSIGN_OR_RETURN(job.model, read_hf_config(json, path));
  job.model.sequence_length = tokens;
  job.topology.micro_batch_size = batch;
  job.learning_rate_scheduler.learning_rate = 1e-4;

  RankContext rank;
  rank.threads = threads;
  bench::RandomSource source(job.model.vocab_size);
  SORTIE_ASSIGN_OR_RETURN(EventSink events, EventSink::open(""));
  const auto communicator = make_single_communicator();
  Trainer trainer(job, {1, batch, 1, batch}, rank, *communicator, events, source, {}, cpu_facts(),
                  dtype, "bench");
  SORTIE_TRY(trainer.start());
  restart_peak();
  fmt::print("{{\"parameters\": {}, \"before\": {}}}\n", trainer.store().parameter_elements(),
             before);
  std::fflush(stdout);
  while (std::getline(std::cin, line)) {
    std::vector<double> seconds;
    for (int steps = std::atoi(line.c_str()); steps > 0; --steps) {
      const auto begin = std::chrono::steady_clock::now();
      SORTIE_TRY(trainer.step());
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    fmt::print("{{\"seconds\": [{}]}}\n", fmt::join(seconds, ", "));
    std::fflush(stdout);
  }
  fmt::print("{{\"peak\": {}}}\n", peak_memory_bytes());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    fmt::print(stderr, "usage: bench_family_step CONFIG.json f32|bf16 BATCH TOKENS THREADS\n");
    return 2;
  }
  const Result<> done = run(argv[1], std::string_view(argv[2]) == "bf16" ? DType::bf16 : DType::f32,
                            std::atoll(argv[3]), std::atoll(argv[4]), std::atoi(argv[5]));
  if (!done) fmt::print(stderr, "bench_family_step: {}\n", done.error().message);
  return done ? 0 : 1;
}
