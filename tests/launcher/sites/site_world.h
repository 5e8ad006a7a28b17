// Simulates sites that train, and all faults between them, in simulated time, for tests of the
// coordinator. Leaders ask as common/training/outer.h specifies. Messages are late, lost,
// duplicated and reordered. Sites crash and return with an older checkpoint. The coordinator
// crashes between writing its log and sending messages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "launcher/sites/coordinator.h"

namespace sortie::launcher::test {

class SiteWorld {
 public:
  struct Config {
    unsigned seed = 1;
    int sites = 3, parts = 1;
    std::int64_t fragments = 1, min_sites = 1, rounds = 12;
    int site_crashes = 0, coordinator_crashes = 0;
    double lost = 0.0, doubled = 0.0;  // fractions of all messages
    std::vector<double> step_seconds = {};
    bool rounds_of_one = false;  // level "none"
    std::int64_t every = 10;
  };
  explicit SiteWorld(Config config);

  /// Runs until every site has all rounds. Returns false if `limit_ms` passes first.
  bool run(std::int64_t limit_ms);

  /// Violations found; empty if there are none.
  std::vector<std::string> broken;
  std::int64_t now = 0;
  std::map<std::string, std::int64_t> idle_ms, busy_ms;  // by site, since round 3
  std::size_t commits = 0, orders = 0;
  std::string log;
  std::string state() const;

 private:
  struct Leader;
  struct SimSite {
    std::string name;
    std::uint32_t attempt = 1;
    bool up = true;
    std::vector<Leader> leaders;
    std::int64_t saved_round = 0;      // round of its checkpoint
    training::OuterWork saved_work{};  // of the round after it, in which it was stopped
    double step_seconds = 0.1;
  };
  struct Leader {
    int part = 0;
    std::uint64_t number = 0;
    std::optional<training::OuterQuestion> asked;
    std::int64_t round = 0, position = 0, fragment = 0, ready_since = 0;
    training::OuterWork work{};                   // of the round after `round`
    std::map<std::int64_t, std::uint64_t> theta;  // of each fragment
    std::map<std::int64_t, std::int64_t> done;
    std::uint64_t epoch = 0;  // of its current exchange
    std::optional<training::OuterExchange> order;
  };

  void at(std::int64_t when, std::function<void()> what);
  std::int64_t jitter(std::int64_t least, std::int64_t most);
  bool chance(double share);
  void start_coordinator();
  void take(OuterCoordinator::Step step);
  void deliver(const OuterCoordinator::Message& message, std::uint32_t attempt);
  void ask(SimSite& site, Leader& leader, training::OuterQuestion question);
  void repeat(std::string site, std::uint32_t attempt, int part, std::uint64_t number);
  void join(SimSite& site, Leader& leader);
  void next(SimSite& site, Leader& leader);
  void ready(SimSite& site, Leader& leader);
  void on(SimSite& site, Leader& leader, const training::OuterJoined& said);
  void on(SimSite& site, Leader& leader, const training::OuterWork& work);
  void on(SimSite& site, Leader& leader, const training::OuterExchange& order);
  void on(SimSite& site, Leader& leader, const training::OuterDecision& decision);
  void vote(SimSite& site, Leader& leader, bool done, const std::string& suspect);
  void apply(Leader& leader, std::int64_t round, std::int64_t fragment, std::uint64_t epoch);
  void try_exchange(std::uint64_t epoch, int part);
  void crash(SimSite& site);
  void start(SimSite& site);
  void wake();
  std::uint64_t hash_of(const Leader& leader) const;
  SimSite* find(const std::string& name);

  const Config config_;
  std::mt19937 random_;
  std::multimap<std::int64_t, std::function<void()>> events_;
  std::vector<SimSite> sites_;
  std::unique_ptr<OuterCoordinator> coordinator_;
  std::uint64_t life_ = 0;  // counts the coordinators
  std::uint64_t keys_ = 0;
  std::optional<std::int64_t> wake_;
  // State for the checks.
  std::map<std::pair<std::int64_t, std::int64_t>, std::uint64_t> epoch_of_;  // (round, fragment)
  std::set<std::uint64_t> committed_;
  std::map<std::int64_t, std::int64_t> consumed_;  // round -> samples of the rounds up to it
  std::map<std::uint64_t, training::OuterExchange> orders_;
  std::map<std::int64_t, std::pair<std::int64_t, std::string>> ranges_;  // first -> end, site
};

}  // namespace sortie::launcher::test
