// Tests of what must hold on every device: a step has the same bits if its ops run late, in any
// order that streams and events allow, and the meta device counts what the CPU uses.
#include <doctest/doctest.h>

#include "tests/support/bf16.h"
#include "tests/support/every_case.h"
#include "tests/support/open_gate.h"
#include "tests/support/tiny_mixture.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

config::JobConfig job_of(const std::string& architecture) {
  const bool mixture = architecture == "deepseek-v3" || architecture == "mixtral";
  config::JobConfig job = mixture ? mixture_job(architecture) : tiny_job(architecture);
  job.model.embedding_dropout = mixture ? 0.0 : 0.1;
  job.model.document_end_token = 7;
  job.model.reset_positions = true;
  job.optimizer.gradient_clipping = 1.0;
  return job;
}

struct StepsOutcome {
  std::vector<double> losses;
  std::vector<float> weights;
  bool operator==(const StepsOutcome&) const = default;
};

/// Takes two steps and returns the outcome of rank 0. `late_seed` 0: ops run at once.
StepsOutcome steps_outcome_of(const config::JobConfig& job, std::uint64_t late_seed,
                              int ranks = 1) {
  StepsOutcome outcome;
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    TinyTraining training(job, communicator);
    if (late_seed != 0)
      training.trainer->context().defer(late_seed +
                                        static_cast<std::uint64_t>(communicator.rank()));
    std::vector<double> losses = training.losses(2);
    if (communicator.rank() != 0) return;
    ParameterStore& store = training.trainer->store();
    outcome = {std::move(losses), host_values(store, store.master())};
  });
  return outcome;
}

/// Bytes and operations of the forward pass, backward pass and update of one micro-batch.
struct Cost {
  std::size_t peak = 0, in_use = 0, reserved = 0;
  std::int64_t flop = 0;
};

Cost cost_of(const config::JobConfig& job, DType dtype, bool recompute, Device device) {
  ExecutionContext context(1, device);
  context.keep_packed_weights(job.topology.gradient_accumulation_steps > 1);
  ParameterStore store;
  const LanguageModel model(context, job.model, store, recompute);
  Optimizer optimizer(job, store);
  REQUIRE(optimizer.assign_groups());
  store.finalize(context, dtype, 16, true);
  store.initialize(1);
  store.refresh_compute_copy(context);
  for (int step = 1; step <= 2; ++step) {
    std::vector<std::int32_t> ids;  // spread over the experts
    for (std::uint64_t i = 0; i < 2 * static_cast<std::uint64_t>(job.model.sequence_length); ++i)
      ids.push_back(static_cast<std::int32_t>(random_bits(1, i) % 50));
    const Tensor tokens =
        ops::tensor_from_host<std::int32_t>(context, ids, {2, job.model.sequence_length});
    ForwardContext forward;
    forward.training = true;
    Graph graph(context, Graph::Mode::record);
    (void)model.loss(graph, tokens, tokens, 1.0f, forward);
    graph.backward({});
    Tensor norm = context.empty(DType::f64, {1});
    optimizer.squared_gradient_norm(context, Layout(job.topology, 0, 1), norm);
    optimizer.update(context, step, open_gate(context, 0.9, 0.95, step));
    store.zero_gradients();
  }
  const Allocator& allocator = context.allocator();
  return {allocator.peak_bytes_in_use(), allocator.bytes_in_use(), allocator.bytes_reserved(),
          context.flop()};
}

}  // namespace

TEST_CASE("ops that run late, in any order that events allow, give the same bits") {
  if (device().kind != DeviceKind::cpu) return;  // only CPU contexts can defer ops
  for (const char* architecture : {"llama", "gpt2", "deepseek-v3", "mixtral"}) {
    CAPTURE(std::string(architecture));
    const config::JobConfig job = job_of(architecture);
    const StepsOutcome at_once = steps_outcome_of(job, 0);
    for (std::uint64_t seed = 1; seed <= (sortie::test::every_case() ? 20 : 5); ++seed) {
      CAPTURE(seed);
      CHECK(steps_outcome_of(job, seed) == at_once);
    }
  }
}

TEST_CASE("late ops and the reduction of gradients wait for each other") {
  if (device().kind != DeviceKind::cpu) return;
  const config::JobConfig job = job_of("llama");
  const StepsOutcome at_once = steps_outcome_of(job, 0, 2);
  for (std::uint64_t seed = 1; seed <= (sortie::test::every_case() ? 10 : 3); ++seed) {
    CAPTURE(seed);
    CHECK(steps_outcome_of(job, 100 * seed, 2) == at_once);
  }
}

TEST_CASE("the meta device allocates and counts what a step takes") {
  for (const char* architecture : {"llama", "gpt2", "gpt-neo-x", "deepseek-v3", "mixtral"})
    for (const bool recompute : {false, true})
      for (const bool keeps : {false, true}) {
        CAPTURE(std::string(architecture));
        CAPTURE(recompute);
        CAPTURE(keeps);
        config::JobConfig job = job_of(architecture);
        job.topology.gradient_accumulation_steps = keeps ? 2 : 1;
        const DType dtype = narrow_type();
        const Cost real = cost_of(job, dtype, recompute, {});
        const Cost meta = cost_of(job, dtype, recompute, {.kind = DeviceKind::meta});
        CHECK(meta.flop == real.flop);
        CHECK(meta.flop > 0);
        const auto near = [](std::size_t a, std::size_t b) {
          return doctest::Approx(static_cast<double>(b)).epsilon(0.01) == static_cast<double>(a);
        };
        CAPTURE(meta.peak);
        CAPTURE(real.peak);
        CAPTURE(meta.in_use);
        CAPTURE(real.in_use);
        CAPTURE(meta.reserved);
        CAPTURE(real.reserved);
        CHECK(near(meta.peak, real.peak));
        CHECK(near(meta.in_use, real.in_use));
        CHECK(near(meta.reserved, real.reserved));
      }
}
