// Tests of the checkpoints of sites: what they have of a round, and how a run goes on from them.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include "tests/support/site_training.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/layouts/expert_runs.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/loop/signals.h"
#include "trainer/outer/outer_loop.h"
#include "trainer/storage/sha256.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

SitesJob saved_rounds(const std::filesystem::path& folder, std::int64_t steps) {
  SitesJob job;
  job.job.trainer.train_iterations = steps;
  job.job.learning_rate_scheduler.learning_rate = 3e-3;
  job.job.learning_rate_scheduler.learning_rate_decay_iters = 18;
  job.job.trainer.keep_last = 0;
  job.outer.rounds = true;
  job.outer.every = 3;
  job.whole_run = true;
  job.change = [folder](std::size_t site, config::JobConfig one) {
    one.trainer.save_dir = (folder / ("site-" + site_name(site))).string();
    return one;
  };
  return job;
}

/// What all sites have alike in a checkpoint of a round: {name: values}.
std::map<std::string, std::vector<float>> outer_values(const std::filesystem::path& checkpoint) {
  auto reader = CheckpointReader::open(checkpoint, CheckDepth::hashes);
  REQUIRE(reader);
  std::map<std::string, std::vector<float>> found;
  for (const auto& [name, tensor] : reader->manifest().tensors) {
    if (!name.starts_with("model.") && !name.starts_with("outer.momentum.")) continue;
    const Piece whole = Piece::whole(tensor.shape);
    found[name].resize(static_cast<std::size_t>(whole.elements()));
    REQUIRE(reader->read_f32(name, tensor.shape, whole, found[name]));
  }
  return found;
}

}  // namespace

TEST_CASE("a site that the others came to the end without has no work, and saves nothing") {
  const sortie::test::ScopedTempDir dir;
  SitesJob job = saved_rounds(dir.path(), 12);  // 4 rounds
  SUBCASE("one rank") {}
  SUBCASE("two parts") {
    job.ranks = 2;
    job.job.topology.tensor_parallel_size = 2;
  }
  for (const bool in_last_round : {true, false})
    for (const bool others_left : {true, false}) {
      CAPTURE(in_last_round);
      CAPTURE(others_left);
      for (const char* site : {"site-a", "site-b"}) std::filesystem::remove_all(dir / site);
      Sites* all = nullptr;
      std::atomic<bool> back = false;
      const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
      job.hub.leaves_out = [&](const std::string& site, std::int64_t round) {
        return site == "b" && round >= (in_last_round ? 4 : 3);
      };
      job.hub.kills = [&](const std::string& site, const std::string& what, std::int64_t round,
                          bool answered) {
        const auto reached = [&](std::int64_t wanted) {
          const auto commits = all->hub().commits();
          return !commits.empty() && commits.back().round >= wanted;
        };
        // A question of b waits until the others have continued without it.
        if (site == "b" && what == "ready" && !answered && round >= (in_last_round ? 4 : 3))
          while (!reached(round)) pause();
        if (site == "b" && what == "join" && !answered && reached(1)) {
          while (!reached(4) || (others_left && !all->hub().left("a"))) pause();
        }
        if (site == "b" && what == "join" && answered && reached(4)) back = true;
        if (site == "a" && what == "leave" && !others_left)
          while (!back) pause();
        return false;
      };
      Sites sites(job);
      all = &sites;
      const auto runs = sites.run();
      CHECK(runs[0].error == "");
      CHECK(runs[1].error == "");
      CHECK(sites.hub().commits().size() == 4);
      CHECK(sites.hub().commits().back().members == std::vector<std::string>{"a"});
      CHECK(std::filesystem::exists(dir / "site-a" / "step-00000012"));
      CHECK_FALSE(std::filesystem::exists(dir / "site-b" / "step-00000012"));
    }
}

TEST_CASE("sites that go on from their checkpoints have the bits of a run that never stopped") {
  const sortie::test::ScopedTempDir dir;
  const auto whole = [&](SitesJob job) {
    std::filesystem::create_directories(dir.path() / "whole");
    std::filesystem::create_directories(dir.path() / "cut");
    job.change = saved_rounds(dir.path() / "whole", 0).change;
    return Sites(job).run();
  };
  SitesJob job = saved_rounds(dir.path() / "cut", 18);
  SUBCASE("f32") {}
  SUBCASE("4 bits with error feedback") {
    job.outer.wire = config::OuterWire::e2m1;
    job.outer.error_feedback = true;
  }
  SUBCASE("fragments under way while training goes on, mixed") {
    job.outer.fragments = 2;
    job.outer.overlap = 1;
    job.outer.mix = 0.5;
    job.outer.wire = config::OuterWire::e4m3;
  }
  SUBCASE("sharded optimizers") {
    job.ranks = 2;
    job.job.topology.parameter_sharding = "optimizer";
  }
  SUBCASE("experts apart") {
    const auto steps = job.job.trainer;
    const auto rates = job.job.learning_rate_scheduler;
    job.job = experts_job("mixtral");
    job.job.trainer = steps;
    job.job.learning_rate_scheduler = rates;
    job.job.topology.expert_parallel_size = 2;
    job.ranks = 2;
  }
  SUBCASE("stages with tied embeddings, each cut") {
    job.ranks = 4;
    job.job.model.weight_tying = true;
    job.job.topology.pipeline_parallel_size = job.job.topology.tensor_parallel_size = 2;
  }
  SUBCASE("low-rank updates in the second of two stages") {
    job.job.lora = {.rank = 4, .alpha = 8, .modules = {"layers.1.*"}};
    job.ranks = 2;
    job.job.topology.pipeline_parallel_size = 2;
  }
  const auto unstopped = whole(job);
  SitesJob first = job;
  first.job.trainer.train_iterations = 9;
  for (const SiteRun& run : Sites(first).run()) REQUIRE(run.error == "");
  const auto resumed = Sites(job).run();
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(unstopped[i].error == "");
    CHECK(resumed[i].error == "");
    CHECK(resumed[i].weights == unstopped[i].weights);
    CHECK(resumed[i].whole == unstopped[i].whole);
  }
  if (job.outer.fragments == 1) CHECK(resumed[0].whole == resumed[1].whole);
  if (job.outer.fragments == 1) CHECK(resumed[0].weights == resumed[1].weights);
}

TEST_CASE("a site that has joined and is stopped goes on with the warm-up of its learning rate") {
  const sortie::test::ScopedTempDir dir;
  SitesJob job = saved_rounds(dir.path(), 12);
  job.restart = true;
  job.hub.whole_from = 3;
  std::mutex mutex;
  bool killed = false;
  job.hub.kills = [&](const std::string& site, const std::string& what, std::int64_t round,
                      bool answered) {
    const std::lock_guard lock(mutex);
    const bool now = !killed && site == "b" && what == "ready" && round == 2 && !answered;
    return killed |= now, now;
  };
  for (const SiteRun& run : Sites(job).run()) REQUIRE(run.error == "");
  REQUIRE(killed);
  const auto left_in = [&](const char* folder) {
    auto reader = CheckpointReader::open(dir.path() / folder / "step-00000012", CheckDepth::hashes);
    REQUIRE(reader);
    const auto& counters = reader->manifest().counters;
    return counters.contains("outer.warm_up") ? counters.at("outer.warm_up") : 0;
  };
  const std::int64_t left = left_in("site-b");
  CHECK(left > 0);
  CHECK(left < outer::kJoinWarmUp);
  CHECK(left_in("site-a") == 0);

  job.job.trainer.train_iterations = 18;
  job.hub.kills = {};
  job.restart = job.whole_run = false;
  std::vector<std::int64_t> seen;
  job.after_step = [&](std::size_t site, Trainer& trainer) {
    const std::lock_guard lock(mutex);
    if (site == 1) seen.push_back(trainer.progress().outer.warm_up);
    return true;
  };
  for (const SiteRun& run : Sites(job).run()) REQUIRE(run.error == "");
  REQUIRE(seen.size() == 6);
  for (std::size_t i = 0; i < seen.size(); ++i)
    CHECK(seen[i] == std::max<std::int64_t>(0, left - 1 - static_cast<std::int64_t>(i)));
}

TEST_CASE("sites that are stopped within a round go on in it, with the bits of an unstopped run") {
  const sortie::test::ScopedTempDir dir;
  std::filesystem::create_directories(dir.path() / "whole");
  std::filesystem::create_directories(dir.path() / "cut");
  SitesJob job = saved_rounds(dir.path() / "cut", 18);
  bool in_exchange = false;
  std::int64_t at = 3;
  SUBCASE("in the steps") {}
  SUBCASE("in the steps of the first round") {
    at = 1;
  }
  SUBCASE("in the steps, one site does fewer of them") {
    job.hub.steps = [](const std::string& site) { return site == "a" ? 3 : 2; };
  }
  SUBCASE("in the steps, before an exchange of fragments") {
    job.outer.every = 6;
    job.outer.fragments = 2;
    job.outer.mix = 0.5;
    at = 2;
  }
  SUBCASE("in the exchange") {
    in_exchange = true;
  }
  SUBCASE("in the exchange, two parts") {
    in_exchange = true;
    job.ranks = 2;
    job.job.topology.tensor_parallel_size = 2;
  }
  SitesJob other = job;
  other.change = saved_rounds(dir.path() / "whole", 0).change;
  const auto unstopped = Sites(other).run();
  {
    SaveSignals signals(600);
    signals.expect(100);
    SitesJob first = job;
    Sites* all = nullptr;
    std::mutex mutex;
    std::set<std::string> have_work, in_steps;
    int asked = 0;
    first.hub.kills = [&](const std::string& site, const std::string& what, std::int64_t round,
                          bool answered) {
      if (round != at) return false;
      {
        const std::lock_guard lock(mutex);
        if (what == "next" && answered) have_work.insert(site);
        if (what != "ready" || answered) return false;
        if (++asked == 2 * job.ranks && in_exchange) ::kill(::getpid(), SIGTERM);
      }
      // The answer comes too late, also for the site that does its steps faster.
      while (!(all->hub().dead("a") && all->hub().dead("b")))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return false;
    };
    std::condition_variable changed;
    first.hub.begins_step = [&](const std::string& site) {
      std::unique_lock lock(mutex);
      if (in_exchange || !have_work.contains(site) || !in_steps.insert(site).second) return;
      if (in_steps.size() == 2) ::kill(::getpid(), SIGTERM);
      changed.notify_all();
      changed.wait(lock, [&] { return in_steps.size() == 2; });  // both are in their first step
      while (!signals.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    Sites sites(first);
    all = &sites;
    for (const SiteRun& run : sites.run()) CHECK(run.error.starts_with("stopped by SIGTERM"));
  }
  for (const char* site : {"site-a", "site-b"}) {
    const auto latest = find_latest(dir.path() / "cut" / site, CheckDepth::hashes);
    REQUIRE(latest);
    REQUIRE(latest->entry);
    CHECK(latest->entry->manifest->counters.at("outer.round") == at - 1);
    CHECK(latest->entry->manifest->counters.at("outer.done") > 0);
  }
  Sites sites(job);
  const auto resumed = sites.run();
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(unstopped[i].error == "");
    CHECK(resumed[i].error == "");
    CHECK(resumed[i].weights == unstopped[i].weights);
    CHECK(resumed[i].whole == unstopped[i].whole);
  }
  CHECK(sites.hub().steps_in_vain("a") + sites.hub().steps_in_vain("b") == 0);
}

TEST_CASE("sites that are stopped between two fragments save one round, and begin it again") {
  const sortie::test::ScopedTempDir dir;
  SitesJob job = saved_rounds(dir.path(), 24);
  job.job.trainer.save_interval = 6;
  job.outer.every = 6;
  job.outer.fragments = 2;
  job.outer.overlap = 1;
  SUBCASE("f32") {}
  SUBCASE("4 bits with error feedback, mixed, two parts") {
    job.outer.wire = config::OuterWire::e2m1;
    job.outer.error_feedback = true;
    job.outer.mix = 0.5;
    job.ranks = 2;
    job.job.topology.tensor_parallel_size = 2;
  }
  {
    SaveSignals signals(600);
    signals.expect(100);
    SitesJob first = job;
    Sites* all = nullptr;
    std::atomic<int> asked = 0;
    first.hub.kills = [&](const std::string&, const std::string& what, std::int64_t round,
                          bool answered) {
      if (what != "ready" || round != 3 || answered) return false;
      const int before = asked++;
      if (before < 2 * job.ranks) return false;  // the first fragment
      if (before + 1 == 4 * job.ranks) ::kill(::getpid(), SIGTERM);
      while (!(all->hub().dead("a") && all->hub().dead("b")))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return false;
    };
    Sites sites(first);
    all = &sites;
    for (const SiteRun& run : sites.run()) CHECK(run.error.starts_with("stopped by SIGTERM"));
    CHECK(sites.hub().commits().back().round == 3);
    CHECK(sites.hub().commits().back().fragment == 0);
  }
  const auto border = outer_values(dir / "site-a" / "step-00000012");
  for (const char* site : {"site-a", "site-b"}) {
    const auto latest = find_latest(dir / site, CheckDepth::hashes);
    REQUIRE(latest);
    REQUIRE(latest->entry);
    CHECK(latest->entry->step > 12);
    CHECK(latest->entry->manifest->counters.at("outer.round") == 2);
    CHECK(outer_values(latest->entry->folder) == border);
  }
  Sites sites(job);
  for (const SiteRun& run : sites.run()) CHECK(run.error == "");
  for (const char* site : {"a", "b"}) CHECK(sites.hub().steps_in_vain(site) > 0);
  // The rounds 1 to 3 had the samples before this.
  CHECK(sites.hub().grants().front().first == 3 * 6 * 8);
  CHECK(outer_values(dir / "site-a" / "step-00000024") ==
        outer_values(dir / "site-b" / "step-00000024"));
}

TEST_CASE("a checkpoint of other rounds is refused, because steps would be left out or repeated") {
  const sortie::test::ScopedTempDir dir;
  SitesJob job = saved_rounds(dir.path(), 9);
  // Before a site asks for anything.
  const auto refused = [](const SitesJob& resumed, const std::string& part) {
    outer::Site site;
    site.name = site_name(0);
    site.count = 2;
    site.settings = resumed.outer;
    config::JobConfig one = resumed.job;
    one.topology = config::topology_of_site(one.topology, site.count);
    const auto started = start_trainer(resumed.change(0, one), {}, &site);
    REQUIRE_FALSE(started);
    const std::string& error = started.error().message;
    CAPTURE(error);
    CHECK(started.error().code == ErrorCode::config);
    CHECK(error.starts_with("outer.every: the checkpoint " + part));
    CHECK(error.find("trainer.load_weights_from") != std::string::npos);
  };
  SUBCASE("another number of steps") {
    for (const SiteRun& run : Sites(job).run()) REQUIRE(run.error == "");
    job.job.trainer.train_iterations = 18;
    job.outer.every = 4;
    refused(job, "has 3 rounds in 9 steps, which are 12 steps in this job");
    job.outer.every = 3;
    for (const SiteRun& run : Sites(job).run()) CHECK(run.error == "");
  }
  SUBCASE("plain steps before") {
    job.outer.rounds = false;
    for (const SiteRun& run : Sites(job).run()) REQUIRE(run.error == "");
    job.job.trainer.train_iterations = 60;
    job.outer.rounds = true;
    refused(job, "has 9 rounds in 9 steps, which are 27 steps in this job");
    job.outer.start_after = 9;  // from here on in rounds
    for (const SiteRun& run : Sites(job).run()) CHECK(run.error == "");
  }
  SUBCASE("a run without sites") {
    config::JobConfig plain = job.job;
    plain.trainer.save_dir = (dir.path() / "plain").string();
    const auto communicator = make_single_communicator();
    TinyTraining training(plain, *communicator);
    REQUIRE(training.trainer->run());
    job.change = [&, change = job.change](std::size_t site, config::JobConfig one) {
      one.trainer.load_dir = plain.trainer.save_dir;
      return change(site, std::move(one));
    };
    job.job.trainer.train_iterations = 18;
    refused(job, "is at step 9 of a run without rounds");
  }
  SUBCASE("a run without sites that has continued that of a site") {
    for (const SiteRun& run : Sites(job).run()) REQUIRE(run.error == "");
    config::JobConfig plain = job.job;
    plain.trainer.load_dir = (dir.path() / "site-a").string();
    plain.trainer.save_dir = (dir.path() / "plain").string();
    plain.trainer.train_iterations = 12;
    {
      const auto communicator = make_single_communicator();
      TinyTraining training(plain, *communicator);
      REQUIRE(training.trainer->run());
    }
    const auto checkpoint = dir / "plain" / "step-00000012";
    auto manifest = check_checkpoint(checkpoint, CheckDepth::hashes);
    REQUIRE(manifest);
    CHECK_FALSE(manifest->counters.contains("outer.round"));
    job.change = [&](std::size_t site, config::JobConfig one) {
      one.trainer.load_dir = plain.trainer.save_dir;
      one.trainer.save_dir = (dir.path() / "again" / ("site-" + site_name(site))).string();
      return one;
    };
    job.job.trainer.train_iterations = 18;
    std::filesystem::create_directories(dir.path() / "again");
    refused(job, "is at step 12 of a run without rounds");
    // As older versions have saved it.
    manifest->counters["outer.round"] = 3;
    manifest->counters["outer.begin"] = manifest->counters["outer.step"] = 9;
    const std::string text = to_json(*manifest);
    std::ofstream(checkpoint / kManifestFile) << text;
    std::ofstream(checkpoint / kCommitFile) << commit_text(sha256_hex(text));
    refused(job, "is at step 12 of a run without rounds");
  }
}

TEST_CASE("a site that is stopped again before its first step keeps its own weights on disk") {
  const sortie::test::ScopedTempDir dir;
  const auto stopped_at = [&](const std::string& question, std::int64_t round) {
    // Its settings apply, not those before the first step, which end the process soon.
    SaveSignals signals(600);
    signals.expect(100);
    SitesJob job = saved_rounds(dir.path(), 18);
    job.sites = 1;
    Sites* all = nullptr;
    job.hub.kills = [&](const std::string& site, const std::string& what, std::int64_t at,
                        bool answered) {
      if (what != question || at != round || answered) return false;
      ::kill(::getpid(), SIGTERM);
      while (!all->hub().dead(site)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return false;
    };
    Sites sites(job);
    all = &sites;
    CHECK(sites.run()[0].error.starts_with("stopped by SIGTERM"));
    const auto latest = find_latest(dir / "site-a", CheckDepth::hashes);
    REQUIRE(latest);
    REQUIRE(latest->entry);
    CHECK(latest->entry->step == 6);
    return *latest->entry->manifest;
  };
  const auto own_weights = [](const Manifest& manifest) {
    return std::ranges::count_if(
        manifest.tensors, [](const auto& entry) { return entry.first.starts_with("outer.own."); });
  };
  const Manifest first = stopped_at("ready", 2);
  CHECK(own_weights(first) > 0);
  const Manifest second = stopped_at("join", 1);
  CHECK(own_weights(second) == own_weights(first));
  CHECK(second.shards[0].sha256 == first.shards[0].sha256);
}
