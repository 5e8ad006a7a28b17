// Trainings whose steps are timed alternately on the ranks of mpirun.
#pragma once

#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/bench/random_source.h"
#include "trainer/loop/trainer.h"
#include "trainer/parallel/communicator.h"

namespace sortie::bench {

using trainer::Communicator;
using trainer::Trainer;

/// A trainer with the objects that it refers to.
struct TimedTrainer {
  TimedTrainer(const config::JobConfig& job_config, Communicator& world, int threads,
               trainer::DType dtype)
      : job(job_config),
        source(job.model.vocab_size),
        events(trainer::EventSink::open("").value()) {
    rank.rank = world.rank();
    rank.world_size = world.size();
    rank.threads = threads;
    const auto batch = config::resolve_batch(job.topology, world.size());
    training = std::make_unique<Trainer>(job, batch.plan, rank, world, events, source,
                                         std::vector<trainer::ValidationSet>{},
                                         trainer::cpu_facts(), dtype, "bench");
  }
  config::JobConfig job;
  RandomSource source;
  trainer::EventSink events;
  trainer::RankContext rank;
  std::unique_ptr<Trainer> training;
};

/// Returns a communicator over the ranks of mpirun.
inline Result<std::unique_ptr<Communicator>> mpi_world() {
  const auto number = [](const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? 0 : std::atoi(text);
  };
  return trainer::make_mpi_communicator(number("OMPI_COMM_WORLD_RANK"),
                                        number("OMPI_COMM_WORLD_SIZE"));
}

/// Returns the seconds of a step that all ranks of `world` make at the same time.
inline Result<double> timed_step(Communicator& world, Trainer& training) {
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  SORTIE_TRY(training.step());
  world.barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace sortie::bench
