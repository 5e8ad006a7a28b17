// Tests of the state of sites: copied from one site to another, and the same on all of them.
#include <algorithm>

#include "tests/support/site_training.h"
#include "tests/trainer/layouts/expert_runs.h"
#include "trainer/outer/fragments.h"
#include "trainer/outer/outer_state.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

TEST_CASE(
    "a site that comes back without a checkpoint copies the state, whoever of the donors dies") {
  // Site b dies in round 2 and comes back. Site a, from which it would copy, dies in the exchange
  // in which it copies.
  SitesJob job;
  job.sites = 3;
  job.job.trainer.train_iterations = 12;
  job.outer.rounds = true;
  job.outer.every = 2;
  job.restart = true;
  job.hub.whole_from = 3;
  std::mutex mutex;
  Sites* all = nullptr;
  bool first = false, second = false, joined = false, buried = false;
  job.hub.kills = [&](const std::string& site, const std::string& what, std::int64_t round,
                      bool answered) {
    const std::lock_guard lock(mutex);
    if (site == "b" && what == "ready" && round == 2 && !answered && !first) return first = true;
    if (site == "b" && first && what == "join" && answered) joined = true;
    if (site == "a" && joined && what == "ready" && answered && !second) {
      second = true;
      all->network().kill_at("a", 3);  // after greeting both others, during the state
      return false;
    }
    if (site == "a" && second && what == "vote" && !buried) return buried = true;
    return false;
  };
  Sites sites(job);
  all = &sites;
  const auto runs = sites.run();
  CHECK(buried);
  std::map<std::int64_t, std::uint64_t> known;
  for (const SiteRun& run : runs) {
    CHECK(run.error == "");
    for (const auto& [round, hash] : run.hashes)
      CHECK(known.emplace(round, hash).first->second == hash);
    CHECK(run.weights == runs[0].weights);
  }
  CHECK(known.size() == 6);
}

TEST_CASE("a site that comes into plain steps gets weights and moments") {
  SitesJob job;
  job.sites = 3;
  job.job.trainer.train_iterations = 10;
  job.restart = true;
  job.hub.whole_from = 6;
  std::mutex mutex;
  bool killed = false;
  job.hub.kills = [&](const std::string& site, const std::string& what, std::int64_t round, bool) {
    const std::lock_guard lock(mutex);
    if (killed || site != "c" || what != "ready" || round != 4) return false;
    return killed = true;
  };
  SUBCASE("one rank each") {}
  SUBCASE("moments in bf16, two ranks in one of them") {
    job.job.optimizer.moments = "bf16";
    job.ranks_of = [](std::size_t site) { return site == 0 ? 2 : 1; };
    job.job.topology.global_batch_size = 12;
  }
  SUBCASE("two ranks in one of them") {
    job.ranks_of = [](std::size_t site) { return site == 0 ? 2 : 1; };
    job.job.topology.global_batch_size = 12;
  }
  SUBCASE("experts apart") {
    job.job = experts_job("mixtral");
    job.job.trainer.train_iterations = 10;
    job.job.topology.global_batch_size = 12;
    job.job.topology.expert_parallel_size = 2;
    job.ranks = 2;
  }
  Sites sites(job);
  const auto runs = sites.run();
  CHECK(killed);
  for (const SiteRun& run : runs) {
    CHECK(run.error == "");
    CHECK(run.weights == runs[0].weights);
    CHECK(run.whole == runs[0].whole);
  }
}

TEST_CASE("all wires give the same bits on all sites") {
  for (const auto wire :
       {config::OuterWire::bf16, config::OuterWire::int8, config::OuterWire::e4m3,
        config::OuterWire::e5m2, config::OuterWire::e2m1, config::OuterWire::e3m0}) {
    CAPTURE(config::outer_wire_name(wire));
    SitesJob job;
    job.sites = 3;
    job.job.topology.global_batch_size = 12;
    job.job.trainer.train_iterations = 6;
    job.outer.rounds = true;
    job.outer.every = 2;
    job.outer.wire = wire;
    job.outer.error_feedback = config::bytes_per_value(wire, 32) < 1.0;
    const auto runs = Sites(job).run();
    std::map<std::int64_t, std::uint64_t> known;
    for (const SiteRun& run : runs) {
      CHECK(run.error == "");
      for (const auto& [round, hash] : run.hashes)
        CHECK(known.emplace(round, hash).first->second == hash);
      CHECK(run.weights == runs[0].weights);
    }
    CHECK(known.size() == 3);
  }
}

TEST_CASE("a site whose weights are not finite abstains, and ends after three rounds") {
  SitesJob job;
  job.sites = 3;
  job.job.topology.global_batch_size = 12;
  job.job.trainer.train_iterations = 16;
  job.outer.rounds = true;
  job.outer.every = 2;
  job.after_step = [](std::size_t site, Trainer& trainer) {
    if (site == 1) {
      const ops::HostAccess<float> moments(trainer.context(), trainer.store().moment1());
      moments[0] = std::nanf("");
    }
    return true;
  };
  const auto runs = Sites(job).run();
  CHECK(runs[0].error == "");
  CHECK(runs[2].error == "");
  CHECK(runs[1].error.find("3 rounds in a row") != std::string::npos);
  CHECK(runs[0].weights == runs[2].weights);
  for (const float value : runs[0].weights) REQUIRE(std::isfinite(value));
}

TEST_CASE(
    "fragments have strided layers, as much of what belongs to none as they lack, and every "
    "element once") {
  std::vector<outer::PartPiece> pieces;
  std::int64_t at = 0;
  for (const char* name : {"embedding.weight", "layers.0.a", "layers.1.a", "layers.10.a",
                           "layers.2.a", "norm.weight"}) {
    pieces.push_back({name, {10}, Piece::whole({10}), at});
    at += 10;
  }
  CHECK(outer::layer_of_name("layers.10.mlp.up") == 10);
  CHECK(outer::layer_of_name("layers.x") == -1);
  CHECK(outer::layer_of_name("embedding") == -1);
  const auto three = outer::cut_into_fragments(pieces, 3);
  using Ranges = std::vector<outer::PartRange>;
  CHECK(three[0] == Ranges{{0, 20}});   // the embedding, layer 0
  CHECK(three[1] == Ranges{{20, 40}});  // layers 1 and 10
  CHECK(three[2] == Ranges{{40, 60}});  // layer 2, the norm
  CHECK(outer::cut_into_fragments(pieces, 1)[0] == Ranges{{0, 60}});
  // An embedding that is most of the model is divided.
  const std::vector<outer::PartPiece> small_layers = {
      {"embedding.weight", {1000}, Piece::whole({1000}), 0},
      {"layers.0.a", {96}, Piece::whole({96}), 1000},
      {"layers.1.a", {96}, Piece::whole({96}), 1096}};
  std::vector<int> seen(1192);
  for (const auto& ranges : outer::cut_into_fragments(small_layers, 4)) {
    CHECK(outer::elements_of(ranges) >= 288);
    CHECK(outer::elements_of(ranges) <= 328);
    for (const outer::PartRange& range : ranges)
      for (std::int64_t i = range.begin; i < range.end; ++i) ++seen[static_cast<std::size_t>(i)];
  }
  CHECK(std::ranges::all_of(seen, [](int times) { return times == 1; }));
  config::OuterSettings settings;
  settings.fragments = 3;
  settings.overlap = 2;
  const outer::FragmentTimes times(settings, 20);
  CHECK(times.ready(0) == 6);
  CHECK(times.ready(2) == 18);
  CHECK(times.applied(2) == 20);
}

TEST_CASE("the outer step is SGD with Nesterov's momentum as PyTorch has it") {
  // torch.optim.SGD([1.0, -2.0], lr=0.5, momentum=0.9, nesterov=True), gradients [0.5, 1.0] twice.
  outer::OuterState state{0, {1.0f, -2.0f}, {0.0f, 0.0f}};
  config::OuterSettings settings;
  settings.learning_rate = 0.5;
  settings.momentum = 0.9;
  const std::vector<outer::PartRange> all = {{0, 2}};
  const std::vector<float> mean = {0.5f, 1.0f};
  state.apply(settings, all, mean);
  CHECK(state.weights[0] == doctest::Approx(0.525));
  CHECK(state.weights[1] == doctest::Approx(-2.95));
  state.apply(settings, all, mean);
  CHECK(state.weights[0] == doctest::Approx(-0.1525));
  CHECK(state.weights[1] == doctest::Approx(-4.305));
  settings.nesterov = false;
  outer::OuterState plain{0, {1.0f, -2.0f}, {0.0f, 0.0f}};
  plain.apply(settings, all, mean);
  plain.apply(settings, all, mean);
  CHECK(plain.weights[0] == doctest::Approx(1.0 - 0.25 - 0.475));
  const std::uint64_t before = plain.hash();
  plain.momentum[1] = std::nextafter(plain.momentum[1], 10.0f);
  CHECK(plain.hash() != before);
}
