// Compares expert parallelism with one process.
#include <algorithm>

#include "tests/trainer/layouts/expert_runs.h"

namespace sortie::trainer::test {
namespace {

void check_experts(const config::JobConfig& job, const std::vector<ExpertLayout>& layouts,
                   int steps, const LayoutExtras& extras = {}) {
  const LayoutRun alone = run_layout(job, 1, steps, DType::f32, {}, extras);
  for (const ExpertLayout& layout : layouts) {
    CAPTURE(job.model.architecture);
    CAPTURE(layout.experts);
    CAPTURE(layout.tensor);
    CAPTURE(layout.expert_tensor);
    CAPTURE(layout.pipeline);
    CAPTURE(layout.replicas);
    CAPTURE(layout.sequence);
    CAPTURE(layout.sharded);
    CAPTURE(layout.context);
    check_equal(
        run_layout(with_experts_on(job, layout), layout.ranks(), steps, DType::f32, {}, extras),
        alone);
  }
}

/// Returns how close the routers of the first step are to another choice: the smallest distance
/// between a score that is chosen and one that is not, or between sums of groups.
double smallest_gap(const config::JobConfig& job) {
  const auto alone = make_single_communicator();
  TinyTraining training(job, *alone);
  const config::MoeConfig& moe = job.model.moe;
  const bool sigmoid = job.model.architecture == "deepseek-v3";
  double least = 1.0;
  const auto look_at = [&](std::vector<double> scores) {
    const auto groups = static_cast<std::size_t>(moe.num_groups);
    const std::size_t each = scores.size() / groups;
    if (groups > 1) {
      std::vector<std::pair<double, std::size_t>> sums;
      for (std::size_t g = 0; g < groups; ++g) {
        std::vector<double> of_group(scores.begin() + static_cast<std::ptrdiff_t>(g * each),
                                     scores.begin() + static_cast<std::ptrdiff_t>((g + 1) * each));
        std::ranges::sort(of_group, std::greater<>());
        sums.emplace_back(of_group[0] + of_group[1], g);
      }
      std::ranges::sort(sums, std::greater<>());
      const auto kept = static_cast<std::size_t>(moe.group_topk);
      least = std::min(least, sums[kept - 1].first - sums[kept].first);
      for (std::size_t i = kept; i < groups; ++i)
        std::fill_n(scores.begin() + static_cast<std::ptrdiff_t>(sums[i].second * each), each,
                    -1.0);
    }
    std::ranges::sort(scores, std::greater<>());
    const auto k = static_cast<std::size_t>(moe.topk);
    least = std::min(least, scores[k - 1] - scores[k]);
  };
  ForwardContext forward;
  Graph graph(training.trainer->context(), Graph::Mode::inference);
  graph.set_observer([&](std::string_view name, const Tensor& value) {
    if (!name.ends_with(".router")) return;
    const std::vector<float> logits = host_values(training.trainer->store(), value);
    const auto width = static_cast<std::size_t>(moe.num_experts);
    for (std::size_t row = 0; row < logits.size(); row += width) {
      std::vector<double> scores;
      double sum = 0.0;
      for (std::size_t e = 0; e < width; ++e) {
        const double logit = logits[row + e];
        scores.push_back(sigmoid ? 1.0 / (1.0 + std::exp(-logit)) : std::exp(logit));
        sum += scores.back();
      }
      for (double& score : scores) score /= sigmoid ? 1.0 : sum;
      look_at(scores);
    }
  });
  (void)training.loss(graph, training.first_rows(job.topology.global_batch_size), 1.0f, forward);
  return least;
}

TEST_CASE("experts shared out to replicas train as one process does") {
  for (const char* architecture : {"mixtral", "deepseek-v3", "qwen3-moe"}) {
    if (!sortie::test::every_case() && architecture == std::string("qwen3-moe")) continue;
    const config::JobConfig job = experts_job(architecture);
    // Rounding could otherwise route a row differently, which would not be an error but could hide
    // one.
    REQUIRE(smallest_gap(job) > 1e-5);
    check_experts(job,
                  {{.experts = 2, .replicas = 2},
                   {.experts = 4, .replicas = 4},
                   {.experts = 2, .replicas = 4}},
                  20);
  }
}

TEST_CASE("experts of tensor-parallel groups have rows from each of their ranks") {
  for (const char* architecture : {"deepseek-v3", "mixtral"}) {
    const config::JobConfig job = experts_job(architecture);
    std::vector<ExpertLayout> layouts = {
        {.experts = 2, .tensor = 2, .expert_tensor = 1, .sequence = true},
        {.experts = 4, .tensor = 2, .expert_tensor = 1, .replicas = 2},
        {.experts = 2, .tensor = 2, .expert_tensor = 2, .replicas = 2, .sequence = true}};
    if (sortie::test::every_case())
      for (const bool sequence : {false, true})
        for (const bool sharded : {false, true})
          for (const ExpertLayout& sizes :
               {ExpertLayout{.experts = 1, .tensor = 2, .expert_tensor = 1},
                ExpertLayout{.experts = 2, .tensor = 4, .expert_tensor = 1},
                ExpertLayout{.experts = 2, .tensor = 4, .expert_tensor = 2},
                ExpertLayout{.experts = 4, .tensor = 2, .expert_tensor = 2, .replicas = 4},
                ExpertLayout{.experts = 4, .tensor = 2, .replicas = 4},
                ExpertLayout{.experts = 2, .tensor = 2, .pipeline = 2, .replicas = 2}}) {
            ExpertLayout layout = sizes;
            layout.sequence = sequence;
            layout.sharded = sharded;
            layouts.push_back(layout);
          }
    check_experts(job, layouts, sortie::test::every_case() ? 20 : 3);
  }
}

TEST_CASE("experts with a capacity drop the same choices in every layout") {
  for (const char* architecture : {"mixtral", "deepseek-v3"}) {
    config::JobConfig job = experts_job(architecture);
    job.model.moe.capacity_factor = 1.0;
    REQUIRE(smallest_gap(job) > 1e-5);
    check_experts(job,
                  {{.replicas = 2},
                   {.tensor = 2, .sequence = true},
                   {.pipeline = 2, .replicas = 2},
                   {.experts = 2, .replicas = 2},
                   {.experts = 4, .replicas = 4, .sharded = true},
                   {.experts = 4, .tensor = 2, .expert_tensor = 1, .replicas = 2},
                   {.experts = 2, .tensor = 2, .expert_tensor = 2, .replicas = 2},
                   {.context = 2},
                   {.tensor = 2, .sequence = true, .context = 2},
                   {.experts = 2, .context = 2}},
                  4);
    const LayoutRun limited = run_layout(job, 1, 1, DType::f32);
    job.model.moe.capacity_factor = 0.0;
    CHECK(run_layout(job, 1, 1, DType::f32).losses != limited.losses);
    REQUIRE(limited.dropped.size() == 1);
    CHECK(limited.dropped[0] > 0.0);
  }
}

TEST_CASE("stages have experts on ranks of their own, and replicas a share of the optimizer") {
  config::JobConfig job = experts_job("deepseek-v3");
  job.model.num_layers = 3;
  check_experts(job,
                {{.experts = 2, .pipeline = 2, .replicas = 2},
                 {.experts = 2, .replicas = 4, .sharded = true},
                 {.experts = 4, .replicas = 4, .sharded = true}},
                3);
}

TEST_CASE("experts without rows, and ranks whose experts have none, take part") {
  config::JobConfig job = experts_job("mixtral");
  job.topology.micro_batch_size = 1;
  job.topology.global_batch_size = 4;
  job.model.sequence_length = 3;  // 3 rows reach at most 6 of 8 experts
  check_experts(job,
                {{.experts = 8, .tensor = 4, .expert_tensor = 1, .replicas = 2},
                 {.experts = 4, .replicas = 4}},
                4);
}

}  // namespace
}  // namespace sortie::trainer::test
