#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

#include "tests/support/bf16.h"
#include "tests/support/tiny_training.h"
#include "tests/trainer/loop/check_close.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

std::vector<double> losses_of(const config::JobConfig& job, int steps, int ranks = 1,
                              DType precision = DType::f32, int threads = 1, bool masked = false) {
  std::mutex mutex;
  std::vector<double> out;
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    TinyTraining training(job, communicator, precision, threads,
                          masked ? std::make_unique<MaskedSource>(job.model.vocab_size) : nullptr);
    const std::vector<double> mine = training.losses(steps);
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) out = mine;
  });
  return out;
}

}  // namespace

TEST_CASE("both architectures learn a progression") {
  for (const char* architecture : {"llama", "gpt-neo-x"}) {
    CAPTURE(architecture);
    const std::vector<double> losses = losses_of(tiny_job(architecture), 60);
    CHECK(losses.front() == doctest::Approx(std::log(50.0)).epsilon(0.1));
    CHECK(losses.back() < 0.5 * losses.front());
  }
}

TEST_CASE("the same seed gives the same bits twice") {
  CHECK(losses_of(tiny_job(), 20) == losses_of(tiny_job(), 20));
}

TEST_CASE("recomputed layers give the same bits") {
  for (const char* architecture : {"llama", "gpt-neo-x"}) {
    CAPTURE(architecture);
    config::JobConfig job = tiny_job(architecture);
    const std::vector<double> plain = losses_of(job, 10);
    job.topology.activation_checkpointing_type = "every_layer";
    CHECK(losses_of(job, 10) == plain);
  }
}

TEST_CASE("data parallel ranks equal one rank with the same global batch") {
  const std::vector<double> one = losses_of(tiny_job(), 20);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    check_close(one, losses_of(tiny_job(), 20, ranks), 1e-5);
  }
}

TEST_CASE("accumulation equals one large micro-batch") {
  config::JobConfig whole = tiny_job();
  whole.topology.micro_batch_size = 8;
  check_close(losses_of(tiny_job(), 20), losses_of(whole, 20), 1e-5);
}

TEST_CASE("with masked targets a step is the mean over the tokens that count, however it is cut") {
  config::JobConfig whole = tiny_job();
  whole.topology.micro_batch_size = 8;
  const std::vector<double> one = losses_of(whole, 20, 1, DType::f32, 1, true);
  check_close(one, losses_of(tiny_job(), 20, 1, DType::f32, 1, true), 1e-5);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    check_close(one, losses_of(tiny_job(), 20, ranks, DType::f32, 1, true), 1e-5);
  }
  // The first loss, computed by hand. The mean of the means of micro-batches is a different number.
  const auto communicator = make_single_communicator();
  TinyTraining training(tiny_job(), *communicator);
  MaskedSource source(training.job.model.vocab_size);
  ExecutionContext& context = training.trainer->context();
  double sum = 0, count = 0, means = 0;
  for (std::int64_t micro = 0; micro < 4; ++micro) {
    std::vector<std::int32_t> tokens(2 * 19), targets(2 * 19);
    for (std::int64_t row = 0; row < 2; ++row) {
      const auto begin = static_cast<std::size_t>(row) * 19;
      REQUIRE(source.sample(2 * micro + row, std::span(tokens).subspan(begin, 19),
                            std::span(targets).subspan(begin, 19)));
    }
    ForwardContext forward;
    Graph graph(context, Graph::Mode::inference);
    const auto loss = training.loss(
        graph, {training.to_device(tokens, {2, 19}), training.to_device(targets, {2, 19})}, 0.0f,
        forward);
    sum += loss.loss_sum;
    count += static_cast<double>(loss.count);
    means += loss.loss_sum / static_cast<double>(loss.count) / 4;
  }
  CHECK(one[0] == doctest::Approx(sum / count).epsilon(1e-6));
  CHECK(std::abs(one[0] - means) > 2e-5 * one[0]);
}

TEST_CASE("bf16 follows f32") {
  if (!multiplies_bf16()) {
    // Without the instructions, bf16 is refused, and this tests the refusal.
    CHECK(choose_precision("bf16", cpu_facts()).error().code == ErrorCode::unsupported);
    return;
  }
  check_close(losses_of(tiny_job(), 20), losses_of(tiny_job(), 20, 1, DType::bf16), 3e-2);
}

TEST_CASE("the gradient of a step is the slope of the loss") {
  for (const char* architecture : {"llama", "gpt-neo-x"}) {
    for (const bool tied : {true, false}) {
      for (const bool parallel : {true, false}) {
        CAPTURE(architecture);
        CAPTURE(tied);
        CAPTURE(parallel);
        config::JobConfig job = tiny_job(architecture);
        job.model.weight_tying = tied;
        job.model.parallel_residual = parallel;
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
          const double sum = training.loss(graph, batch, 1.0f, forward).loss_sum;
          if (record) graph.backward({});
          return sum;
        };
        loss(true);
        // Compares, for each parameter, the central difference along a random direction, in f32,
        // with the inner product of the direction and the gradient.
        for (const auto& parameter : store.parameters()) {
          CAPTURE(parameter->name());
          const auto master = host_view(store, store.master());
          const auto gradients = host_view(store, store.gradients());
          float* weights = master.data() + parameter->offset();
          const float* gradient = gradients.data() + parameter->offset();
          const auto count = static_cast<std::size_t>(parameter->elements());
          const std::vector<float> kept(weights, weights + count);
          double slope = 0, scale = 0;
          const float epsilon = 1e-2f;
          std::vector<float> direction(count);
          for (std::size_t i = 0; i < count; ++i)
            scale += static_cast<double>(gradient[i]) * gradient[i];
          scale = std::sqrt(scale);
          REQUIRE(scale > 0);
          // Mostly along the gradient, so that the slope exceeds f32 rounding.
          for (std::size_t i = 0; i < count; ++i) {
            direction[i] = static_cast<float>(gradient[i] / scale) +
                           0.1f * random_normal(5, i) / std::sqrt(static_cast<float>(count));
            slope += static_cast<double>(direction[i]) * gradient[i];
          }
          for (std::size_t i = 0; i < count; ++i) weights[i] = kept[i] + epsilon * direction[i];
          const double above = loss(false);
          for (std::size_t i = 0; i < count; ++i) weights[i] = kept[i] - epsilon * direction[i];
          const double below = loss(false);
          std::copy(kept.begin(), kept.end(), weights);
          CHECK((above - below) / (2 * epsilon) == doctest::Approx(slope).epsilon(0.01));
        }
      }
    }
  }
}

TEST_CASE("a step with non-finite gradients changes nothing but the position") {
  const auto communicator = make_single_communicator();
  TinyTraining training(tiny_job(), *communicator);
  training.losses(2);
  ParameterStore& store = training.trainer->store();
  const std::vector<float> before = host_values(store, store.master());
  host_view(store, store.gradients())[3] = std::nanf("");  // as if a kernel had produced it
  const auto report = training.trainer->step();
  REQUIRE(report);
  CHECK(report->skipped);
  CHECK(training.trainer->progress().step == 3);
  CHECK(training.trainer->progress().updates == 2);
  CHECK(training.trainer->progress().consecutive_skips == 1);
  CHECK(before == host_values(store, store.master()));
  CHECK(!training.trainer->step()->skipped);
  CHECK(training.trainer->progress().consecutive_skips == 0);
}

TEST_CASE("steady state allocates nothing") {
  const auto communicator = make_single_communicator();
  TinyTraining training(tiny_job(), *communicator);
  training.losses(2);
  const std::size_t before = training.trainer->context().allocator().system_allocations();
  training.losses(5);
  CHECK(training.trainer->context().allocator().system_allocations() == before);
}
