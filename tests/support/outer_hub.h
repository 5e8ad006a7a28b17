// A coordinator of several sites in one process, for tests of the training loop: a minimal
// implementation of the protocol in common/training/outer.h. It can kill sites at chosen points.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/outer/coordinator.h"

namespace sortie::testing {

struct OuterHubSettings {
  std::vector<std::string> sites;  // sites at the beginning
  std::int64_t every = 1;          // inner steps per round
  std::int64_t start_after = 0;    // leading rounds with one step; all of them if `every` is 1
  std::int64_t batch = 1;          // samples per inner step of a site
  std::int64_t fragments = 1;
  /// From this round on, work is granted only when all sites are members, so killed sites have
  /// rejoined by then.
  std::int64_t whole_from = std::numeric_limits<std::int64_t>::max();
  std::int64_t position = 0;  // start position in the data; a site may report a later one
  /// Steps of a site per round; unset: `every`.
  std::function<std::int64_t(const std::string& site)> steps{};
  /// Whether the change of a site counts in a round; unset: always.
  std::function<bool(const std::string& site, std::int64_t round)> counts{};
  /// Whether a round continues without a site, which learns of it when the round is committed.
  std::function<bool(const std::string& site, std::int64_t round)> leaves_out{};
  /// Called before a request of a site is accepted (`what` may be "leave"), and again before its
  /// answer is delivered. Returning true kills the site.
  std::function<bool(const std::string& site, const std::string& what, std::int64_t round,
                     bool answered)>
      kills{};
  /// Called when a site begins a step of a round of many steps, without a lock of the hub.
  std::function<void(const std::string& site)> begins_step{};
  /// Called when a site was killed, without a lock of the hub.
  std::function<void(const std::string& site)> killed{};
};

/// Thread-safe. Must outlive what connect() returns.
class OuterHub {
 public:
  explicit OuterHub(OuterHubSettings settings) : settings_(std::move(settings)) {}

  std::unique_ptr<trainer::outer::Coordinator> connect(const std::string& site, std::int64_t part);
  /// Removes a dead site. Requests of its leaders are answered with ErrorCode::interrupted. Call
  /// revive() before it connects again.
  void lose(const std::string& site);
  void revive(const std::string& site);

  struct Commit {
    std::int64_t round = 0, fragment = 0;
    std::uint64_t hash = 0;
    std::vector<std::string> members;
  };
  std::vector<Commit> commits() const;
  /// Whether the site has finished its training.
  bool left(const std::string& site) const;
  /// Whether the site was killed, or has ended its connection.
  bool dead(const std::string& site) const;
  std::int64_t aborted() const;
  /// Number of wasted steps that the site has reported, over all its parts.
  std::int64_t steps_in_vain(const std::string& site) const;
  /// [first, end) of the samples of every grant.
  std::vector<std::pair<std::int64_t, std::int64_t>> grants() const;

 private:
  class Connection;
  struct Leader {
    std::optional<training::OuterQuestion> asked;
    std::optional<training::OuterAnswer> answer;
    std::string address;
    std::uint64_t incarnation = 0;
  };
  struct Site {
    bool dead = false, in = false, left = false, left_out = false;
    std::int64_t in_vain = 0;
    std::uint64_t incarnation = 0;
    std::int64_t parts = 0;
    std::map<std::int64_t, Leader> leaders;
    std::vector<std::int64_t> done;
  };
  struct Order {
    std::int64_t round = 0, fragment = 0;
    std::uint64_t epoch = 0;
    std::vector<std::string> members;
  };
  struct Work {
    std::int64_t steps = 0, first = 0;
  };
  Result<training::OuterAnswer> ask(const std::string& site, std::int64_t part,
                                    std::uint64_t incarnation, const std::string& what,
                                    std::int64_t round, training::OuterQuestion question);
  bool kill_here(const std::string& site, const std::string& what, std::int64_t round,
                 bool answered);
  template <class Question>
  bool all_ask(const Site& site) const;
  void settle();
  void admit();
  void grant();
  void order();
  void judge();
  std::int64_t round() const;
  void remove(const std::string& site);

  const OuterHubSettings settings_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Site> sites_;
  std::vector<std::int64_t> committed_;  // committed round of each fragment
  std::map<std::int64_t, std::map<std::string, Work>> grants_;
  std::optional<Order> order_;
  std::set<std::uint64_t> aborted_epochs_;
  std::vector<Commit> commits_;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges_;
  bool begun_ = false, over_ = false;
  std::int64_t position_ = 0;
  std::uint64_t epoch_ = 0;
};

}  // namespace sortie::testing
