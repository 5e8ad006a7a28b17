// Tests of checkpoints whose moments have another type than those of the run that loads them.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "tests/support/state_values.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/state/state_view.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

config::JobConfig job_with_moments(const std::string& moments, const std::string& save_dir) {
  config::JobConfig job = tiny_job();
  job.optimizer.moments = moments;
  job.trainer.save_dir = save_dir;
  job.trainer.train_iterations = 3;
  return job;
}

std::map<std::string, std::vector<float>> state_by_name(ParameterStore& store) {
  std::map<std::string, std::vector<float>> state;
  const StateView view(store);
  for (const StatePiece& piece : view.pieces(TiedCopies::include))
    state[piece.name] = values_of(piece);
  return state;
}

/// Returns what a run reports about the moments of the checkpoint that it resumes from.
std::vector<std::string> told_of(const config::JobConfig& job) {
  const auto communicator = make_single_communicator();
  config::JobConfig unsaved = job;
  unsaved.trainer.save_dir.clear();
  TinyTraining training(unsaved, *communicator);
  BitFacts facts;
  Checkpointer loader(job, facts, training.trainer->store(), training.trainer->layout(),
                      training.trainer->context());
  REQUIRE(loader.prepare());
  const auto loaded = loader.load();
  REQUIRE(loaded);
  REQUIRE(*loaded);
  std::vector<std::string> texts;
  for (const std::string& text : (*loaded)->differences)
    if (text.find("moments") != std::string::npos) texts.push_back(text);
  return texts;
}

}  // namespace

TEST_CASE("moments are rounded, or go on as they are, where a run keeps them in another type") {
  const auto communicator = make_single_communicator();
  for (const bool narrows : {true, false}) {
    CAPTURE(narrows);
    const std::string before = narrows ? "f32" : "bf16", after = narrows ? "bf16" : "f32";
    const sortie::test::ScopedTempDir dir;
    const config::JobConfig job = job_with_moments(before, dir.str("run"));
    auto saved = [&] {
      TinyTraining training(job, *communicator);
      REQUIRE(training.trainer->run());
      return state_by_name(training.trainer->store());
    }();
    auto reader = CheckpointReader::open(dir / "run/step-00000003", CheckDepth::hashes);
    REQUIRE(reader);
    for (const auto& [name, tensor] : reader->manifest().tensors) {
      const bool moment = name.starts_with("optimizer.");
      CHECK(tensor.type == (moment && !narrows ? StorageType::bf16 : StorageType::f32));
    }
    CHECK(told_of(job).empty());
    CHECK(told_of(job_with_moments(after, dir.str("run"))) ==
          std::vector<std::string>{
              narrows ? "optimizer.moments: was f32, is bf16: the moments are rounded to it"
                      : "optimizer.moments: was bf16, is f32: the moments go on with those bits"});
    if (narrows)
      for (auto& [name, values] : saved)
        if (name.starts_with("optimizer."))
          for (float& value : values) value = static_cast<float>(bf16(value));
    config::JobConfig other = job_with_moments(after, dir.str("run"));
    other.trainer.train_iterations = 5;
    TinyTraining training(other, *communicator);
    CHECK(training.trainer->progress().step == 3);
    CHECK(state_by_name(training.trainer->store()) == saved);
    REQUIRE(training.trainer->run());
  }
}
