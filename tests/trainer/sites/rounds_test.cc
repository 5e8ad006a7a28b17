// Tests of rounds: all sites have the same bits, whatever happens to some of them.
#include <algorithm>
#include <atomic>
#include <set>

#include "tests/support/site_training.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

SitesJob rounds_of(std::int64_t every, std::size_t sites, std::int64_t steps) {
  SitesJob job;
  job.sites = sites;
  job.job.trainer.train_iterations = steps;
  job.job.learning_rate_scheduler.learning_rate = 3e-3;
  job.outer.rounds = true;
  job.outer.every = every;
  job.outer.learning_rate = 0.7;
  job.outer.momentum = 0.9;
  return job;
}

/// Checks that all sites that took part in a round have the same hash.
void check_hashes(const std::vector<SiteRun>& runs, std::int64_t rounds) {
  std::map<std::int64_t, std::uint64_t> known;
  for (const SiteRun& run : runs)
    for (const auto& [round, hash] : run.hashes) {
      CAPTURE(round);
      CHECK(known.emplace(round, hash).first->second == hash);
    }
  CHECK(static_cast<std::int64_t>(known.size()) == rounds);
}

void check_disjoint(std::vector<std::pair<std::int64_t, std::int64_t>> ranges) {
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i) CHECK(ranges[i - 1].second <= ranges[i].first);
}

}  // namespace

TEST_CASE("after every round all sites have the same outer weights, to the bit") {
  SitesJob job = rounds_of(3, 2, 12);
  SUBCASE("whole replicas") {}
  SUBCASE("sites with replicas of their own") {
    job.ranks_of = [](std::size_t site) { return site == 0 ? 2 : 1; };
  }
  SUBCASE("sharded in one site, not in the other") {
    job.ranks_of = [](std::size_t site) { return site == 0 ? 2 : 1; };
    job.change = [](std::size_t site, config::JobConfig one) {
      if (site == 0) one.topology.parameter_sharding = "full";
      return one;
    };
  }
  SUBCASE("sharded optimizer") {
    job.ranks = 2;
    job.job.topology.parameter_sharding = "optimizer";
  }
  SUBCASE("four sites") {
    job.sites = 4;
  }
  SUBCASE("tensor parallelism") {
    job.ranks = 2;
    job.job.topology.tensor_parallel_size = 2;
  }
  SUBCASE("stages of a pipeline, tied embeddings") {
    job.ranks = 2;
    job.job.topology.pipeline_parallel_size = 2;
    job.job.model.weight_tying = true;
  }
  SUBCASE("plain steps first") {
    job.outer.start_after = 3;
  }
  SUBCASE("a last round that is shorter") {
    job.job.trainer.train_iterations = 11;
  }
  SUBCASE("fragments") {
    job.outer.fragments = 2;
  }
  Sites sites(job);
  const auto runs = sites.run();
  for (const SiteRun& run : runs) {
    CHECK(run.error == "");
    CHECK_FALSE(run.differs);
    CHECK(run.losses.back() < run.losses.front());
  }
  const std::int64_t plain = job.outer.start_after;
  check_hashes(runs, plain + (job.job.trainer.train_iterations - plain + 2) / 3);
  if (job.outer.fragments == 1)
    for (const SiteRun& run : runs) CHECK(run.weights == runs[0].weights);
  check_disjoint(sites.hub().grants());
}

TEST_CASE("a slower site does fewer steps of a round, by the same schedule") {
  SitesJob job = rounds_of(4, 2, 12);
  job.hub.steps = [](const std::string& site) { return site == "a" ? 4 : 2; };
  Sites sites(job);
  const auto runs = sites.run();
  CHECK(runs[0].error == "");
  CHECK(runs[1].error == "");
  CHECK(runs[0].losses.size() == 12);
  CHECK(runs[1].losses.size() == 6);
  check_hashes(runs, 3);
  check_disjoint(sites.hub().grants());
}

TEST_CASE("a site that the others went on without does no further step of that round") {
  SitesJob job = rounds_of(6, 2, 30);
  std::int64_t parts = 1;
  job.hub.whole_from = 4;
  SUBCASE("one rank") {}
  SUBCASE("two parts, and fragments") {
    job.ranks = 2;
    job.job.topology.tensor_parallel_size = 2;
    job.outer.fragments = 2;
    parts = 2;
  }
  job.hub.leaves_out = [](const std::string& site, std::int64_t round) {
    return site == "b" && round == 2;
  };
  Sites* all = nullptr;
  std::string notes;
  std::atomic<bool> two_steps = false;
  job.after_step = [&](std::size_t site, Trainer& trainer) {
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    const OuterProgress& at = trainer.progress().outer;
    if (site == 0) {
      while (at.round == 1 && at.done == 1 && !two_steps) pause();
      return true;
    }
    for (const std::string& note : trainer.outer()->take_notes()) notes += note + "\n";
    // Two of the six steps are done when the round is committed.
    if (at.round == 1 && at.done == 2) two_steps = true;
    while (at.round == 1 && at.done == 2 && all->hub().commits().back().round < 2) pause();
    return true;
  };
  Sites sites(job);
  all = &sites;
  const auto runs = sites.run();
  for (const SiteRun& run : runs) {
    CHECK(run.error == "");
    CHECK_FALSE(run.differs);
  }
  check_hashes(runs, 5);
  CHECK(runs[0].losses.size() == 30);
  // Site b learns of it with its third step, and takes the weights of the other site in a later
  // round.
  CHECK(sites.hub().steps_in_vain("b") == 3 * parts);
  CHECK(notes.find("3 steps of round 2 were in vain") != std::string::npos);
  CHECK(notes.find("has the outer weights of round") != std::string::npos);
  CHECK(runs[1].hashes.contains(1));
  CHECK_FALSE(runs[1].hashes.contains(2));
  CHECK(runs[1].hashes.contains(5));
  check_disjoint(sites.hub().grants());
}

TEST_CASE("a site that is refused with several fragments under way begins the round anew") {
  SitesJob job = rounds_of(4, 2, 16);
  job.outer.fragments = 2;
  job.hub.steps = [](const std::string& site) { return site == "a" ? 4 : 1; };
  std::atomic<int> asked = 0;  // no site's change counts in the first exchange of round 2
  job.hub.counts = [&](const std::string&, std::int64_t round) {
    return round != 2 || ++asked > 2;
  };
  Sites sites(job);
  const auto runs = sites.run();
  CHECK(runs[0].error == "");
  CHECK(runs[1].error == "");
  check_hashes(runs, 4);
  CHECK(sites.hub().steps_in_vain("a") > 0);
  CHECK(sites.hub().steps_in_vain("b") == 1);
}

TEST_CASE("the loss bears that half of the changes are dropped") {
  SitesJob job = rounds_of(4, 4, 48);
  job.job.topology.global_batch_size = 32;
  const auto last = [](const std::vector<SiteRun>& runs) {
    double sum = 0;
    for (const SiteRun& run : runs)
      for (std::size_t i = run.losses.size() - 8; i < run.losses.size(); ++i) sum += run.losses[i];
    return sum / 32;
  };
  const double all = last(Sites(job).run());
  job.hub.counts = [](const std::string& site, std::int64_t round) {
    return (site[0] + round) % 2 == 0;
  };
  const auto runs = Sites(job).run();
  check_hashes(runs, 12);
  MESSAGE("last losses " << all << " and " << last(runs));
  CHECK(last(runs) < all * 1.10);
}

TEST_CASE("a site that dies at any point of a round costs the others no round") {
  // A question or answer of round 2, or a message of its exchange.
  struct Point {
    const char* what;
    bool answered;
    std::uint64_t message;
  };
  const std::vector<Point> points = {{"next", false, 0}, {"next", true, 0},  {"ready", false, 0},
                                     {"ready", true, 0}, {"ready", true, 1}, {"ready", true, 3},
                                     {"vote", false, 0}, {"vote", true, 0}};
  for (const Point& point : points) {
    CAPTURE(point.what);
    CAPTURE(point.answered);
    CAPTURE(point.message);
    SitesJob job = rounds_of(2, 3, 10);
    job.restart = true;
    job.hub.whole_from = 4;
    std::mutex mutex;
    bool killed = false, dead = false;
    Sites* all = nullptr;
    job.hub.kills = [&](const std::string& site, const std::string& what, std::int64_t round,
                        bool answered) {
      const std::lock_guard lock(mutex);
      // The process dies with its links.
      if (killed && !dead && point.message > 0 && site == "b" && what == "vote") return dead = true;
      if (killed || site != "b" || what != point.what || round != 2 || answered != point.answered)
        return false;
      killed = true;
      if (point.message == 0) return true;
      all->network().kill_at("b", point.message);
      return false;
    };
    Sites sites(job);
    all = &sites;
    const auto runs = sites.run();
    CHECK(killed);
    for (const SiteRun& run : runs) CHECK(run.error == "");
    check_hashes({runs[0], runs[2]}, 5);
    check_hashes(runs, 5);
    std::set<std::int64_t> rounds;
    for (const auto& commit : sites.hub().commits()) CHECK(rounds.insert(commit.round).second);
    CHECK(rounds.size() == 5);
    check_disjoint(sites.hub().grants());
  }
}
