// Restart or stop: a case for each rule of launcher/recovery/README.md.
#include "launcher/recovery/decide.h"

#include <doctest/doctest.h>

#include "tests/launcher/recovery/attempts.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;
using test::add_end;
using test::contains;
using test::goes_on;
using test::History;
using test::pool_of;
using test::restarts;

/// The decision after a history with this one end.
Decision after(FailureClass failure, const config::RecoveryConfig& recovery) {
  History history;
  add_end(history, failure);
  return decide(recovery, history, pool_of({"h1", "h2"}), 0.5);
}

TEST_CASE("what restarts by default, and what never does") {
  const config::RecoveryConfig recovery = restarts(5);
  for (const FailureClass failure :
       {FailureClass::app, FailureClass::software, FailureClass::hardware, FailureClass::hang,
        FailureClass::preempted}) {
    CAPTURE(failure_class_name(failure));
    const Decision decision = after(failure, recovery);
    CHECK(goes_on(decision));
    CHECK(decision.hosts == std::vector<std::string>{"h1", "h2"});
    CHECK(decision.exit_code == 0);
    CHECK(contains(decision.reason, failure_class_name(failure).data()));
  }
  for (const FailureClass failure : {FailureClass::oom, FailureClass::user, FailureClass::setup}) {
    CAPTURE(failure_class_name(failure));
    const Decision decision = after(failure, recovery);
    CHECK_FALSE(goes_on(decision));
    CHECK(decision.hosts.empty());
    CHECK(decision.exit_code == 1);
  }
  CHECK_FALSE(goes_on(after(FailureClass::app, restarts(0))));
  config::RecoveryConfig all = recovery;
  all.restart_on = {"oom", "user", "setup"};
  CHECK(goes_on(after(FailureClass::oom, all)));
  CHECK_FALSE(goes_on(after(FailureClass::app, all)));
  CHECK_FALSE(goes_on(after(FailureClass::user, all)));
  CHECK_FALSE(goes_on(after(FailureClass::setup, all)));
  History well;
  add_end(well, FailureClass::app).exit_code = 0;
  const Decision end = decide(recovery, well, pool_of({"h1"}), 0.5);
  CHECK_FALSE(goes_on(end));
  CHECK(end.exit_code == 0);
}

TEST_CASE("exit codes decide before classes, and to stop before to restart") {
  config::RecoveryConfig recovery = restarts(5);
  recovery.restart_on = {"hardware"};
  recovery.restart_exit_codes = {"3", "64-66"};
  recovery.stop_exit_codes = {"65"};
  const auto with_code = [&](std::optional<int> code) {
    History history;
    add_end(history, FailureClass::app).rank_code = code;
    return goes_on(decide(recovery, history, pool_of({"h1"}), 0));
  };
  CHECK(with_code(3));
  CHECK(with_code(64));
  CHECK_FALSE(with_code(65));
  CHECK(with_code(66));
  CHECK_FALSE(with_code(4));
  CHECK_FALSE(with_code(std::nullopt));
}

TEST_CASE("max_restarts within a window that moves on; other classes do not use it up") {
  config::RecoveryConfig recovery = restarts(2);
  recovery.restart_window = milliseconds(3'600'000);
  recovery.no_progress_limit = 0;
  History history;
  add_end(history, FailureClass::app);
  CHECK(goes_on(decide(recovery, history, pool_of({"h1"}), 0)));
  add_end(history, FailureClass::hardware);  // not counted
  add_end(history, FailureClass::app);
  const Decision second = decide(recovery, history, pool_of({"h1"}), 0);
  CHECK(goes_on(second));
  CHECK(contains(second.reason, "2 of 2 within 1h00m"));
  add_end(history, FailureClass::app);
  const Decision third = decide(recovery, history, pool_of({"h1"}), 0);
  CHECK_FALSE(goes_on(third));
  CHECK_FALSE(third.no_progress);
  CHECK(contains(third.reason, "2 restarts within 1h00m are spent (recovery.max_restarts)"));
  history.back().failure = FailureClass::hardware;
  CHECK(contains(decide(recovery, history, pool_of({"h1"}), 0).reason, "not counted"));
  // An hour later earlier restarts no longer count.
  add_end(history, FailureClass::app, 3600);
  CHECK(goes_on(decide(recovery, history, pool_of({"h1"}), 0)));
}

TEST_CASE("attempts that run no rank use up the budget, whatever their class") {
  config::RecoveryConfig recovery = restarts(2);
  History history;
  add_end(history, FailureClass::hardware);
  for (int i = 0; i < 2; ++i) {
    CHECK(goes_on(decide(recovery, history, pool_of({"h1"}), 0)));
    add_end(history, FailureClass::setup).started = false;
  }
  CHECK(goes_on(decide(recovery, history, pool_of({"h1"}), 0)));
  add_end(history, FailureClass::setup).started = false;
  CHECK_FALSE(goes_on(decide(recovery, history, pool_of({"h1"}), 0)));
}

TEST_CASE("a restart that can not be set up is a failure of the host") {
  History history;
  add_end(history, FailureClass::software);
  AttemptEnd& last = add_end(history, FailureClass::setup);
  last.started = false;
  last.blamed_host = "h2";
  CHECK(class_of(history, 1) == FailureClass::hardware);
  CHECK(class_of(history, 0) == FailureClass::software);
  const Decision decision = decide(restarts(5), history, pool_of({"h1", "h2"}, {"s1"}), 0);
  CHECK(decision.hosts == std::vector<std::string>{"h1", "s1"});
  CHECK_FALSE(goes_on(decide(restarts(5), history, pool_of({"h1", "h2"}), 0)));
  // If it is the first attempt, it shows only that the job does not start.
  history.erase(history.begin());
  CHECK(class_of(history, 0) == FailureClass::setup);
}

TEST_CASE("attempts without a newer committed step than any before") {
  config::RecoveryConfig recovery = restarts(100);
  History history;
  const auto end_at = [&](std::optional<std::uint64_t> step) {
    add_end(history, FailureClass::hardware).committed_step = step;
    return decide(recovery, history, pool_of({"h1"}), 0);
  };
  CHECK(goes_on(end_at(100)));
  CHECK(goes_on(end_at(100)));
  CHECK(goes_on(end_at(90)));  // lower than the highest step so far
  CHECK(without_progress(recovery, history) == 2);
  CHECK(goes_on(end_at(110)));
  CHECK(without_progress(recovery, history) == 0);
  end_at(std::nullopt);
  end_at(110);
  const Decision decision = end_at(110);
  CHECK_FALSE(goes_on(decision));
  CHECK(decision.no_progress);
  CHECK(contains(decision.reason,
                 "3 attempts in a row committed no newer step "
                 "(recovery.no_progress_limit)"));
  const std::string text = ends_text(history, 3);
  CHECK(contains(text, "  attempt 5: hardware, 1m00s, no step committed: cause 5\n"));
  CHECK(contains(text, "  attempt 7: hardware, 1m00s, step 110 committed: cause 7"));
  CHECK_FALSE(test::has(text, "cause 4"));
  recovery.no_progress_limit = 0;
  CHECK(goes_on(decide(recovery, history, pool_of({"h1"}), 0)));
}

TEST_CASE("progress: a run that goes on from another one's checkpoint, one that tells of no step") {
  config::RecoveryConfig recovery = restarts(100);
  History resumed;
  for (int i = 0; i < 3; ++i) add_end(resumed, FailureClass::software).committed_step = 500;
  CHECK(without_progress(recovery, resumed) == 2);  // step 500 was new in the first attempt
  resumed.front().begun_at_step = 500;
  CHECK(without_progress(recovery, resumed) == 3);

  History silent;
  for (int i = 0; i < 5; ++i) add_end(silent, FailureClass::software, 601);
  CHECK(without_progress(recovery, silent) == 0);
  add_end(silent, FailureClass::software, 599);
  CHECK(without_progress(recovery, silent) == 1);
  // An attempt that started no rank does not count.
  add_end(silent, FailureClass::setup).started = false;
  CHECK(without_progress(recovery, silent) == 1);
}

TEST_CASE("the pause doubles, up to its most, and begins anew after a healthy attempt") {
  config::RecoveryConfig recovery = restarts(1000);
  recovery.no_progress_limit = 0;
  recovery.backoff_max = milliseconds(7000);
  History history;
  const auto pause_after = [&](double lasted, double chance) {
    add_end(history, FailureClass::hardware, lasted);
    return decide(recovery, history, pool_of({"h1"}), chance).pause.count();
  };
  CHECK(pause_after(60, 0.5) == 1000);
  CHECK(pause_after(60, 0.5) == 2000);
  CHECK(pause_after(60, 0.0) == 3000);
  CHECK(pause_after(60, 0.5) == 7000);
  CHECK(pause_after(60, 0.999) == 7000);
  CHECK(pause_after(60, 0.0) == 5250);
  CHECK(pause_after(600, 0.5) == 1000);  // healthy
  CHECK(pause_after(60, 0.5) == 1000);   // the first of a new series
  CHECK(pause_after(60, 0.5) == 2000);
  recovery.backoff = milliseconds(0);
  CHECK(pause_after(60, 0.5) == 0);
}

}  // namespace
}  // namespace sortie::launcher
