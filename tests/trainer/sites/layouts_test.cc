// Tests of layouts inside sites: after every round, all parts have the same bits on both sites, and
// the model is that of sites of one rank, up to rounding.
#include <algorithm>

#include "tests/support/bf16.h"
#include "tests/support/site_training.h"
#include "tests/trainer/layouts/expert_runs.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

constexpr std::int64_t kSteps = 8, kEvery = 2;

SitesJob two_sites(config::JobConfig job) {
  SitesJob all;
  all.job = std::move(job);
  all.job.topology.global_batch_size = 8;
  all.job.topology.micro_batch_size = 1;
  all.job.trainer.train_iterations = kSteps;
  all.job.learning_rate_scheduler.learning_rate = 3e-3;
  all.job.optimizer.eps = 1e-4;  // keeps small moments from amplifying rounding differences
  all.outer.rounds = true;
  all.outer.every = kEvery;
  all.outer.learning_rate = 0.7;
  return all;
}

config::JobConfig with_lora(config::JobConfig job) {
  job.lora.rank = 4;
  job.lora.alpha = 8;
  job.lora.modules = {"*.attention.*", "layers.1.mlp.down"};
  return job;
}

/// Checks every part of every round, on both sites.
void check_parts(const std::vector<SiteRun>& runs, std::int64_t rounds, std::size_t parts) {
  for (const SiteRun& run : runs) {
    CHECK(run.error == "");
    CHECK_FALSE(run.differs);
    CHECK(run.wrong == "");
    CHECK(run.part_hashes.size() == static_cast<std::size_t>(rounds) * parts);
  }
  CHECK(runs[0].part_hashes == runs[1].part_hashes);
  CHECK(runs[0].whole == runs[1].whole);
}

void check_near_one_rank(const SitesJob& job, const std::vector<SiteRun>& runs, double loss_limit,
                         double weight_limit) {
  SitesJob alone = job;
  alone.ranks = 1;
  auto& topology = alone.job.topology;
  topology.tensor_parallel_size = topology.pipeline_parallel_size = 1;
  topology.context_parallel_size = topology.expert_parallel_size = 1;
  topology.sequence_parallel = false;
  topology.parameter_sharding = "none";
  const auto single = Sites(alone).run();
  for (std::size_t site = 0; site < runs.size(); ++site) {
    CAPTURE(site);
    REQUIRE(single[site].error == "");
    REQUIRE(runs[site].losses.size() == single[site].losses.size());
    for (std::size_t i = 0; i < runs[site].losses.size(); ++i)
      CHECK(runs[site].losses[i] == doctest::Approx(single[site].losses[i]).epsilon(loss_limit));
    REQUIRE(runs[site].whole.size() == single[site].whole.size());
    double most = 0.0;
    for (const auto& [name, values] : single[site].whole) {
      CAPTURE(name);
      REQUIRE(runs[site].whole.contains(name));
      const double apart = relative_difference(runs[site].whole.at(name), values);
      CHECK(apart <= weight_limit);
      most = std::max(most, apart);
    }
    MESSAGE("weights differ by at most " << most);
  }
}

}  // namespace

TEST_CASE("sites: layouts within them have the same bits on both, and the model of single ranks") {
  SitesJob job = two_sites(tiny_job());
  std::size_t parts = 1;
  job.ranks = 2;
  double loss_limit = 1e-5, weight_limit = 1e-4;
  SUBCASE("experts apart") {
    job = two_sites(experts_job("mixtral"));
    job.ranks = 2;
    job.job.topology.expert_parallel_size = 2;
    parts = 2;
  }
  SUBCASE("experts apart, in replicas, with stages") {
    job = two_sites(experts_job("qwen3-moe"));
    job.ranks = 4;
    job.job.topology.expert_parallel_size = 2;
    job.job.topology.pipeline_parallel_size = 2;
    parts = 4;
  }
  SUBCASE("experts apart, sharded optimizer") {
    job = two_sites(experts_job("mixtral"));
    job.ranks = 4;
    job.job.topology.expert_parallel_size = 2;
    job.job.topology.parameter_sharding = "optimizer";
    parts = 2;
  }
  SUBCASE("shared sequences") {
    job.job.model.sequence_length = 20;
    job.job.topology.context_parallel_size = 2;
  }
  SUBCASE("shared sequences and tensor parallelism") {
    job.job.model.sequence_length = 20;
    job.ranks = 4;
    job.job.topology.context_parallel_size = 2;
    job.job.topology.tensor_parallel_size = 2;
    parts = 2;
  }
  SUBCASE("tied embeddings over stages, each cut") {
    job.ranks = 4;
    job.job.model.weight_tying = true;
    job.job.topology.pipeline_parallel_size = 2;
    job.job.topology.tensor_parallel_size = 2;
    parts = 4;
  }
  SUBCASE("low-rank updates") {
    job.job = with_lora(job.job);
  }
  SUBCASE("low-rank updates, cut") {
    job.job = with_lora(job.job);
    job.job.topology.tensor_parallel_size = 2;
    parts = 2;
  }
  SUBCASE("low-rank updates in one of two stages") {
    job.job = with_lora(job.job);
    job.job.lora.modules = {"layers.1.*"};  // nothing in the first stage is trained
    job.job.topology.pipeline_parallel_size = 2;
    parts = 2;
  }
  SUBCASE("low-rank updates, weights sharded") {
    job.job = with_lora(job.job);
    job.job.topology.parameter_sharding = "full";
  }
  const auto runs = Sites(job).run();
  check_parts(runs, kSteps / kEvery, parts);
  check_near_one_rank(job, runs, loss_limit, weight_limit);
}

TEST_CASE("sites: layouts within them in bf16 follow single ranks in bf16") {
  if (skips_bf16()) return;
  SitesJob job = two_sites(tiny_job());
  job.ranks = 2;
  job.precision = DType::bf16;
  std::size_t parts = 1;
  SUBCASE("cut") {
    job.job.topology.tensor_parallel_size = 2;
    parts = 2;
  }
  SUBCASE("weights sharded") {
    job.job.topology.parameter_sharding = "full";
  }
  const auto runs = Sites(job).run();
  check_parts(runs, kSteps / kEvery, parts);
  check_near_one_rank(job, runs, 3e-2, 3e-2);
}
