// Tests of moments in bf16. Their random rounding is a function of seed, step and element, so
// layouts, sharded and resumed runs have the same bits.
#include <doctest/doctest.h>

#include <numeric>

#include "tests/support/open_gate.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "tests/trainer/layouts/layout_runs.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig narrow_moments(config::JobConfig job) {
  job.optimizer.moments = "bf16";
  return job;
}

struct MomentLayout {
  const char* name;
  int ranks;
  void (*change)(config::TopologyConfig&);
};
config::JobConfig laid_out(config::JobConfig job, const MomentLayout& layout) {
  layout.change(job.topology);
  return job;
}

void declare_cut_model(ParameterStore& store) {
  const CutRule rows{.axis = 0}, columns{.axis = 1};
  store.add(
      {"embedding", {17, 3}, Init::normal(1.0), Use::matrix, true, {}, {.axis = 0, .pads = true}});
  store.add(
      {"gate_up", {16, 5}, Init::normal(1.0), Use::matrix, true, {{"gate", 8}, {"up", 8}}, rows});
  store.add({"down", {5, 8}, Init::normal(1.0), Use::matrix, true, {}, columns});
  store.add({"norm", {7}, Init::ones(), Use::vector, false});
}

/// Applies two updates as the rank at `place`, which holds a part of each matrix, with a share of
/// the optimizer's state. The gradient of an element is its initial weight.
void add_updated(Assembled& state, const config::JobConfig& job, CutPlace place, ShareRule share) {
  ExecutionContext context(1);
  ParameterStore store;
  declare_cut_model(store);
  REQUIRE(store.cut({.dense = place}));
  if (share.count > 1) store.shard(share);
  const Layout layout(job.topology, 0, 1);
  Optimizer optimizer(job, store);
  REQUIRE(optimizer.prepare(layout));
  store.finalize(context, DType::f32, share.count * kLineElements, true);
  optimizer.begin(context, layout);
  REQUIRE(optimizer.assign_groups());
  store.initialize(5);
  const auto weights = host_view(store, store.master()),
             gradients = host_view(store, store.gradients());
  for (const auto& parameter : store.parameters())
    for (const OwnRun& run : parameter->own_runs())
      for (std::int64_t i = 0; i < run.flat.elements(); ++i)
        gradients[static_cast<std::size_t>(run.values + i)] =
            weights[static_cast<std::size_t>(run.master + i)];
  for (const std::int64_t step : {1, 2})
    optimizer.update(context, step,
                     open_gate(context, job.optimizer.beta1, job.optimizer.beta2, step));
  state.add(place.index, store, "");
}

TEST_CASE("an element's moments are rounded alike on every rank, cut and shared out or not") {
  config::JobConfig job = narrow_moments(tiny_job());
  Assembled whole;
  add_updated(whole, job, {}, {});
  CHECK(whole.tensors().size() == 12);
  for (const int parts : {1, 2, 4, 8})
    for (const int replicas : {1, 2, 3}) {
      CAPTURE(parts);
      CAPTURE(replicas);
      Assembled cut;
      for (int part = 0; part < parts; ++part)
        for (int replica = 0; replica < replicas; ++replica)
          add_updated(cut, job, {part, parts},
                      {.index = replica, .count = replicas, .bucket_elements = 48});
      CHECK(cut.wrong() == "");
      CHECK(cut.tensors() == whole.tensors());
    }
  // Another seed gives other values, which shows that rounding is random.
  job.trainer.seed += 1;
  Assembled other;
  add_updated(other, job, {}, {});
  CHECK(other.tensors().at("model.down") != whole.tensors().at("model.down"));
  CHECK(other.tensors().at("optimizer.v.down") != whole.tensors().at("optimizer.v.down"));
  CHECK(relative_difference(other.tensors().at("optimizer.v.down"),
                            whole.tensors().at("optimizer.v.down")) <= 1e-2);
}

TEST_CASE("moments in bf16: a sharded optimizer gives the bits of whole replicas") {
  config::JobConfig job = narrow_moments(tiny_job());
  job.topology.global_batch_size = 12;
  job.optimizer.gradient_clipping = 0;  // sharding sums norms in another order
  job.trainer.train_iterations = 6;
  for (const int ranks : {2, 3}) {
    const WholeTensors whole = whole_state(job, ranks, true);
    config::JobConfig sharded = job;
    sharded.topology.parameter_sharding = "optimizer";
    CHECK(whole_state(sharded, ranks, true) == whole);
  }
}

TEST_CASE("moments in bf16: what one layout saves another one loads, to the bit, and goes on") {
  const MomentLayout layouts[] = {
      {"alone", 1, [](auto&) {}},
      {"replicas", 3, [](auto&) {}},
      {"a sharded optimizer", 3, [](auto& one) { one.parameter_sharding = "optimizer"; }},
      {"full sharding", 2, [](auto& one) { one.parameter_sharding = "full"; }},
      {"shared layers", 2, [](auto& one) { one.tensor_parallel_size = 2; }},
      {"stages and shares", 4, [](auto& one) {
         one.pipeline_parallel_size = 2;
         one.parameter_sharding = "optimizer";
       }}};
  for (std::size_t i = 0; i < std::size(layouts); ++i) {
    const MomentLayout &from = layouts[i], &to = layouts[(i + 2) % std::size(layouts)];
    CAPTURE(std::string(from.name));
    CAPTURE(std::string(to.name));
    const sortie::test::ScopedTempDir dir;
    config::JobConfig job = narrow_moments(tiny_job());
    job.topology.global_batch_size = 12;
    job.trainer.train_iterations = 3;
    job.trainer.save_dir = dir.str("run");
    const WholeTensors saved = whole_state(laid_out(job, from), from.ranks, true);
    CHECK(whole_state(laid_out(job, to), to.ranks, false) == saved);
    job.trainer.train_iterations = 5;
    (void)whole_state(laid_out(job, to), to.ranks, true);
  }
}

TEST_CASE("moments in bf16: a run that is cut in two has the bits of one that is not") {
  const MomentLayout layouts[] = {
      {"alone", 1, [](auto&) {}},
      {"a sharded optimizer", 2, [](auto& one) { one.parameter_sharding = "optimizer"; }},
      {"full sharding", 2, [](auto& one) { one.parameter_sharding = "full"; }},
      {"shared experts", 2, [](auto& one) { one.expert_parallel_size = 2; }}};
  for (const MomentLayout& layout : layouts) {
    CAPTURE(std::string(layout.name));
    config::JobConfig job = narrow_moments(
        layout.name == std::string("shared experts") ? mixture_job("mixtral") : tiny_job());
    job = laid_out(job, layout);
    job.learning_rate_scheduler.learning_rate_decay_iters = 12;
    job.trainer.train_iterations = 7;
    const WholeTensors whole = whole_state(job, layout.ranks, true);
    const sortie::test::ScopedTempDir dir;
    job.trainer.save_dir = dir.str("run");
    job.trainer.save_interval = 2;  // saves in the background
    job.trainer.train_iterations = 4;
    (void)whole_state(job, layout.ranks, true);
    job.trainer.train_iterations = 7;
    CHECK(whole_state(job, layout.ranks, true) == whole);
  }
}

TEST_CASE("moments in bf16: a model ends within a hundredth of the loss of f32") {
  config::JobConfig job = tiny_job();
  job.model.sequence_length = 24;
  job.optimizer.beta2 = 0.999;  // with this, rounding to nearest would not change second moments
  job.learning_rate_scheduler.learning_rate = 2e-3;
  job.learning_rate_scheduler.learning_rate_warmup_steps = 10;
  job.trainer.train_iterations = 150;
  const auto last = [&] {
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator);
    const std::vector<double> losses = training.losses(150);
    CHECK(losses.front() > 3.5);
    return std::accumulate(losses.end() - 10, losses.end(), 0.0) / 10;
  };
  const double wide = last();
  CHECK(wide < 2.5);  // it has learned
  job = narrow_moments(job);
  CHECK(last() == doctest::Approx(wide).epsilon(0.01));
}

}  // namespace
}  // namespace sortie::trainer::test
