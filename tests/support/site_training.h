// Sites with tiny trainings as threads of one process: the ranks of a site share a communicator;
// sites share only links and a coordinator.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/memory_links.h"
#include "tests/support/outer_hub.h"
#include "tests/support/tiny_training.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/parallel/thread_ranks.h"

namespace sortie::trainer::test {

/// "a", "b" ...
inline std::string site_name(std::size_t index) {
  return std::string(1, static_cast<char>('a' + index));
}

/// Results of the ranks of a site.
struct SiteRun {
  std::vector<double> losses;                    // by step, of rank 0
  std::map<std::int64_t, std::uint64_t> hashes;  // of part 0's outer state, by round
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint64_t> part_hashes;  // by round and part
  std::vector<float> weights;  // of part 0: the outer weights, or the site's
  WholeTensors whole;          // the site's model, by name
  std::string wrong;           // ranks that hold the same element with different values
  std::vector<training::RoundEvent> rounds;
  std::string error;     // the error that ended it; empty = none
  bool differs = false;  // ranks of the site have different losses
};

struct SitesJob {
  config::JobConfig job = tiny_job();  // global_batch_size is the sum over all sites
  config::OuterSettings outer;
  std::size_t sites = 2;
  DType precision = DType::f32;
  int ranks = 1;  // per site
  std::function<int(std::size_t site)> ranks_of{};
  testing::OuterHubSettings hub{};  // sites, every, start_after, batch and fragments are filled in
  testing::MemoryNetworkOptions network{};
  /// Called by rank 0 of a site after each step; false ends the site.
  std::function<bool(std::size_t site, Trainer& trainer)> after_step{};
  bool whole_run = false;  // call Trainer::run() instead of single steps
  bool restart = false;    // restart a killed site once
  std::function<config::JobConfig(std::size_t site, config::JobConfig job)> change{};
};

class Sites {
 public:
  explicit Sites(SitesJob job)
      : job_(std::move(job)), network_(job_.network), hub_(hub_settings()) {}

  std::vector<SiteRun> run() {
    std::vector<SiteRun> runs(job_.sites);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < job_.sites; ++i)
      threads.emplace_back([this, i, &runs] {
        run_site(i, runs[i]);
        if (job_.restart && !runs[i].error.empty()) {
          hub_.revive(site_name(i));
          first_error_ = runs[i].error;
          runs[i].error.clear();
          run_site(i, runs[i]);
        }
      });
    for (std::thread& thread : threads) thread.join();
    return runs;
  }
  testing::OuterHub& hub() { return hub_; }
  testing::MemoryNetwork& network() { return network_; }
  const std::string& first_error() const { return first_error_; }

 private:
  testing::OuterHubSettings hub_settings() {
    testing::OuterHubSettings hub = job_.hub;
    for (std::size_t i = 0; i < job_.sites; ++i) hub.sites.push_back(site_name(i));
    const bool rounds = job_.outer.rounds;
    hub.every = rounds ? job_.outer.every : 1;
    hub.start_after = rounds ? job_.outer.start_after : std::int64_t{1} << 40;
    hub.batch = job_.job.topology.global_batch_size / static_cast<std::int64_t>(job_.sites);
    hub.fragments = rounds ? job_.outer.fragments : 1;
    if (!hub.killed) hub.killed = [this](const std::string& site) { network_.kill(site); };
    return hub;
  }

  void run_site(std::size_t index, SiteRun& run) {
    outer::Site site;
    site.name = site_name(index);
    site.index = static_cast<std::int64_t>(index);
    site.count = static_cast<std::int64_t>(job_.sites);
    site.settings = job_.outer;
    site.make_coordinator = [&](std::int64_t part) { return hub_.connect(site.name, part); };
    site.make_links = [&](std::int64_t part) { return network_.links(site.name, part); };
    config::JobConfig job = job_.job;
    job.topology = config::topology_of_site(job.topology, site.count);
    if (job_.change) job = job_.change(index, job);
    const int ranks = job_.ranks_of ? job_.ranks_of(index) : job_.ranks;
    std::mutex mutex;
    Assembled whole;
    std::vector<std::vector<double>> losses_of(static_cast<std::size_t>(ranks));
    run_thread_ranks(ranks, [&](Communicator& world) {
      TinyTraining training(job, world, job_.precision, 1, nullptr, {}, &site);
      Trainer& trainer = *training.trainer;
      std::vector<double> losses;
      std::string error;
      if (job_.whole_run) {
        if (const auto ran = trainer.run(); !ran) error = ran.error().message;
      }
      bool goes_on = !job_.whole_run;
      while (goes_on && trainer.progress().step < job.trainer.train_iterations) {
        const auto report = trainer.step();
        if (!report) {
          error = report.error().message;
          break;
        }
        losses.push_back(report->loss);
        const std::lock_guard lock(mutex);
        if (world.rank() == 0 && trainer.outer()->at_border() && trainer.outer()->hash() != 0)
          run.hashes[trainer.progress().outer.round] = trainer.outer()->hash();
        if (trainer.outer()->at_border() && trainer.outer()->map().leads())
          run.part_hashes[{trainer.progress().outer.round, trainer.outer()->map().part()}] =
              trainer.outer()->hash();
        double go = 1.0;
        if (world.rank() == 0 && job_.after_step && !job_.after_step(index, trainer)) go = 0.0;
        if (job_.after_step && ranks == 1) goes_on = go > 0;
      }
      std::vector<float> weights;
      if (error.empty()) {
        outer::PartMap map(trainer.store(), trainer.layout());
        weights.resize(static_cast<std::size_t>(map.elements()));
        map.gather(outer::PartValues::weights, weights);
        trainer.store().await_values();
        trainer.context().synchronize();
      }
      const std::lock_guard lock(mutex);
      if (error.empty()) whole.add(world.rank(), trainer.store(), "model.");
      if (world.rank() == 0) {
        run.losses.insert(run.losses.end(), losses.begin(), losses.end());
        run.error = error;
        run.weights = weights;
      }
      losses_of[static_cast<std::size_t>(world.rank())] = std::move(losses);
    });
    for (const std::vector<double>& losses : losses_of)
      run.differs = run.differs || losses != losses_of.front();
    run.whole = whole.tensors();
    run.wrong = whole.wrong();
  }

  SitesJob job_;
  testing::MemoryNetwork network_;
  testing::OuterHub hub_;
  std::string first_error_;
};

}  // namespace sortie::trainer::test
