// Compares DeepSeek-V3 with the written-out f64 model, including parts that comparisons with other
// frameworks do not cover.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/support/emulated.h"
#include "tests/support/every_case.h"
#include "tests/support/flat_values.h"
#include "tests/trainer/models/deepseek_reference.h"
#include "trainer/models/mixture.h"
#include "trainer/models/model.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {

using reference::DeepseekBatch;
using reference::Weights;

config::ModelConfig tiny_model(bool q_lora, bool documents) {
  config::ModelConfig m;
  m.architecture = "deepseek-v3";
  m.vocab_size = 11;
  m.hidden_size = 8;
  m.num_layers = 2;
  m.num_attention_heads = 2;
  m.ffn_hidden_size = 12;
  m.sequence_length = 7;
  m.weight_tying = documents;
  m.init_std = 0.4;
  m.norm_epsilon = 1e-5;
  m.rotary_embedding_base = 100.0;
  m.mla = {.q_lora_rank = q_lora ? 5 : 0,
           .kv_lora_rank = 6,
           .qk_nope_head_dim = 3,
           .qk_rope_head_dim = 4,
           .v_head_dim = 5};
  m.moe.num_experts = 6;
  m.moe.topk = 2;
  m.moe.ffn_hidden_size = 5;
  m.moe.num_shared_experts = q_lora ? 1 : 2;
  m.moe.first_dense_layers = 1;
  m.moe.scaling_factor = 1.7;
  m.moe.num_groups = q_lora ? 3 : 1;
  m.moe.group_topk = q_lora ? 2 : 1;
  m.moe.normalize_topk = !documents;
  m.moe.seq_aux_loss_coeff = 0.5;
  m.mtp.num_layers = 2;
  m.mtp.loss_coeff = 0.6;
  return m;
}

DeepseekBatch tiny_batch(bool documents) {
  DeepseekBatch batch{2, 7, {}, {}, {}};
  for (std::uint64_t i = 0; i < 14; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(random_bits(1, i) % 11));
    batch.targets.push_back(i == 4 ? -100 : static_cast<std::int32_t>(random_bits(1, i + 1) % 11));
    if (documents) batch.document_start.push_back(i % 7 < 3 ? 0 : 3);
  }
  return batch;
}

Tensor to_tensor(ExecutionContext& context, const DeepseekBatch& batch,
                 const std::vector<std::int32_t>& values) {
  return ops::tensor_from_host<std::int32_t>(context, values, {batch.sequences, batch.length});
}

/// The trainer's model with biases away from zero, and its results.
struct Trained {
  ExecutionContext context{1, test::device()};
  ParameterStore store;
  config::ModelConfig config;
  LanguageModel model;
  ForwardContext forward;
  ops::CrossEntropyResult loss;

  Trained(const config::ModelConfig& model_config, bool recompute)
      : config(model_config), model(context, config, store, recompute) {
    store.finalize(context, DType::f32, 16, true);
    store.initialize(3);
    const auto master = test::host_view(store, store.master());
    for (Parameter* bias : router_biases(store))
      for (std::int64_t e = 0; e < bias->elements(); ++e)
        master[static_cast<std::size_t>(bias->offset() + e)] =
            0.1f * random_normal(9, static_cast<std::uint64_t>(e));
    for (const auto& parameter : store.parameters())
      if (parameter->spec().use == Use::vector)
        for (std::int64_t i = 0; i < parameter->elements(); ++i)
          master[static_cast<std::size_t>(parameter->offset() + i)] +=
              0.2f * random_normal(7, static_cast<std::uint64_t>(i));
    store.weights_changed();
  }
  void run(const DeepseekBatch& batch, float grad_scale, float balance_scale) {
    forward.training = true;
    forward.routers.loss_scale = balance_scale;
    if (!batch.document_start.empty())
      forward.document_start = to_tensor(context, batch, batch.document_start);
    Graph graph(context, Graph::Mode::record);
    loss = ops::read_cross_entropy(
        context, model.loss(graph, to_tensor(context, batch, batch.tokens),
                            to_tensor(context, batch, batch.targets), grad_scale, forward));
    graph.backward({});
  }
  std::vector<double> read(const Tensor& sums) { return ops::copy_to_host<double>(context, sums); }
  Weights weights() {
    Weights out;
    for (const auto& parameter : store.parameters()) {
      const auto values = test::host_values(
          store, store.master().slice(0, parameter->offset(), parameter->elements()));
      out[parameter->name()] = std::vector<double>(values.begin(), values.end());
    }
    return out;
  }
};

}  // namespace

TEST_CASE("the DeepSeek reference's gradients are its slopes") {
  for (const bool q_lora : {true, false}) {
    const auto config = tiny_model(q_lora, !q_lora);
    Trained trained(config, false);
    const Weights weights = trained.weights();
    const DeepseekBatch batch = tiny_batch(!q_lora);
    const auto objective = [&](const Weights& at) {
      const auto r = reference::deepseek(config, at, batch, 0.3, 2.0);
      return 0.3 * (r.loss + r.mtp_loss) + 2.0 * r.balance;
    };
    const auto exact = reference::deepseek(config, weights, batch, 0.3, 2.0);
    std::uint64_t key = 0;
    for (const auto& [name, gradient] : exact.gradients) {
      CAPTURE(name);
      // Along a random direction in each parameter.
      Weights above = weights, below = weights;
      double slope = 0.0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double direction = static_cast<double>(random_normal(++key, i));
        slope += direction * gradient[i];
        above[name][i] += 1e-6 * direction;
        below[name][i] -= 1e-6 * direction;
      }
      const double measured = (objective(above) - objective(below)) / 2e-6;
      CHECK(measured == doctest::Approx(slope).epsilon(1e-6).scale(1e-3));
    }
  }
}

TEST_CASE("DeepSeek-V3 equals the written-out model: losses, loads and every gradient") {
  // On the emulated GPU, unless every case is to run, one model with all three and one with none.
  const bool few = test::gpu_is_emulated() && !sortie::test::every_case();
  for (const bool q_lora : {true, false})
    for (const bool documents : {true, false})
      for (const bool recompute : {true, false}) {
        if (few && !(q_lora == documents && documents == recompute)) continue;
        CAPTURE(q_lora);
        CAPTURE(documents);
        CAPTURE(recompute);
        const auto config = tiny_model(q_lora, documents);
        Trained trained(config, recompute);
        const DeepseekBatch batch = tiny_batch(documents);
        trained.run(batch, 0.3f, 2.0f);
        const auto expected =
            reference::deepseek(config, trained.weights(), batch, static_cast<double>(0.3f), 2.0);
        CHECK(trained.loss.loss_sum == doctest::Approx(expected.loss).epsilon(1e-6));
        CHECK(trained.read(trained.forward.mtp_loss)[0] ==
              doctest::Approx(expected.mtp_loss).epsilon(1e-6));
        CHECK(trained.read(trained.forward.routers.sequence_loss)[0] ==
              doctest::Approx(expected.balance).epsilon(1e-6));
        std::vector<std::vector<double>> counts;
        for (const Tensor& each : trained.forward.routers.counts)
          counts.push_back(trained.read(each));
        CHECK(counts == expected.counts);
        for (const auto& parameter : trained.store.parameters()) {
          CAPTURE(parameter->name());
          CHECK(parameter->pending_uses() == 0);
          CHECK(parameter->grad().defined() == (parameter->spec().use != Use::state));
          if (!parameter->grad().defined()) continue;
          const auto gradient = test::host_values(trained.store, parameter->grad());
          const auto& exact = expected.gradients.at(parameter->name());
          double dot = 0, own = 0, other = 0;
          for (std::size_t i = 0; i < exact.size(); ++i) {
            const auto value = static_cast<double>(gradient[i]);
            dot += value * exact[i];
            own += value * value;
            other += exact[i] * exact[i];
          }
          if (other == 0.0) {  // experts without a token
            CHECK(own == 0.0);
            continue;
          }
          CHECK(dot / std::sqrt(own * other) >= 0.99999);
          CHECK(std::sqrt(own / other) == doctest::Approx(1.0).epsilon(1e-4));
        }
      }
}

TEST_CASE("no target is predicted across the end of a sequence or a document") {
  // With a single token, there is nothing to predict beyond the next token.
  auto config = tiny_model(false, false);
  config.sequence_length = 1;
  Trained trained(config, false);
  trained.run({1, 1, {3}, {4}, {}}, 1.0f, 1.0f);
  CHECK(trained.loss.count == 1);
  CHECK(trained.read(trained.forward.mtp_loss)[0] == 0.0);
}

}  // namespace sortie::trainer
