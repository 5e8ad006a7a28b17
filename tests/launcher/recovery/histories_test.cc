// Properties that hold for any history: runs with random failures, hosts and settings, played to
// their ends.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "tests/launcher/recovery/attempts.h"

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
using test::goes_on;
using test::History;
using Names = std::vector<std::string>;

constexpr FailureClass kClasses[] = {
    FailureClass::app, FailureClass::software,  FailureClass::hardware, FailureClass::hang,
    FailureClass::oom, FailureClass::preempted, FailureClass::setup};

class Game {
 public:
  explicit Game(unsigned seed) : random_(seed) {
    recovery_.max_restarts = pick(1, 12);
    recovery_.no_progress_limit = pick(1, 5);
    recovery_.restart_window = milliseconds(pick(60, 100'000) * 1000);
    recovery_.backoff = milliseconds(pick(0, 5000));
    recovery_.backoff_max = milliseconds(pick(0, 60'000));
    recovery_.healthy_after = milliseconds(pick(1, 1000) * 1000);
    recovery_.min_hosts = pick(0, 4);
    recovery_.cordon = chance(0.8);
    if (chance(0.5)) recovery_.restart_on.emplace_back("oom");
    if (chance(0.3)) recovery_.counted = {"app"};
    for (int i = 0; i < pick(1, 6); ++i) pool_.hosts.push_back("h" + std::to_string(i));
    for (int i = 0; i < pick(0, 4); ++i) pool_.spares.push_back("s" + std::to_string(i));
    at_first_ = pool_.hosts.size();
    pool_.legal = [this](const Names& hosts) { return hosts.size() * 2 >= at_first_; };
    progress_ = chance(0.5) ? 0.3 : 0;
    silent_ = chance(0.2);  // reports no step: an attempt that lasts long enough counts as progress
  }

  /// Plays attempts until the run stops, and checks each decision.
  void play() {
    for (int attempt = 1; attempt <= 400; ++attempt) {
      run_an_attempt();
      const Decision decision = decide(recovery_, history_, pool_, uniform());
      CHECK_FALSE(decision.reason.empty());
      CHECK(decision.reason.find('\n') == std::string::npos);
      if (!goes_on(decision)) {
        CHECK(decision.exit_code == history_.back().exit_code);
        CHECK(decision.no_progress ==
              (decision.reason.find("no_progress_limit") != std::string::npos));
        return;
      }
      check(decision);
      take(decision);
    }
    CHECK_MESSAGE((progress_ > 0 || silent_), "a run without progress goes on for ever");
  }

 private:
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  bool chance(double likely) { return uniform() < likely; }
  const std::string& any_host() {
    return pool_.hosts[static_cast<std::size_t>(pick(0, static_cast<int>(pool_.hosts.size()) - 1))];
  }

  void run_an_attempt() {
    AttemptEnd& end = test::add_end(history_, kClasses[pick(0, 6)], pick(1, 2000));
    // A job whose first attempt starts no rank ends at once. That is not tested here.
    end.started = end.failure != FailureClass::setup;
    if (history_.size() == 1 && !end.started) end.failure = FailureClass::app, end.started = true;
    if (chance(0.6)) end.blamed_host = any_host();
    if (chance(0.3)) end.rank = pick(0, 3);
    if (chance(0.15)) end.unusable_hosts.insert(any_host());
    if (chance(0.1)) pool_.cordoned.insert(any_host());
    if (chance(0.1)) pool_.breaker_open = !pool_.breaker_open;
    if (chance(progress_)) step_ += 10;
    if (!silent_) end.committed_step = step_;
  }

  void check(const Decision& decision) {
    CHECK(decision.pause.count() >= 0);
    CHECK(decision.pause <= recovery_.backoff_max);
    REQUIRE_FALSE(decision.hosts.empty());
    Names sorted = decision.hosts;
    std::ranges::sort(sorted);
    CHECK(std::ranges::adjacent_find(sorted) == sorted.end());
    for (const std::string& host : decision.hosts) {
      CHECK_FALSE(pool_.cordoned.contains(host));
      CHECK_FALSE(history_.back().unusable_hosts.contains(host));
      CHECK(std::ranges::find(decision.cordon, host) == decision.cordon.end());
      const bool known = std::ranges::find(pool_.hosts, host) != pool_.hosts.end();
      CHECK((known || std::ranges::find(pool_.spares, host) != pool_.spares.end()));
      CHECK(known != decision.replaced.contains(host));
    }
    if (decision.hosts.size() < pool_.hosts.size()) {
      CHECK(recovery_.min_hosts > 0);
      CHECK(static_cast<std::int64_t>(decision.hosts.size()) >= recovery_.min_hosts);
      CHECK(pool_.legal(decision.hosts));
    }
    CHECK(decision.hosts.size() <= pool_.hosts.size());
    if (!recovery_.cordon || pool_.breaker_open) CHECK(decision.cordon.empty());
    for (const std::string& host : decision.cordon) CHECK(blames_of(history_, host) >= 2);
    CHECK(counted_in_window() <= recovery_.max_restarts);
  }

  /// Restarts of counted classes in the window, this decision included, as docs/config.md defines
  /// them.
  std::int64_t counted_in_window() const {
    const double window = static_cast<double>(recovery_.restart_window.count()) / 1000;
    return std::ranges::count_if(history_, [&](const AttemptEnd& end) {
      const auto name = failure_class_name(end.failure);
      return end.ended >= history_.back().ended - window &&
             std::ranges::find(recovery_.counted, name) != recovery_.counted.end();
    });
  }

  void take(const Decision& decision) {
    for (const std::string& host : decision.cordon) pool_.cordoned.insert(host);
    for (const std::string& host : decision.hosts) std::erase(pool_.spares, host);
    pool_.hosts = decision.hosts;
  }

  std::mt19937 random_;
  config::RecoveryConfig recovery_;
  HostPool pool_;
  History history_;
  std::size_t at_first_ = 0;
  std::uint64_t step_ = 0;
  double progress_ = 0;
  bool silent_ = false;
};

TEST_CASE("random histories: within the budget, to an end, on hosts that may be used") {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    Game(seed).play();
  }
}

}  // namespace
}  // namespace sortie::launcher
