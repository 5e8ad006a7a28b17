// Tests of steps that all sites take together, and of rounds that equal plain AdamW.
#include "tests/support/site_training.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

std::vector<double> losses_alone(const config::JobConfig& job,
                                 std::vector<float>* weights = nullptr) {
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  auto losses = training.losses(static_cast<int>(job.trainer.train_iterations));
  if (weights != nullptr) {
    outer::PartMap map(training.trainer->store(), training.trainer->layout());
    weights->resize(static_cast<std::size_t>(map.elements()));
    map.gather(outer::PartValues::weights, *weights);
  }
  return losses;
}

}  // namespace

TEST_CASE("plain steps over sites have the losses of one process with the whole batch") {
  SitesJob sites;
  sites.job.trainer.train_iterations = 12;
  SUBCASE("two sites of one rank") {}
  SUBCASE("two sites of two ranks and of one") {
    sites.ranks_of = [](std::size_t site) { return site == 0 ? 2 : 1; };
  }
  SUBCASE("four sites") {
    sites.sites = 4;
  }
  const auto runs = Sites(sites).run();
  const auto alone = losses_alone(sites.job);
  for (const SiteRun& run : runs) {
    CHECK(run.error == "");
    CHECK_FALSE(run.differs);
    REQUIRE(run.losses.size() == alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      CAPTURE(i);
      CHECK(run.losses[i] == doctest::Approx(alone[i]).epsilon(1e-5));
    }
    CHECK(run.weights == runs[0].weights);
  }
}

TEST_CASE("rounds of one step of one site are plain AdamW") {
  SitesJob sites;
  sites.sites = 1;
  sites.job.trainer.train_iterations = 10;
  sites.outer.rounds = true;
  sites.outer.every = 1;
  sites.outer.learning_rate = 1.0;
  sites.outer.momentum = 0.0;
  const auto runs = Sites(sites).run();
  std::vector<float> alone;
  const auto losses = losses_alone(sites.job, &alone);
  REQUIRE(runs[0].error == "");
  REQUIRE(runs[0].weights.size() == alone.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    CHECK(runs[0].losses[i] == doctest::Approx(losses[i]).epsilon(1e-6));
  for (std::size_t i = 0; i < alone.size(); ++i)
    if (std::abs(runs[0].weights[i] - alone[i]) > 1e-6f * std::max(1.0f, std::abs(alone[i])))
      FAIL("element " << i << ": " << runs[0].weights[i] << " and " << alone[i]);
}
