// Tests of steps that are CUDA graphs: they have the bits of steps op by op, whatever changes from
// step to step, and the host makes few launches.
#include <doctest/doctest.h>

#include <functional>

#include "common/config/architectures.h"
#include "tests/support/emulated.h"
#include "tests/support/every_case.h"
#include "tests/support/state_values.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "trainer/inference/evaluate.h"
#include "trainer/inference/generate.h"
#include "trainer/loop/validation.h"
#include "trainer/models/families.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

config::JobConfig graph_job(const std::string& architecture) {
  config::JobConfig job = family_job(architecture);
  job.model.sequence_length = 16;
  job.topology.global_batch_size = 6;  // three micro-batches
  job.topology.micro_batch_size = 2;
  job.trainer.train_iterations = 7;
  // These differ from step to step: learning rates, samples for dropout, clipping.
  job.learning_rate_scheduler.learning_rate_warmup_steps = 3;
  job.learning_rate_scheduler.learning_rate_decay_iters = 7;
  job.optimizer.gradient_clipping = 0.5;
  return job;
}

void use_small_demo(config::JobConfig& job) {
  job.optimizer.name = "demo";
  job.optimizer.chunk = 64;
  job.optimizer.top_k = 64;
}

/// A source with targets outside the vocabulary in some samples, which make losses and gradients
/// NaN.
class OutsideSource final : public SampleSource {
 public:
  OutsideSource(std::int64_t vocab, std::int64_t begin, std::int64_t end)
      : masked_(vocab), outside_(static_cast<std::int32_t>(vocab + 7)), begin_(begin), end_(end) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    SORTIE_TRY(masked_.sample(index, tokens, targets));
    if (index >= begin_ && index < end_) targets.back() = outside_;
    return {};
  }
  bool masks_targets() const override { return true; }
  std::string fingerprint() const override { return "outside"; }
  std::int64_t samples_per_epoch() const override { return masked_.samples_per_epoch(); }

 private:
  MaskedSource masked_;
  std::int32_t outside_;
  std::int64_t begin_, end_;
};

struct GraphRun {
  std::vector<float> state;
  double loss = 0.0;
  std::int64_t updates = 0, flop = 0;
  bool operator==(const GraphRun&) const = default;
};
struct GraphCost {
  std::uint64_t launches = 0;
};

using MakeSource = std::function<std::unique_ptr<SampleSource>(std::int64_t vocab)>;

GraphRun train_graphs(config::JobConfig job, const std::string& graphs,
                      DType precision = DType::f32, const MakeSource& source = {},
                      GraphCost* cost = nullptr) {
  job.trainer.cuda_graphs = graphs;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, precision, 1,
                        source ? source(job.model.vocab_size) : nullptr);
  const std::uint64_t before = gpu_is_emulated() ? emulated_count("sortie_emulated_launches") : 0;
  REQUIRE(training.trainer->run_steps());
  if (cost != nullptr) cost->launches = emulated_count("sortie_emulated_launches") - before;
  return {state_values(training.trainer->store()), training.trainer->progress().loss,
          training.trainer->progress().updates, training.trainer->context().flop()};
}

void check_graphs(const config::JobConfig& job, DType precision = DType::f32,
                  const MakeSource& source = {}) {
  const GraphRun by_graph = train_graphs(job, "auto", precision, source);
  const GraphRun by_op = train_graphs(job, "off", precision, source);
  CHECK(by_graph.loss == by_op.loss);
  CHECK(by_graph.updates == by_op.updates);
  CHECK(by_graph.flop == by_op.flop);
  CHECK(by_graph.state == by_op.state);
}

}  // namespace

TEST_CASE("on a GPU: steps that are graphs have the bits of steps that are not" *
          doctest::skip(no_gpu_is_tested())) {
  for (const Family& family : families()) {
    const std::string name(family.name);
    if (!sortie::test::every_case() && name != "gpt2" && name != "deepseek-v3") continue;
    CAPTURE(name);
    // Three micro-batches per step, and one.
    for (const std::int64_t batch : {6, 2}) {
      CAPTURE(batch);
      config::JobConfig job = graph_job(name);
      job.topology.global_batch_size = batch;
      check_graphs(job);
    }
  }
}

TEST_CASE("on a GPU: graphs and what changes from step to step" *
          doctest::skip(no_gpu_is_tested())) {
  config::JobConfig job = graph_job("gpt2");
  DType precision = DType::f32;
  MakeSource source;
  SUBCASE("dropout, of embeddings, hidden states and probabilities") {
    job.model.embedding_dropout = 0.1;
    job.model.residual_dropout = 0.2;
    job.model.attention_dropout = 0.1;
    job.topology.activation_checkpointing_type = "every_layer";
  }
  SUBCASE("moments in bf16, and a model in bf16") {
    job.optimizer.moments = "bf16";
    precision = DType::bf16;
  }
  SUBCASE("DeMo, with a group of parameters, and a step is skipped") {
    use_small_demo(job);
    job.optimizer.training_groups = {"fast include=layers.0.* learning_rate=0.004"};
    precision = DType::bf16;
    job.trainer.max_consecutive_skips = 5;
    source = [](std::int64_t vocab) { return std::make_unique<OutsideSource>(vocab, 26, 28); };
    const GraphRun run = train_graphs(job, "auto", precision, source);
    CHECK(run.updates == job.trainer.train_iterations - 1);
  }
  // The third micro-batch is captured. It uses weights that the first one has cast.
  for (const char* scaling : {"current", "delayed"}) SUBCASE(scaling) {
      job = graph_job("llama");
      job.model.hidden_size = 64;
      job.model.ffn_hidden_size = 96;
      job.model.precision = "fp8";
      job.model.fp8_scaling = scaling;
      job.trainer.eval_interval = 3;
      job.trainer.eval_samples = 4;
      precision = DType::bf16;
    }
  SUBCASE("targets that count are counted, and a step is skipped") {
    job.trainer.max_consecutive_skips = 5;
    source = [](std::int64_t vocab) { return std::make_unique<OutsideSource>(vocab, 26, 28); };
    const GraphRun run = train_graphs(job, "auto", precision, source);
    CHECK(run.updates == job.trainer.train_iterations - 1);
  }
  SUBCASE("a batch that grows, and validations between") {
    job.topology.batch_rampup_start = 2;
    job.topology.batch_rampup_increment = 2;
    job.topology.batch_rampup_samples = 12;
    job.trainer.train_iterations = job.learning_rate_scheduler.learning_rate_decay_iters = 12;
    job.trainer.eval_interval = 2;
    job.trainer.eval_samples = 5;  // a different shape at the end
  }
  SUBCASE("one micro-batch a step, some of the model frozen") {
    job.topology.global_batch_size = 2;
    job.optimizer.freeze = {"embedding.*", "layers.0.*"};
  }
  // The gradients of that step are NaN, and those of the next step replace them.
  SUBCASE("one micro-batch a step, a step that is skipped, and validations between") {
    job.topology.global_batch_size = 2;
    job.trainer.max_consecutive_skips = 5;
    job.trainer.train_iterations = job.learning_rate_scheduler.learning_rate_decay_iters = 12;
    job.trainer.eval_interval = 5;
    job.trainer.eval_samples = 5;
    source = [](std::int64_t vocab) { return std::make_unique<OutsideSource>(vocab, 12, 14); };
    const GraphRun run = train_graphs(job, "auto", precision, source);
    CHECK(run.updates == job.trainer.train_iterations - 1);
    CHECK(std::isfinite(run.loss));
  }
  check_graphs(job, precision, source);
}

TEST_CASE("on a GPU: a run of graphs is resumed to the bit" * doctest::skip(no_gpu_is_tested())) {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = graph_job("gpt2");
  job.model.residual_dropout = 0.1;
  SUBCASE("AdamW") {}
  SUBCASE("DeMo") {
    use_small_demo(job);
  }
  job.trainer.train_iterations = 8;
  job.learning_rate_scheduler.learning_rate_decay_iters = 8;
  job.trainer.save_dir = dir.str("whole");
  const GraphRun whole = train_graphs(job, "auto");
  job.trainer.save_dir = dir.str("parts");
  job.trainer.train_iterations = 5;
  (void)train_graphs(job, "auto");
  job.trainer.train_iterations = 8;
  const GraphRun resumed = train_graphs(job, "auto");
  CHECK(resumed.loss == whole.loss);
  CHECK(resumed.state == whole.state);
}

TEST_CASE("on a GPU: the host gives it as much to do for many layers as for few" *
          doctest::skip(!gpu_is_emulated())) {
  const auto launches = [](std::int64_t layers, std::int64_t steps, const std::string& graphs) {
    config::JobConfig job = graph_job("llama");
    job.model.num_layers = layers;
    job.trainer.train_iterations = steps;
    GraphCost cost;
    (void)train_graphs(job, graphs, DType::f32, {}, &cost);
    return cost.launches;
  };
  const std::uint64_t few = launches(1, 9, "auto") - launches(1, 5, "auto");
  const std::uint64_t many = launches(4, 9, "auto") - launches(4, 5, "auto");
  CHECK(few == many);
  // Three micro-batches with inputs and a graph each; the norm, the gate, the update, and reads.
  CHECK(many / 4 <= 40);
  CHECK(launches(4, 9, "off") - launches(4, 5, "off") > 10 * many);
}

TEST_CASE("on a GPU: validations that are graphs have the losses of those that are not" *
          doctest::skip(no_gpu_is_tested())) {
  const auto validated = [](const std::string& graphs) {
    config::JobConfig job = graph_job("llama");
    job.trainer.cuda_graphs = graphs;
    job.trainer.eval_samples = 7;  // the last batch is smaller
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator);
    std::vector<double> losses;
    for (int i = 0; i < 3; ++i) {
      training.losses(2);  // changes the weights
      const auto validation = training.trainer->evaluate();
      REQUIRE(validation);
      losses.push_back(validation->loss);
    }
    CHECK(losses[0] != losses[2]);
    return losses;
  };
  CHECK(validated("auto") == validated("off"));
}

TEST_CASE("on a GPU: validation sets of plain and of packed sequences have a graph each" *
          doctest::skip(no_gpu_is_tested())) {
  const config::JobConfig job = graph_job("llama");
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  ProgressionSource plain(job.model.vocab_size);
  PackedSource packed(job.model.vocab_size);
  const auto losses_of = [&](const std::vector<ValidationSet>& sets, ValidationLosses& losses) {
    const Validation validation =
        validate(sets, {.samples = 12, .rows = 2}, training.trainer->context(),
                 training.trainer->passes(), training.trainer->layout(), *training.rank.marks,
                 &losses)
            .value();
    CHECK(losses.take_failure() == std::nullopt);
    return std::vector<double>{validation.sets[0].loss, validation.sets[1].loss};
  };
  const std::vector<ValidationSet> plain_first = {{"code", &plain}, {"chat", &packed}};
  const std::vector<ValidationSet> packed_first = {{"chat", &packed}, {"code", &plain}};
  for (const auto& sets : {plain_first, packed_first}) {
    ValidationLosses by_graph(/*graphs=*/true), by_op(/*graphs=*/false);
    CHECK(losses_of(sets, by_graph) == losses_of(sets, by_op));
  }
}

TEST_CASE("on a GPU: a text is scored by graphs as without, with few things to do" *
          doctest::skip(no_gpu_is_tested())) {
  config::JobConfig job = graph_job("llama");
  job.model.vocab_size = 256;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  ExecutionContext& context = training.trainer->context();
  const auto tokenizer = make_byte_tokenizer();
  ProgressionSource source(128);
  std::uint64_t launches[2] = {};
  double nats[2] = {};
  for (const bool graphs : {false, true}) {
    const auto count = [] {
      return gpu_is_emulated() ? emulated_count("sortie_emulated_launches") : 0;
    };
    const std::uint64_t before = count();
    const auto score =
        score_text(context, training.trainer->model(), *tokenizer, source, 21, 2, {}, graphs);
    REQUIRE(score);
    CHECK_FALSE(score->graph_failure);
    nats[graphs] = score->nats;
    launches[graphs] = count() - before;
  }
  CHECK(nats[true] == nats[false]);
  if (gpu_is_emulated()) CHECK(launches[true] < launches[false] / 2);
}

TEST_CASE("on a GPU: tokens that are graphs have the logits of those that are not" *
          doctest::skip(no_gpu_is_tested())) {
  for (const Family& family : families()) {
    const std::string name(family.name);
    if (!sortie::test::every_case() && name != "gpt2" && name != "mistral" && name != "deepseek-v3")
      continue;
    CAPTURE(name);
    config::JobConfig job = graph_job(name);
    job.model.init_std = 0.3;
    if (name == "mistral") job.model.attention_window = 5;
    // More keys than one round takes.
    if (sortie::test::every_case()) job.model.sequence_length = 600;
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator, name == "gpt2" ? DType::bf16 : DType::f32);
    ExecutionContext& context = training.trainer->context();
    NextToken by_graph(context, training.trainer->model(), true, true);
    NextToken by_op(context, training.trainer->model(), true, false);
    std::vector<std::int32_t> text = {3, 4};
    std::int64_t graphs = 0;
    const std::int64_t tokens = job.model.sequence_length + 20;  // the window moves
    for (std::int64_t i = 0; i < tokens; ++i) {
      CAPTURE(i);
      const auto a = ops::copy_to_host<float>(context, by_graph.logits(text));
      const auto b = ops::copy_to_host<float>(context, by_op.logits(text));
      REQUIRE(a == b);
      REQUIRE_FALSE(by_op.was_graph());
      graphs += by_graph.was_graph() ? 1 : 0;
      text.push_back(static_cast<std::int32_t>(i * 7 % 50));
      if (i % 11 == 10) text.push_back(11);  // two new tokens at once
    }
    CHECK_FALSE(by_graph.take_graph_failure());
    CHECK(graphs > tokens * 2 / 3);
  }
}
