// Tests of what must hold for every dense family in training: the same numbers however a step is
// computed, with dropout, windows and documents, too.
#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include <unistd.h>

#include <algorithm>

#include "common/config/architectures.h"
#include "tests/support/tiny_training.h"
#include "tests/trainer/loop/check_close.h"
#include "trainer/models/families.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// Returns a job with everything that the family supports: grouped heads, windows, dropout
/// everywhere, documents.
config::JobConfig full_job(const std::string& architecture) {
  config::JobConfig job = tiny_job("llama");
  config::ModelConfig& model = job.model;
  model.architecture = architecture;
  const config::Architecture& traits = config::architecture_of(model);
  model.attention_num_kv_heads = traits.grouped ? 2 : 0;
  if (traits.partial_rope && architecture == "gpt-neo-x") model.rotary_percentage = 0.5;
  if (traits.windows) {
    model.attention_layers = {"local", "global"};
    model.attention_window = 5;
  }
  if (traits.rope) {
    model.rope_scaling = "llama3";
    model.rope_scaling_factor = 4.0;
    model.rope_scaling_original_length = 16;
  }
  model.embedding_dropout = 0.1;
  model.attention_dropout = 0.2;
  model.residual_dropout = 0.1;
  model.document_end_token = 7;
  model.reset_positions = true;
  return job;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<float> weights;
};

Outcome outcome_of(const config::JobConfig& job, int steps, int ranks = 1, int threads = 1) {
  std::mutex mutex;
  Outcome outcome;
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    TinyTraining training(job, communicator, DType::f32, threads);
    const std::vector<double> losses = training.losses(steps);
    const auto master = host_values(training.trainer->store(), training.trainer->store().master());
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) outcome = {losses, {master.begin(), master.end()}};
  });
  return outcome;
}

/// Calls `body` for the dense families. mixture_test.cc tests mixtures, in which a small difference
/// can change the choice of a router.
template <class Body>
void for_each_family(const Body& body) {
  for (const Family& family : families()) {
    config::ModelConfig model;
    model.architecture = family.name;
    if (config::architecture_of(model).mixture) continue;
    CAPTURE(std::string(family.name));
    body(std::string(family.name));
  }
}

}  // namespace

TEST_CASE("every family learns a progression") {
  for_each_family([](const std::string& name) {
    config::JobConfig job = full_job(name);
    job.model.embedding_dropout = job.model.attention_dropout = job.model.residual_dropout = 0.0;
    job.model.document_end_token = -1;
    job.model.reset_positions = false;
    const std::vector<double> losses = outcome_of(job, 60).losses;
    CHECK(losses.front() == doctest::Approx(std::log(50.0)).epsilon(0.1));
    CHECK(losses.back() < 0.6 * losses.front());
  });
}

TEST_CASE("every family with dropout: recomputed layers give the same bits, and so does a rerun") {
  for_each_family([](const std::string& name) {
    config::JobConfig job = full_job(name);
    const Outcome plain = outcome_of(job, 5);
    CHECK(outcome_of(job, 5).weights == plain.weights);
    job.topology.activation_checkpointing_type = "every_layer";
    const Outcome again = outcome_of(job, 5);
    CHECK(again.losses == plain.losses);
    CHECK(again.weights == plain.weights);
  });
}

TEST_CASE("every family with dropout: ranks and accumulation drop the same elements") {
  for_each_family([](const std::string& name) {
    const config::JobConfig job = full_job(name);
    const std::vector<double> one = outcome_of(job, 20).losses;
    for (const int ranks : {2, 4}) {
      CAPTURE(ranks);
      check_close(one, outcome_of(job, 20, ranks).losses, 1e-5);
    }
    config::JobConfig whole = job;
    whole.topology.micro_batch_size = 8;
    check_close(one, outcome_of(whole, 20).losses, 1e-5);
  });
}

TEST_CASE("every family with dropout: a resumed run has the bits of one that was never stopped") {
  for_each_family([](const std::string& name) {
    const auto folder = std::filesystem::temp_directory_path() /
                        ("sortie-families-" + std::to_string(::getpid()) + "-" + name);
    std::filesystem::remove_all(folder);
    config::JobConfig job = full_job(name);
    job.learning_rate_scheduler.learning_rate_decay_iters = 20;  // the same schedule for both
    const Outcome straight = outcome_of(job, 6);
    job.trainer.save_dir = folder.string();
    job.trainer.train_iterations = 3;
    job.trainer.save_interval = 3;
    const auto communicator = make_single_communicator();
    {
      TinyTraining first(job, *communicator);
      REQUIRE(first.trainer->run());
    }
    job.trainer.train_iterations = 20;
    TinyTraining second(job, *communicator);
    CHECK(second.trainer->progress().step == 3);
    const std::vector<double> rest = second.losses(3);
    CHECK(std::equal(rest.begin(), rest.end(), straight.losses.begin() + 3));
    const auto master = host_values(second.trainer->store(), second.trainer->store().master());
    CHECK(std::equal(master.begin(), master.end(), straight.weights.begin()));
    std::filesystem::remove_all(folder);
  });
}

TEST_CASE("the gradient of every family is the slope of the loss, dropout and documents included") {
  for_each_family([](const std::string& name) {
    config::JobConfig job = full_job(name);
    job.model.init_std = 0.1;
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator);
    ParameterStore& store = training.trainer->store();
    ExecutionContext& context = training.trainer->context();
    const TinyTraining::Batch batch = training.first_rows(2);
    const auto loss = [&](bool record) {
      store.weights_changed();
      Graph graph(context, record ? Graph::Mode::record : Graph::Mode::inference);
      ForwardContext forward;
      forward.training = true;
      forward.seed = 3;
      const double sum = training.loss(graph, batch, 1.0f, forward).loss_sum;
      if (record) graph.backward({});
      return sum;
    };
    loss(true);
    for (const auto& parameter : store.parameters()) {
      CAPTURE(parameter->name());
      const auto master = host_view(store, store.master());
      const auto gradients = host_view(store, store.gradients());
      float* weights = master.data() + parameter->offset();
      const float* gradient = gradients.data() + parameter->offset();
      const auto count = static_cast<std::size_t>(parameter->elements());
      const std::vector<float> kept(weights, weights + count);
      double norm = 0;
      for (std::size_t i = 0; i < count; ++i)
        norm += static_cast<double>(gradient[i]) * gradient[i];
      norm = std::sqrt(norm);
      REQUIRE(norm > 0);
      const float epsilon = 1e-2f;
      for (const float sign : {1.0f, -1.0f}) {
        CAPTURE(sign);
        for (std::size_t i = 0; i < count; ++i)
          weights[i] = kept[i] + sign * epsilon * static_cast<float>(gradient[i] / norm);
        const double there = loss(false);
        std::copy(kept.begin(), kept.end(), weights);
        const double here = loss(false);
        CHECK(sign * (there - here) / static_cast<double>(epsilon) ==
              doctest::Approx(norm).epsilon(0.05));
      }
    }
  });
}

TEST_CASE("packed documents are computed as if each were alone") {
  for_each_family([](const std::string& name) {
    config::JobConfig job = full_job(name);
    job.model.embedding_dropout = job.model.attention_dropout = job.model.residual_dropout = 0.0;
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator);
    ExecutionContext& context = training.trainer->context();
    const LanguageModel& model = training.trainer->model();
    const auto logits = [&](const std::vector<std::int32_t>& ids) {
      const Tensor tokens = training.to_device(ids, {1, static_cast<std::int64_t>(ids.size())});
      Graph graph(context, Graph::Mode::inference);
      const Tensor out = model.logits(graph, tokens);
      std::vector<std::vector<float>> rows;
      for (std::int64_t row = 0; row < out.size(0); ++row)
        rows.push_back(ops::copy_to_host<float>(context, out.slice(0, row, 1)));
      return rows;
    };
    const auto packed = logits({1, 2, 3, 7, 4, 5, 6, 8, 9, 7, 1});
    const auto first = logits({1, 2, 3, 7}), second = logits({4, 5, 6, 8, 9, 7}),
               third = logits({1});
    std::vector<std::vector<float>> alone = first;
    alone.insert(alone.end(), second.begin(), second.end());
    alone.insert(alone.end(), third.begin(), third.end());
    REQUIRE(packed.size() == alone.size());
    for (std::size_t row = 0; row < packed.size(); ++row)
      for (std::size_t i = 0; i < packed[row].size(); ++i)
        CHECK(packed[row][i] == doctest::Approx(alone[row][i]).epsilon(1e-4));
  });
}
