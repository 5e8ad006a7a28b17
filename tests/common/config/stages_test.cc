// Distribution of layers over pipeline stages.
#include "common/config/stages.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "common/config/architectures.h"
#include "common/config/validate.h"

namespace sortie::config {
namespace {

std::vector<std::int64_t> counts_of(const std::vector<LayerRange>& ranges) {
  std::vector<std::int64_t> counts;
  for (const LayerRange& range : ranges) counts.push_back(range.end - range.begin);
  return counts;
}

using Counts = std::vector<std::int64_t>;

Counts cut_counts(std::vector<double> layers, double embedding, double head, std::int64_t runs) {
  return counts_of(cut_layers({std::move(layers), embedding, head}, runs));
}

double heaviest(const ModelWeights& weights, const std::vector<LayerRange>& ranges) {
  double most = 0.0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    double sum = (i == 0 ? weights.embedding : 0.0) + (i + 1 == ranges.size() ? weights.head : 0.0);
    for (std::int64_t layer = ranges[i].begin; layer < ranges[i].end; ++layer)
      sum += weights.layers[static_cast<std::size_t>(layer)];
    most = std::max(most, sum);
  }
  return most;
}

/// Weight of the heaviest part in the best cut, found by trying all cuts.
double best_heaviest(const ModelWeights& weights, std::int64_t runs) {
  const auto count = static_cast<std::int64_t>(weights.layers.size());
  double best = 1e300;
  std::vector<LayerRange> ranges;
  const auto go = [&](auto&& self, std::int64_t begin) -> void {
    const std::int64_t left = runs - static_cast<std::int64_t>(ranges.size());
    if (left == 1) {
      ranges.push_back({begin, count});
      best = std::min(best, heaviest(weights, ranges));
      ranges.pop_back();
      return;
    }
    for (std::int64_t end = begin + 1; end <= count - (left - 1); ++end) {
      ranges.push_back({begin, end});
      self(self, end);
      ranges.pop_back();
    }
  };
  go(go, 0);
  return best;
}

}  // namespace

TEST_CASE("equal layers are shared evenly, and what lies at the ends counts") {
  CHECK(cut_counts(std::vector<double>(8, 1.0), 0, 0, 4) == Counts{2, 2, 2, 2});
  CHECK(cut_counts(std::vector<double>(10, 1.0), 0, 0, 4) == Counts{2, 3, 2, 3});
  CHECK(cut_counts(std::vector<double>(8, 1.0), 0, 2.0, 2) == Counts{5, 3});
  CHECK(cut_counts(std::vector<double>(8, 1.0), 2.0, 0, 2) == Counts{3, 5});
  CHECK(cut_counts(std::vector<double>(4, 1.0), 0, 100.0, 2) == Counts{3, 1});
  CHECK(cut_counts(std::vector<double>(4, 1.0), 50.0, 100.0, 4) == Counts{1, 1, 1, 1});
  CHECK(cut_counts({1, 1, 1, 6}, 0, 0, 2) == Counts{3, 1});
  CHECK(cut_counts(std::vector<double>(7, 1.0), 0, 0, 1) == Counts{7});
}

TEST_CASE("no other cut has a lighter heaviest part") {
  std::uint64_t state = 1;
  const auto next = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>((state >> 33) % 9 + 1);
  };
  for (int trial = 0; trial < 60; ++trial) {
    ModelWeights weights;
    for (int layer = 0; layer < 5 + trial % 6; ++layer) weights.layers.push_back(next());
    weights.embedding = trial % 2 ? next() : 0.0;
    weights.head = trial % 3 ? 2.0 * next() : 0.0;
    for (std::int64_t runs = 2; runs <= 5; ++runs) {
      CAPTURE(trial);
      CAPTURE(runs);
      const auto ranges = cut_layers(weights, runs);
      REQUIRE(static_cast<std::int64_t>(ranges.size()) == runs);
      CHECK(ranges.front().begin == 0);
      CHECK(ranges.back().end == static_cast<std::int64_t>(weights.layers.size()));
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        CHECK(ranges[i].end > ranges[i].begin);
        if (i > 0) CHECK(ranges[i].begin == ranges[i - 1].end);
      }
      CHECK(heaviest(weights, ranges) == doctest::Approx(best_heaviest(weights, runs)));
    }
  }
}

TEST_CASE("a stage with several runs has every P-th of them") {
  JobConfig job;
  job.model.num_layers = 8;
  job.model.vocab_size = 64;  // embedding and head weigh almost nothing
  job.topology.pipeline_parallel_size = 2;
  job.topology.pipeline_interleave = 2;
  CHECK(layers_of_stage(job, 0) == std::vector<LayerRange>{{0, 2}, {4, 6}});
  CHECK(layers_of_stage(job, 1) == std::vector<LayerRange>{{2, 4}, {6, 8}});
  job.topology = {};
  CHECK(layers_of_stage(job, 0) == std::vector<LayerRange>{{0, 8}});
}

TEST_CASE(
    "a large vocabulary takes layers from the last stage, experts weigh more than dense layers") {
  JobConfig job;
  job.model.num_layers = 12;
  job.model.hidden_size = 768;
  job.model.num_attention_heads = 12;
  job.model.vocab_size = 50257;
  job.model.architecture = "gpt2";
  job.topology.pipeline_parallel_size = 2;
  const auto first = layers_of_stage(job, 0)[0], last = layers_of_stage(job, 1)[0];
  CHECK(first.end - first.begin > last.end - last.begin);
  ModelConfig mixture;
  mixture.architecture = "deepseek-v3";
  mixture.num_layers = 4;
  mixture.mla = {
      .kv_lora_rank = 64, .qk_nope_head_dim = 32, .qk_rope_head_dim = 16, .v_head_dim = 32};
  mixture.moe.first_dense_layers = 1;
  mixture.moe.num_experts = 64;
  mixture.moe.topk = 6;
  const ModelWeights weights = weigh(mixture);
  CHECK(weights.layers[1] > weights.layers[0]);
  CHECK(weights.layers[2] == weights.layers[1]);
  mixture.mtp.num_layers = 1;
  CHECK(weigh(mixture).head > weights.head + weights.layers[3]);
  // Every preset can be cut.
  for (const Preset& preset : presets()) {
    CAPTURE(std::string(preset.name));
    CHECK(cut_layers(weigh(preset.model), 2).size() == 2);
  }
}

TEST_CASE("interleaved stages take micro-batches in groups of as many as there are stages") {
  TopologyConfig topology;
  topology.micro_batch_size = 1;
  topology.pipeline_parallel_size = 4;
  topology.pipeline_interleave = 2;
  const auto broken_on = [&](std::int64_t world) -> std::string {
    const BatchOutcome outcome = resolve_batch(topology, world);
    if (outcome.violations.empty()) return "none";
    const Violation& first = outcome.violations.front();
    return std::string(first.rule) + " " + first.keys.front() + ": " + first.message;
  };
  topology.global_batch_size = 16;
  CHECK(broken_on(8) == "none");  // 8 micro-batches of each replica
  topology.global_batch_size = 12;
  CHECK(broken_on(4) == "none");
  CHECK(broken_on(8) ==
        "G4 topology.global_batch_size: 6 micro-batches of a step are no multiple of 4 "
        "(pipeline_parallel_size), as interleaved stages need; use 4 or 8 micro-batches, or "
        "pipeline_interleave = 1");
  topology.pipeline_interleave = 1;
  CHECK(broken_on(8) == "none");
  topology.pipeline_interleave = 2;
  topology.global_batch_size = 0;
  topology.gradient_accumulation_steps = 3;
  CHECK(broken_on(4).starts_with("G4 topology.gradient_accumulation_steps: 3 micro-batches"));
  // Each batch size of a ramp-up is checked.
  topology.gradient_accumulation_steps = 0;
  topology.global_batch_size = 16;
  topology.batch_rampup_start = 8;
  topology.batch_rampup_increment = 4;
  topology.batch_rampup_samples = 100;
  CHECK(broken_on(4) == "none");
  topology.batch_rampup_increment = 2;
  CHECK(broken_on(4).starts_with("G4 topology.batch_rampup_increment: 2 micro-batches"));
  topology.batch_rampup_start = 6;
  CHECK(broken_on(4).starts_with("G4 topology.batch_rampup_start: 6 micro-batches"));
}

}  // namespace sortie::config
