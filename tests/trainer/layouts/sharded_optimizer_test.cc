// Compares replicas that each keep a share of the optimizer's state with replicas that keep all of
// it: sums of gradients and updates are the same, so the bits are the same.
#include <doctest/doctest.h>

#include "tests/support/bf16.h"
#include "tests/support/every_case.h"
#include "tests/support/tiny_mixture.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/loop/replica_check.h"
#include "trainer/ops/copy.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig sharded(config::JobConfig job) {
  job.topology.parameter_sharding = "optimizer";
  return job;
}

/// Checks that weights, losses and first moments of a sharded run have the bits of an unsharded
/// run. Norms are summed in another order and may differ by rounding.
void check_same_bits(const config::JobConfig& job, int ranks, int steps,
                     DType precision = DType::f32, const ThreadRankOptions& delays = {}) {
  CAPTURE(ranks);
  const LayoutRun whole = run_layout(job, ranks, steps, precision);
  const LayoutRun cut = run_layout(sharded(job), ranks, steps, precision, delays);
  CHECK(cut.wrong == "");
  CHECK(cut.losses == whole.losses);
  CHECK(cut.weights == whole.weights);
  CHECK(cut.gradients == whole.gradients);
  REQUIRE(cut.norms.size() == whole.norms.size());
  for (std::size_t i = 0; i < cut.norms.size(); ++i)
    CHECK(cut.norms[i] == doctest::Approx(whole.norms[i]).epsilon(1e-12));
}

TEST_CASE("a sharded optimizer gives the bits of whole replicas: 20 steps of 2, 3 and 4 ranks") {
  config::JobConfig job = tiny_job();
  check_same_bits(job, 2, 20);
  check_same_bits(job, 4, 20, narrow_type());
  job.topology.global_batch_size = 12;
  check_same_bits(job, 3, 20, narrow_type());
  // One bucket for all parameters, and many buckets within each matrix.
  for (const std::int64_t bucket : {std::int64_t{1} << 30, std::int64_t{1}}) {
    job.optimizer.allreduce_bucket_size = bucket;
    check_same_bits(job, 2, 3, narrow_type());
  }
}

TEST_CASE("a sharded optimizer trains as one process does") {
  const config::JobConfig job = tiny_job();
  check_equal(run_layout(sharded(job), 4, 20), run_layout(job, 1, 20));
}

TEST_CASE("families, fine-tuning and batches of other sizes have those bits, too") {
  config::JobConfig lora = tiny_job();
  lora.lora.rank = 4;
  lora.lora.modules = {"*.attention.*", "*.mlp.down"};
  config::JobConfig frozen = tiny_job("gpt2");
  frozen.optimizer.freeze = {"embedding.*", "positions.*", "layers.0.*"};
  frozen.model.residual_dropout = 0.1;
  config::JobConfig grouped = tiny_job("gpt-neo-x");
  grouped.optimizer.training_groups = {"late include=layers.1.* weight_decay=0.3"};
  grouped.topology.activation_checkpointing_type = "every_layer";
  config::JobConfig growing = tiny_job();
  growing.topology.batch_rampup_start = 4;
  growing.topology.batch_rampup_increment = 4;
  growing.topology.batch_rampup_samples = 24;
  for (const config::JobConfig& job :
       {lora, frozen, grouped, growing, mixture_job("deepseek-v3"), mixture_job("mixtral")}) {
    CAPTURE(job.model.architecture);
    check_same_bits(job, 2, 6, narrow_type());
    if (sortie::test::every_case()) check_same_bits(job, 2, 20);
  }
}

TEST_CASE("messages that come late and out of order change nothing") {
  for (std::uint64_t seed = 1; seed <= (sortie::test::every_case() ? 10 : 2); ++seed)
    check_same_bits(tiny_job(), 4, 4, narrow_type(), {std::chrono::microseconds(300), seed});
}

TEST_CASE("ops that run late wait for shares and weights, and those for ops") {
  if (device().kind != DeviceKind::cpu) return;  // only CPU contexts can defer ops
  for (const DType precision : {DType::f32, narrow_type()}) {
    std::vector<double> expected;
    for (std::uint64_t seed = 0; seed <= (sortie::test::every_case() ? 10 : 3); ++seed) {
      CAPTURE(seed);
      std::vector<double> losses;
      run_thread_ranks(2, [&](Communicator& world) {
        TinyTraining training(sharded(tiny_job()), world, precision);
        if (seed > 0)
          training.trainer->context().defer(100 * seed + static_cast<std::uint64_t>(world.rank()));
        const std::vector<double> own = training.losses(4);
        training.trainer->store().await_values();
        training.trainer->context().synchronize();
        if (world.rank() == 0) losses = own;
      });
      if (seed == 0) expected = losses;
      CHECK(losses == expected);
    }
  }
}

TEST_CASE("with clipping the weights are equal up to the rounding of the norm") {
  config::JobConfig job = tiny_job();
  job.optimizer.gradient_clipping = 0.1;
  const auto weights_of = [](const config::JobConfig& trained) {
    Assembled weights;
    std::mutex mutex;
    run_thread_ranks(2, [&](Communicator& world) {
      TinyTraining training(trained, world);
      training.losses(20);
      training.trainer->store().await_values();
      const std::lock_guard lock(mutex);
      weights.add(world.rank(), training.trainer->store(), "model.");
    });
    CHECK(weights.wrong() == "");
    return weights.tensors();
  };
  const WholeTensors whole = weights_of(job), cut = weights_of(sharded(job));
  REQUIRE(cut.size() == whole.size());
  for (const auto& [name, values] : whole) {
    CAPTURE(name);
    CHECK(relative_difference(cut.at(name), values) <= 1e-5);
  }
}

TEST_CASE("a gradient that is not finite is seen by all ranks, whose share it is or not") {
  for (const int share : {0, 1, 2}) {
    CAPTURE(share);
    std::mutex mutex;
    int finite = 0, others = 0;
    run_thread_ranks(3, [&](Communicator& world) {
      config::JobConfig job = sharded(tiny_job());
      job.topology.global_batch_size = 6;
      TinyTraining training(job, world);
      ParameterStore& store = training.trainer->store();
      Optimizer optimizer(training.job, store);
      const auto norm = [&] {
        Tensor sum = training.trainer->context().zeros(DType::f64, {1});
        optimizer.squared_gradient_norm(training.trainer->context(), training.trainer->layout(),
                                        sum);
        double value = ops::read_scalar<double>(training.trainer->context(), sum);
        world.all_reduce_sum({&value, 1});
        return value;
      };
      const double before = norm();
      if (world.rank() == share) {
        const OwnRun run = store.parameters().front()->own_runs().front();
        host_view(store, store.gradients())[static_cast<std::size_t>(run.flat.end - 1)] =
            std::numeric_limits<float>::quiet_NaN();
      }
      const double after = norm();
      const std::lock_guard lock(mutex);
      CHECK(before == 0.0);
      ++(std::isfinite(after) ? finite : others);
    });
    CHECK(finite == 0);
    CHECK(others == 3);
  }
}

TEST_CASE("replicas that differ are found by the weights that all of them have") {
  for (const DType precision : {DType::f32, narrow_type()}) {
    std::mutex mutex;
    std::vector<std::string> texts;
    run_thread_ranks(3, [&](Communicator& world) {
      config::JobConfig job = sharded(tiny_job());
      job.topology.global_batch_size = 6;
      TinyTraining training(job, world, precision);
      training.losses(2);
      ParameterStore& store = training.trainer->store();
      const auto difference = [&] {
        return find_difference(training.trainer->layout(), training.rank, store).text;
      };
      const std::string equal = difference();
      if (world.rank() == 2) {  // flips a bit of a value that is not in this rank's share
        const Tensor buffer = precision == DType::bf16 ? store.compute_copy() : store.master();
        const auto at = store.own_share(0).begin - 3;
        const OpenMemory open(store.context().device());
        static_cast<std::uint8_t*>(
            buffer.raw())[static_cast<std::size_t>(at) * dtype_bytes(buffer.dtype())] ^= 4;
      }
      const std::string differs = difference();
      const std::lock_guard lock(mutex);
      texts.push_back(equal);
      texts.push_back(differs);
    });
    for (std::size_t i = 0; i < texts.size(); ++i)
      CHECK(texts[i] == (i % 2 == 0 ? "" : "rank 2 (host-2) from the other ranks"));
    CHECK(texts.size() == 6);
  }
}

TEST_CASE("one replica alone keeps the whole state of its optimizer") {
  const auto alone = make_single_communicator();
  TinyTraining training(sharded(tiny_job()), *alone);
  CHECK_FALSE(training.trainer->store().sharded());
  const LayoutRun run = run_layout(sharded(tiny_job()), 1, 5), whole = run_layout(tiny_job(), 1, 5);
  CHECK(run.weights == whole.weights);
}

}  // namespace
}  // namespace sortie::trainer::test
