// Tests of DeMo (decoupled momentum): each rank has its own momentum, and the weights of all ranks
// are equal.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include "tests/support/emulated.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/nn/lora.h"

namespace sortie::trainer::test {
namespace {

config::JobConfig demo_job() {
  config::JobConfig job = tiny_job();
  job.optimizer.name = "demo";
  // A block takes the emulated GPU about as long as a small one would: few large ones there.
  job.optimizer.chunk = gpu_is_emulated() ? 64 : 16;
  job.optimizer.top_k = gpu_is_emulated() ? 64 : 8;
  job.optimizer.momentum = 0.95;
  job.optimizer.weight_decay = 0.01;
  job.topology.global_batch_size = 24;  // divisible by 1, 2, 3 and 4 ranks
  job.topology.micro_batch_size = 0;
  job.topology.gradient_accumulation_steps = 2;
  job.learning_rate_scheduler.learning_rate = 2e-3;
  job.learning_rate_scheduler.learning_rate_decay_iters = 40;
  return job;
}

/// Yields the same sample for every index, so all ranks have the same gradient.
class OneSample final : public SampleSource {
 public:
  explicit OneSample(std::int64_t vocab) : source_(vocab) {}
  Result<> sample(std::int64_t, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    return source_.sample(3, tokens, targets);
  }
  std::string fingerprint() const override { return "one sample"; }
  std::int64_t samples_per_epoch() const override { return 1000; }

 private:
  ProgressionSource source_;
};

const MakeSamples kOneSample = [](std::int64_t vocab) {
  return std::make_unique<OneSample>(vocab);
};

struct DemoCut {
  int ranks = 1, tensor = 1, pipeline = 1, context = 1;
};

config::JobConfig job_of(config::JobConfig job, const DemoCut& cut) {
  job.topology.tensor_parallel_size = cut.tensor;
  job.topology.pipeline_parallel_size = cut.pipeline;
  job.topology.context_parallel_size = cut.context;
  if (cut.context > 1) job.model.sequence_length = 20;
  return job;
}

TEST_CASE("DeMo: weights of all members are equal to the bit in every layout, and they learn") {
  for (const DemoCut& cut : {DemoCut{.ranks = 2}, DemoCut{.ranks = 3}, DemoCut{4, 2},
                             DemoCut{4, 1, 2}, DemoCut{4, 1, 1, 2}}) {
    CAPTURE(cut.ranks);
    CAPTURE(cut.tensor);
    CAPTURE(cut.pipeline);
    CAPTURE(cut.context);
    const int steps = on_gpu() ? 8 : 30;  // an emulated GPU takes a second for a step
    const LayoutRun run = run_layout(job_of(demo_job(), cut), cut.ranks, steps);
    CHECK(run.wrong == "");
    CHECK(run.losses.back() < run.losses.front() - (steps == 8 ? 0.1 : 0.5));
  }
}

TEST_CASE("DeMo: copies of a key-value head that ranks share stay equal") {
  config::JobConfig job = job_of(demo_job(), {4, 4});  // 2 key-value heads for 4 ranks
  // A block of the rank's q, k and v together would have rows of all three.
  job.optimizer.chunk = 64;
  job.optimizer.top_k = 64;
  CHECK(run_layout(job, 4, 3).wrong == "");
}

TEST_CASE("DeMo: late ops and late messages change no bit") {
  const OnDevice cpu(Device{});  // only CPU contexts can defer ops
  const LayoutRun plain = run_layout(demo_job(), 2, 4);
  const LayoutRun late =
      run_layout(demo_job(), 2, 4, DType::f32,
                 {.max_delay = std::chrono::microseconds(200), .seed = 5}, {.late_seed = 9});
  CHECK(late.wrong == "");
  CHECK(late.losses == plain.losses);
  CHECK(late.weights == plain.weights);
}

TEST_CASE("DeMo: members with one gradient go where one rank alone goes, to the bit") {
  config::JobConfig job = demo_job();
  job.topology.gradient_accumulation_steps = 1;
  const auto run = [&](int ranks) {
    config::JobConfig one = job;
    one.topology.global_batch_size = 2 * ranks;  // the same work for each rank
    return run_layout(one, ranks, 6, DType::f32, {}, {}, kOneSample);
  };
  const LayoutRun alone = run(1);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    const LayoutRun members = run(ranks);
    CHECK(members.wrong == "");
    CHECK(members.weights == alone.weights);
    // The norm of each member's own gradient is that of the single rank's.
    for (std::size_t i = 0; i < alone.norms.size(); ++i)
      CHECK(members.norms[i] == doctest::Approx(alone.norms[i]).epsilon(1e-12));
  }
}

TEST_CASE("DeMo: the norm is the root mean square of the members' own, which clip alike") {
  config::JobConfig job = demo_job();
  job.topology.gradient_accumulation_steps = 1;
  job.topology.global_batch_size = 4;
  double squares = 0.0;
  // Runs each of the two members alone, on its half of the first batch.
  for (const std::int64_t half : {0, 1}) {
    struct Half final : SampleSource {
      ProgressionSource source;
      std::int64_t first;
      Half(std::int64_t vocab, std::int64_t begin) : source(vocab), first(begin) {}
      Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                      std::span<std::int32_t> targets) override {
        return source.sample(first + index, tokens, targets);
      }
      std::string fingerprint() const override { return "half"; }
      std::int64_t samples_per_epoch() const override { return 1000; }
    };
    config::JobConfig own = job;
    own.topology.global_batch_size = 2;
    const LayoutRun one = run_layout(own, 1, 1, DType::f32, {}, {}, [half](std::int64_t vocab) {
      return std::make_unique<Half>(vocab, half * 2);
    });
    squares += one.norms[0] * one.norms[0] / 2;
  }
  const LayoutRun both = run_layout(job, 2, 1);
  CHECK(both.norms[0] == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
}

TEST_CASE("DeMo: one member that sends all is SGD by signs, by hand") {
  config::JobConfig job = demo_job();
  job.optimizer.top_k = 256;
  job.optimizer.gradient_clipping = 0;
  job.optimizer.weight_decay = 0.1;
  config::JobConfig adamw = job;  // its first moment gives the gradient of its first step
  adamw.optimizer = {};
  const WholeTensors gradients = run_layout(adamw, 1, 1).gradients;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  ParameterStore& store = training.trainer->store();
  const auto before = host_values(store, store.master());
  const auto report = training.trainer->step();
  REQUIRE(report);
  const auto after = host_values(store, store.master());
  const auto lr = static_cast<float>(report->learning_rate);
  std::size_t clear = 0, all = 0;
  for (const auto& parameter : store.parameters()) {
    CAPTURE(parameter->name());
    const std::vector<float>& gradient = gradients.at(parameter->name());
    float most = 0.0f;
    for (const float value : gradient) most = std::max(most, std::abs(value));
    const float decay = parameter->spec().decay ? 0.1f : 0.0f;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const auto at = static_cast<std::size_t>(parameter->offset()) + i;
      const float change = after[at] - (before[at] - lr * decay * before[at]);
      ++all;
      // Rounding to 8 bits changes a coefficient by less than 1 % of the largest one of its block,
      // so the sign of small gradients may change. These are not checked.
      if (std::abs(gradient[i]) < 0.15f * most) continue;
      ++clear;
      CHECK(change == doctest::Approx(gradient[i] > 0 ? -lr : lr).epsilon(1e-3));
    }
  }
  CHECK(clear > all / 10);
}

/// Returns the state of all ranks. The names of momenta contain the numbers of their members.
WholeTensors demo_state(const std::string& folder, int steps, const DemoCut& cut, bool trains) {
  config::JobConfig job = job_of(demo_job(), cut);
  job.trainer.train_iterations = steps;
  job.trainer.save_dir = folder;
  job.trainer.replica_check_interval = 1;  // compares weights
  return whole_state(job, cut.ranks, trains);
}

TEST_CASE("DeMo: a run that is cut in two goes on with the bits of one that is not") {
  for (const DemoCut& cut : {DemoCut{.ranks = 2}, DemoCut{4, 2}, DemoCut{4, 1, 2}}) {
    CAPTURE(cut.tensor);
    CAPTURE(cut.pipeline);
    const WholeTensors whole = demo_state("", 6, cut, true);
    CHECK(whole.contains("optimizer.momentum.1.embedding.weight"));
    CHECK_FALSE(whole.contains("optimizer.momentum.2.embedding.weight"));
    CHECK(whole.at("optimizer.momentum.0.embedding.weight") !=
          whole.at("optimizer.momentum.1.embedding.weight"));
    const sortie::test::ScopedTempDir dir;
    const WholeTensors first = demo_state(dir.str("run"), 3, cut, true);
    CHECK(demo_state(dir.str("run"), 3, cut, false) == first);
    CHECK(demo_state(dir.str("run"), 6, cut, true) == whole);
  }
}

TEST_CASE("DeMo: rows that only pad a part are not trained, so a resume loses nothing") {
  config::JobConfig job = job_of(demo_job(), {3, 3});
  job.model.num_attention_heads = job.model.attention_num_kv_heads = 3;
  job.model.ffn_hidden_size = 96;
  job.optimizer.chunk = 64;
  const auto state_after = [&](int steps, const std::string& folder) {
    job.trainer.train_iterations = steps;
    job.trainer.save_dir = folder;
    return whole_state(job, 3, true);
  };
  const WholeTensors whole = state_after(6, "");
  const sortie::test::ScopedTempDir dir;
  (void)state_after(3, dir.str("run"));
  CHECK(state_after(6, dir.str("run")) == whole);
}

TEST_CASE("DeMo: what cut of the model has saved a momentum makes no difference") {
  const sortie::test::ScopedTempDir dir;
  const WholeTensors saved = demo_state(dir.str("run"), 3, {4, 2}, true);
  CHECK(demo_state(dir.str("run"), 3, {.ranks = 2}, false) == saved);
  CHECK(demo_state(dir.str("run"), 3, {4, 1, 2}, false) == saved);
}

TEST_CASE("DeMo: hosts without a folder for all of them save and resume by way of rank 0") {
  const DemoCut cut{.ranks = 3};
  const WholeTensors whole = demo_state("", 6, cut, true);
  const sortie::test::ScopedTempDir dir;
  /// Each rank saves to a separate folder, as on hosts without a shared file system.
  const auto run = [&](int steps, bool trains, bool async) {
    Assembled state;
    std::mutex mutex;
    run_thread_ranks(cut.ranks, [&](Communicator& world) {
      config::JobConfig job = demo_job();
      job.trainer.train_iterations = steps;
      job.trainer.save_interval = 2;
      job.trainer.async_save = async;
      job.trainer.save_dir = dir.str(fmt::format("of-rank-{}", world.rank()));
      TinyTraining training(job, world);
      if (trains) {
        const auto outcome = training.trainer->run();
        SORTIE_CHECK(outcome.has_value(), "{}", outcome ? "" : outcome.error().message);
      }
      const std::lock_guard lock(mutex);
      state.add(world.rank(), training.trainer->store(), "");
    });
    CHECK(state.wrong() == "");
    return state.tensors();
  };
  const WholeTensors first = run(3, true, true);
  CHECK(run(3, false, true) == first);
  CHECK(run(5, true, false) != first);
  CHECK(run(6, true, true) == whole);
}

TEST_CASE("DeMo: another number of members goes on with the sum of the momenta") {
  const sortie::test::ScopedTempDir dir;
  const WholeTensors saved = demo_state(dir.str("run"), 3, {.ranks = 2}, true);
  for (const int ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    const WholeTensors loaded = demo_state(dir.str("run"), 3, {.ranks = ranks}, false);
    for (const auto& [name, values] : loaded) {
      CAPTURE(name);
      if (!name.starts_with("optimizer.")) {
        CHECK(values == saved.at(name));
        continue;
      }
      const std::string parameter = name.substr(std::string("optimizer.momentum.0.").size());
      const auto& first = saved.at("optimizer.momentum.0." + parameter);
      const auto& second = saved.at("optimizer.momentum.1." + parameter);
      bool same = values.size() == first.size();
      for (std::size_t i = 0; same && i < values.size(); ++i)
        same = values[i] == (first[i] + second[i]) / static_cast<float>(ranks);
      CHECK(same);
    }
    CHECK(loaded.contains(fmt::format("optimizer.momentum.{}.embedding.weight", ranks - 1)));
  }
}

TEST_CASE("DeMo: a checkpoint of the other optimizer is refused, its weights are taken") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = demo_job();
  job.trainer.train_iterations = 2;
  job.trainer.save_dir = dir.str("run");
  const WholeTensors saved = whole_state(job, 2, true);
  config::JobConfig other = job;
  other.optimizer = {};
  const std::string error = start_error(other);
  CHECK(error.find("optimizer.name: the checkpoint has \"demo\", this job \"adamw\"") !=
        std::string::npos);
  CHECK(error.find("trainer.load_weights_from") != std::string::npos);
  other.trainer.save_dir = "";
  other.trainer.load_weights_from = dir.str("run");
  CHECK(start_error(other) == "none");
  // And the other way round.
  const sortie::test::ScopedTempDir second;
  other = job;
  other.optimizer = {};
  other.trainer.save_dir = second.str("run");
  (void)whole_state(other, 1, true);
  job.trainer.save_dir = second.str("run");
  CHECK(start_error(job).find("the checkpoint has \"adamw\", this job \"demo\"") !=
        std::string::npos);
}

TEST_CASE("DeMo: a step that is skipped leaves every member's momentum as it was") {
  std::mutex mutex;
  run_thread_ranks(2, [&](Communicator& world) {
    TinyTraining training(demo_job(), world);
    training.losses(2);
    ParameterStore& store = training.trainer->store();
    const auto momentum = host_values(store, store.moment1());
    {
      const auto view = host_view(store, store.master());
      view[10] = NAN;  // on both ranks: makes the gradient of this step NaN
    }
    store.weights_changed();
    const auto report = training.trainer->step();
    const std::lock_guard lock(mutex);
    REQUIRE(report);
    CHECK(report->skipped);
    CHECK(host_values(store, store.moment1()) == momentum);
  });
}

TEST_CASE("DeMo: frozen parameters, groups and low-rank updates train as with AdamW") {
  config::JobConfig job = demo_job();
  job.optimizer.freeze = {"embedding.*"};
  job.optimizer.training_groups = {"fast include=layers.0.* learning_rate=0.004 weight_decay=0"};
  const auto moved = [&](const config::JobConfig& changed) {
    std::map<std::string, float> largest;
    std::mutex mutex;
    run_thread_ranks(2, [&](Communicator& world) {
      TinyTraining training(changed, world);
      ParameterStore& store = training.trainer->store();
      const auto before = host_values(store, store.master());
      training.losses(1);
      const auto after = host_values(store, store.master());
      const std::lock_guard lock(mutex);
      for (const auto& parameter : store.parameters()) {
        float& most = largest[parameter->name()];
        for (std::int64_t i = 0; i < parameter->elements(); ++i) {
          const auto at = static_cast<std::size_t>(parameter->offset() + i);
          most = std::max(most, std::abs(after[at] - before[at]));
        }
      }
    });
    return largest;
  };
  for (const auto& [name, most] : moved(job)) {
    CAPTURE(name);
    const double rate = name.starts_with("embedding.")  ? 0.0
                        : name.starts_with("layers.0.") ? 0.004
                                                        : 0.002;
    CHECK(static_cast<double>(most) == doctest::Approx(rate).epsilon(0.02));
  }
  job = demo_job();
  job.lora.rank = 2;
  // In the first step, the low-rank factors that begin at 0 change, and frozen parameters do not.
  std::size_t ups = 0;
  for (const auto& [name, most] : moved(job)) {
    CAPTURE(name);
    if (!is_lora_name(name)) CHECK(most == 0.0f);
    if (name.ends_with(kLoraUp)) CHECK(most > 0.0f);
    ups += name.ends_with(kLoraUp);
  }
  CHECK(ups > 0);
}

}  // namespace
}  // namespace sortie::trainer::test
