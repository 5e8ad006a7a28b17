// Tests that frozen parameters have no gradient, no moments and no part in the reduction, and
// change no bit of trained ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "common/config/architectures.h"
#include "common/config/training_groups.h"
#include "tests/support/bf16.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "trainer/models/families.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

using Values = std::map<std::string, std::vector<float>>;

config::JobConfig job_of(const Family& family) {
  const std::string name(family.name);
  config::JobConfig job = tiny_job();
  job.model.architecture = name;
  const config::Architecture& traits = config::architecture_of(job.model);
  if (traits.mixture) return mixture_job(name);
  if (!traits.grouped) job.model.attention_num_kv_heads = 0;
  return job;
}

/// Returns the gradients of trained parameters after the backward pass of one micro-batch.
Values gradients_of(const config::JobConfig& job, DType precision) {
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, precision);
  ParameterStore& store = training.trainer->store();
  const TinyTraining::Batch batch = training.first_rows(2);
  Graph graph(training.trainer->context(), Graph::Mode::record);
  ForwardContext forward;
  forward.training = true;
  training.trainer->model().loss(graph, batch.tokens, batch.targets, 1.0f, forward);
  graph.backward({});
  Values all;
  for (const auto& parameter : store.parameters()) {
    CHECK(parameter->pending_uses() == 0);
    CHECK(parameter->grad().defined() == parameter->trained());
    if (!parameter->trained()) continue;
    all[parameter->name()] = host_values(store, parameter->grad());
  }
  return all;
}

Values weights_after(const config::JobConfig& job, int steps, int ranks) {
  std::mutex mutex;
  Values all;
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    TinyTraining training(job, communicator);
    training.losses(steps);
    ParameterStore& store = training.trainer->store();
    const std::lock_guard lock(mutex);
    if (communicator.rank() != 0) return;
    for (const auto& parameter : store.parameters()) {
      all[parameter->name()] =
          host_values(store, store.master().slice(0, parameter->offset(), parameter->elements()));
    }
  });
  return all;
}

void check_freezing(DType precision) {
  const std::vector<std::vector<std::string>> choices = {
      {"embedding.*"},
      {"*norm*"},
      {"layers.0.*"},
      {"*.weight"},
      {"head.*", "layers.1.mlp.*"},
      {"embedding.*", "positions.*", "layers.0.*"}};
  for (const Family& family : families()) {
    CAPTURE(std::string(family.name));
    config::JobConfig job = job_of(family);
    const Values all = gradients_of(job, precision);
    for (const std::vector<std::string>& patterns : choices) {
      job.optimizer.freeze.clear();
      std::size_t expected = 0;
      for (const std::string& pattern : patterns)
        if (std::ranges::any_of(
                all, [&](const auto& entry) { return config::name_matches(pattern, entry.first); }))
          job.optimizer.freeze.push_back(pattern);
      for (const auto& [name, values] : all)
        if (!config::any_matches(job.optimizer.freeze, name)) ++expected;
      if (job.optimizer.freeze.empty() || expected == 0) continue;
      CAPTURE(patterns.front());
      const Values some = gradients_of(job, precision);
      CHECK(some.size() == expected);
      for (const auto& [name, values] : some) {
        CAPTURE(name);
        CHECK(values == all.at(name));
      }
    }
  }
}

}  // namespace

TEST_CASE("freezing any part of any family leaves every other gradient bit for bit") {
  check_freezing(DType::f32);
}

TEST_CASE("freezing any part of any family in bf16 leaves every other gradient bit for bit") {
  if (skips_bf16()) return;
  check_freezing(DType::bf16);
}

TEST_CASE("buffers of gradients and moments hold what is trained alone") {
  config::JobConfig job = tiny_job();
  job.optimizer.freeze = {"embedding.*", "layers.*"};
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  ParameterStore& store = training.trainer->store();
  std::int64_t trained = 0;
  for (const auto& parameter : store.parameters()) {
    if (!parameter->trained()) continue;
    CHECK(parameter->offset() + parameter->elements() <= store.trained_elements());
    trained += parameter->elements();
  }
  const auto size = store.gradients().elements();
  CHECK(size == store.trained_elements());
  CHECK(store.moment1().elements() == size);
  CHECK(store.moment2().elements() == size);
  CHECK(size >= trained);
  CHECK(size < trained + 16 * static_cast<std::int64_t>(store.parameters().size()));
  CHECK(store.master().elements() > 2 * size);
}

TEST_CASE(
    "frozen first layers keep nothing for a backward pass, and recomputation changes no bit") {
  config::JobConfig job = tiny_job();
  job.model.num_layers = 6;
  // Excludes weights that are packed in the first step, which includes frozen ones.
  const auto peak_of = [](const config::JobConfig& run) {
    const auto communicator = make_single_communicator();
    TinyTraining training(run, *communicator);
    const std::size_t before = training.trainer->context().allocator().bytes_in_use();
    training.trainer->context().allocator().reset_peak();
    training.losses(1);
    std::size_t packed = 0;
    for (const auto& parameter : training.trainer->store().parameters())
      packed += parameter->packed_bytes();
    return training.trainer->context().allocator().peak_bytes_in_use() - before - packed;
  };
  const std::size_t all = peak_of(job);
  job.optimizer.freeze = {"embedding.*", "layers.[0-3].*"};
  const std::size_t frozen = peak_of(job);
  config::JobConfig short_job = tiny_job();
  short_job.model.num_layers = 2;
  short_job.optimizer.freeze = {"embedding.*"};
  const auto kept = static_cast<double>(peak_of(short_job));
  CHECK(static_cast<double>(frozen) == doctest::Approx(kept).epsilon(0.02));
  CHECK(all > frozen + 100'000);

  const Values gradients = gradients_of(job, DType::f32);
  job.topology.activation_checkpointing_type = "every_layer";
  CHECK(gradients_of(job, DType::f32) == gradients);
}

TEST_CASE("ranks with frozen parameters train as one does") {
  config::JobConfig job = tiny_job();
  job.optimizer.freeze = {"layers.0.*", "final_norm.*"};
  job.topology.global_batch_size = 4;
  job.topology.micro_batch_size = 1;
  const Values one = weights_after(job, 4, 1);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    for (const auto& [name, values] : weights_after(job, 4, ranks)) {
      CAPTURE(name);
      const std::vector<float>& expected = one.at(name);
      REQUIRE(values.size() == expected.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        REQUIRE(values[i] == doctest::Approx(expected[i]).epsilon(1e-4).scale(1e-2));
    }
  }
}

TEST_CASE("a resumed run may freeze more; what was frozen has no optimizer state to resume with") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = tiny_job();
  job.trainer.save_dir = dir.str("run");
  job.trainer.train_iterations = 4;
  job.optimizer.freeze = {"embedding.*"};
  const auto communicator = make_single_communicator();
  {
    TinyTraining first(job, *communicator);
    REQUIRE(first.trainer->run());
  }
  job.trainer.train_iterations = 8;
  job.optimizer.freeze = {"embedding.*", "layers.0.*"};
  {
    TinyTraining more(job, *communicator);
    CHECK(more.trainer->progress().step == 4);
    more.losses(1);
  }
  job.optimizer.freeze = {"layers.0.*"};
  const std::string error = start_error(job);
  CHECK(error.find("embedding.weight was not trained when the checkpoint of step 4 was saved") !=
        std::string::npos);
  CHECK(error.find("trainer.load_weights_from") != std::string::npos);
}
