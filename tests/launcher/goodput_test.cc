// How the time of a run is divided, for made-up journals with known results.
#include "launcher/report/goodput.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

using test::contains;

/// A run that begins at second 1000. `at` is relative to that.
struct MadeUpRun {
  void journal(double at, const char* name, nlohmann::json fields = nlohmann::json::object()) {
    fields["event"] = name;
    fields["time"] = 1000 + at;
    events += fields.dump() + "\n";
    times.take_journal(fields);
  }
  void metric(double at, const char* type, nlohmann::json fields = nlohmann::json::object()) {
    fields["type"] = type;
    fields["time"] = 1000 + at;
    metrics += fields.dump() + "\n";
    times.take_metric(fields);
  }
  /// Steps `first` to `last`, one per second. The first is done at `at`.
  void steps(double at, int first, int last) {
    for (int step = first; step <= last; ++step, ++at)
      metric(at, "step", {{"step", step}, {"step_ms", 1000}});
  }
  Goodput goodput(std::optional<double> now = std::nullopt) const {
    const Goodput found = goodput_of(times, now ? std::optional(1000 + *now) : std::nullopt);
    // The parts add up to the whole.
    CHECK(found.train + found.save + found.restart + found.lost + found.idle ==
          doctest::Approx(found.total));
    for (const double part : {found.train, found.save, found.restart, found.lost, found.idle})
      CHECK(part >= 0);
    return found;
  }

  RunTimes times;
  std::string events, metrics;
};

/// 10 s of start, 100 steps of which 60 are committed, a failure, 20 s until training resumes at
/// step 60, 40 steps with a save that stalls for 2 s, 5 s to the end.
MadeUpRun restarted_once() {
  MadeUpRun run;
  run.journal(0, "begin", {{"hosts", 2}, {"ranks", 2}});
  run.journal(0, "attempt", {{"attempt", 1}});
  run.journal(8, "started");
  run.metric(10, "start", {{"step", 0}, {"steps", 100}});
  run.steps(11, 1, 60);
  run.metric(71, "checkpoint", {{"step", 60}, {"seconds", 1}, {"stall_seconds", 0}});
  run.steps(71, 61, 100);
  run.journal(115, "cause", {{"died_at", 1114.0}, {"what", "signal"}});
  run.journal(118, "attempt_end", {{"attempt", 1}, {"exit_code", 137}});
  run.journal(118, "decision", {{"action", "restart"}});
  run.journal(120, "attempt", {{"attempt", 2}});
  run.journal(130, "started");
  run.metric(134, "start", {{"step", 60}, {"steps", 100}});
  run.steps(135, 61, 80);
  run.metric(157, "checkpoint", {{"step", 80}, {"seconds", 3}, {"stall_seconds", 2}});
  run.steps(157, 81, 100);
  run.metric(177, "done", {{"step", 100}, {"steps", 100}});
  run.journal(182, "attempt_end", {{"attempt", 2}, {"exit_code", 0}});
  run.journal(182, "end", {{"exit_code", 0}});
  return run;
}

TEST_CASE("a run that was restarted once") {
  const Goodput found = restarted_once().goodput();
  CHECK(found.total == doctest::Approx(182));
  CHECK(found.attempts == 2);
  CHECK(found.steps_known);
  CHECK(found.idle == doctest::Approx(10 + 5));
  CHECK(found.restart == doctest::Approx(20));
  CHECK(found.lost == doctest::Approx(44));  // from step 60, done at 70, to the failure at 114
  CHECK(found.lost_steps == 40);
  CHECK(found.save == doctest::Approx(2));
  CHECK(found.train == doctest::Approx(60 + 43 - 2));
}

TEST_CASE("a run that ends without a restart loses what no checkpoint has") {
  MadeUpRun run;
  run.journal(0, "begin");
  run.journal(2, "started");
  run.metric(4, "start", {{"step", 20}});
  run.steps(5, 21, 40);
  run.metric(15.5, "checkpoint", {{"step", 30}, {"seconds", 1}, {"stall_seconds", 0.5}});
  run.journal(25, "cause", {{"died_at", 1024.0}});
  run.journal(30, "end", {{"exit_code", 1}});
  const Goodput found = run.goodput();
  CHECK(found.attempts == 1);
  CHECK(found.lost == doctest::Approx(10));
  CHECK(found.lost_steps == 10);
  CHECK(found.save == doctest::Approx(0.5));
  CHECK(found.train == doctest::Approx(9.5));
  CHECK(found.idle == doctest::Approx(10));
  CHECK(found.restart == 0);
}

TEST_CASE("suspect checkpoints count if there is no other") {
  for (const bool all : {false, true}) {
    MadeUpRun run;
    run.journal(0, "begin");
    run.metric(0, "start", {{"step", 0}});
    run.steps(1, 1, 40);
    run.metric(20, "checkpoint", {{"step", 20}, {"suspect", all}});
    run.metric(30, "checkpoint", {{"step", 30}, {"suspect", true}});
    run.journal(40, "cause", {{"died_at", 1040.0}});
    run.journal(40, "end", {{"exit_code", 1}});
    CHECK(run.goodput().lost_steps == (all ? 10 : 20));
  }
}

TEST_CASE("checkpoints in memory count for restarts of the run, and are lost with it") {
  MadeUpRun run;
  run.journal(0, "attempt");
  run.metric(0, "start", {{"step", 0}});
  run.steps(1, 1, 10);
  run.metric(10, "checkpoint", {{"step", 10}, {"seconds", 0}, {"stall_seconds", 0}});
  run.steps(11, 11, 40);
  run.metric(30, "memory_checkpoint", {{"step", 30}, {"stall_seconds", 0}});
  run.journal(40, "cause", {{"died_at", 1040.0}});
  run.journal(40, "attempt_end", {{"exit_code", 1}});
  run.journal(41, "attempt");
  run.metric(45, "start", {{"step", 30}, {"resumed_from", "memory"}});
  run.steps(46, 31, 60);
  run.metric(65, "memory_checkpoint", {{"step", 50}, {"stall_seconds", 0}});
  Goodput found = run.goodput(75);
  CHECK(found.lost_steps == 10);
  run.journal(75, "cause", {{"died_at", 1075.0}});
  run.journal(75, "attempt_end", {{"exit_code", 1}});
  run.journal(76, "end", {{"exit_code", 1}});
  found = run.goodput();
  CHECK(found.lost_steps == 30 + 30);  // step 10 is on a disk, the memory has gone
  CHECK(found.train == doctest::Approx(10));
  CHECK(found.lost == doctest::Approx(30 + 30));
}

TEST_CASE("steps are told every now and then: what lies between is shared out") {
  MadeUpRun run;
  run.journal(0, "attempt");
  run.metric(0, "start", {{"step", 0}});
  for (const int step : {10, 20, 30}) run.metric(step, "step", {{"step", step}});
  run.journal(35, "cause", {{"died_at", 1035.0}});
  run.journal(35, "attempt_end", {{"exit_code", 1}});
  run.journal(40, "attempt");
  run.metric(45, "start", {{"step", 25}});
  run.journal(50, "end", {{"exit_code", 0}});
  const Goodput found = run.goodput();
  CHECK(found.lost == doctest::Approx(10));
  CHECK(found.lost_steps == 5);
}

TEST_CASE("a checkpoint that turned out bad loses the work of earlier attempts too") {
  MadeUpRun run;
  run.journal(0, "attempt");
  run.metric(0, "start", {{"step", 0}});
  run.steps(1, 1, 50);
  run.journal(51, "cause", {{"died_at", 1050.0}});
  run.journal(51, "attempt_end", {{"exit_code", 1}});
  run.journal(51, "attempt");
  run.metric(60, "start", {{"step", 50}});
  run.steps(61, 51, 70);
  run.journal(81, "cause", {{"died_at", 1080.0}});
  run.journal(81, "attempt_end", {{"exit_code", 1}});
  run.journal(81, "attempt");
  run.metric(90, "start", {{"step", 20}});
  run.steps(91, 21, 30);
  run.journal(100, "end", {{"exit_code", 0}});
  const Goodput found = run.goodput();
  CHECK(found.lost == doctest::Approx(30 + 20));
  CHECK(found.lost_steps == 30 + 20);
  CHECK(found.train == doctest::Approx(20 + 10));
  CHECK(found.restart == doctest::Approx(20));
}

TEST_CASE("attempts that never trained are part of the restart; a run that goes on") {
  MadeUpRun run;
  run.journal(0, "attempt");
  run.metric(5, "start", {{"step", 0}});
  run.steps(6, 1, 10);
  run.journal(20, "attempt_end", {{"exit_code", 5}});
  run.journal(21, "attempt");
  run.journal(25, "attempt_end", {{"exit_code", 4}});
  run.journal(30, "attempt");
  Goodput found = run.goodput(40);
  CHECK(found.attempts == 3);
  CHECK(found.restart == doctest::Approx(20));
  CHECK(found.idle == doctest::Approx(5));
  run.metric(42, "start", {{"step", 0}});
  run.steps(43, 1, 7);
  found = run.goodput(49);
  CHECK(found.restart == doctest::Approx(22));
  CHECK(found.lost == doctest::Approx(15));
  CHECK(found.train == doctest::Approx(7));  // as far as known
  CHECK(found.total == doctest::Approx(49));
}

TEST_CASE("a program that tells nothing trains while its ranks run") {
  MadeUpRun run;
  run.journal(0, "begin");
  run.journal(0, "attempt");
  run.journal(3, "started");
  run.journal(60, "attempt_end", {{"exit_code", 1}});
  run.journal(61, "attempt");
  run.journal(63, "started");
  run.journal(100, "attempt_end", {{"exit_code", 0}});
  run.journal(101, "end", {{"exit_code", 0}});
  const Goodput found = run.goodput();
  CHECK_FALSE(found.steps_known);
  CHECK(found.train == doctest::Approx(57 + 37));
  CHECK(found.restart == doctest::Approx(3));
  CHECK(contains(goodput_text(found), "not known"));
  MadeUpRun once;
  once.journal(0, "begin");
  once.journal(3, "started");
  once.journal(9, "end", {{"exit_code", 0}});
  CHECK(goodput_text(once.goodput()).empty());
}

TEST_CASE("the first attempt is not counted twice, although its event follows that of the run") {
  MadeUpRun run;
  run.journal(0, "begin");
  run.journal(0.002, "attempt", {{"attempt", 1}});
  run.journal(3, "started");
  run.journal(9, "attempt_end", {{"attempt", 1}, {"exit_code", 0}});
  run.journal(9, "end", {{"exit_code", 0}});
  const Goodput found = run.goodput();
  CHECK(found.attempts == 1);
  CHECK(found.train == doctest::Approx(6));
  CHECK(goodput_text(found).empty());
}

TEST_CASE("files of any shape: cut, out of order, of another kind") {
  MadeUpRun run = restarted_once();
  // Every prefix of the journal with all metrics, and every prefix of the metrics with the whole
  // journal.
  for (const bool cut_journal : {true, false}) {
    const std::string& cut = cut_journal ? run.events : run.metrics;
    const std::string& whole = cut_journal ? run.metrics : run.events;
    for (std::size_t size = 0; size <= cut.size(); size += 7) {
      RunTimes times;
      for (const auto& line : test::lines_of(cut_journal ? cut.substr(0, size) : whole))
        times.take_journal(nlohmann::json::parse(line, nullptr, false));
      for (const auto& line : test::lines_of(cut_journal ? whole : cut.substr(0, size)))
        times.take_metric(nlohmann::json::parse(line, nullptr, false));
      const Goodput found = goodput_of(times, std::nullopt);
      CHECK(found.train + found.save + found.restart + found.lost + found.idle ==
            doctest::Approx(found.total));
      CHECK(std::min({found.train, found.save, found.restart, found.lost, found.idle}) >= 0);
    }
  }
  RunTimes odd;
  for (const nlohmann::json& event :
       {nlohmann::json(3), nlohmann::json::array(), nlohmann::json{{"event", 3}, {"time", "x"}},
        nlohmann::json{{"event", "attempt"}, {"time", 1e300}},
        nlohmann::json{{"event", "attempt"}, {"time", 5}},
        nlohmann::json{{"event", "cause"}, {"time", 6}, {"died_at", -1e300}},
        nlohmann::json{{"event", "end"}, {"time", 2}, {"exit_code", "0"}}})
    odd.take_journal(event);
  odd.take_metric({{"type", "step"}, {"time", 1e300}, {"step", -5}});
  odd.take_metric({{"type", "start"}, {"time", 0}, {"step", 1e18}});
  const Goodput found = goodput_of(odd, 10);
  CHECK(std::min({found.train, found.save, found.restart, found.lost, found.idle}) >= 0);
}

TEST_CASE("sortie report shows it, as text and as JSON") {
  const MadeUpRun run = restarted_once();
  const test::ScopedTempDir dir;
  const auto folder = dir / "state/sortie/runs/20261122-100000-abcd";
  test::write_text(folder / "events.jsonl", run.events + "{\"event\":\"att");
  test::write_text(folder / "metrics.jsonl", run.metrics + "{\"type\":\"st");
  test::write_text(folder / "plan.json", "{}");
  const Goodput read = read_goodput(folder, std::nullopt);
  CHECK(goodput_json(read) == goodput_json(run.goodput()));
  const std::string state = "XDG_STATE_HOME=" + dir.str("state") + " " + SORTIE_BINARY;
  const std::string text = test::shell(state + " report abcd").output;
  CHECK(
      contains(text,
               "\ntime: 3m02s in 2 attempts\n"
               "  train       1m41s   55.5 %\n"
               "  save           2s    1.1 %\n"
               "  restart       20s   11.0 %\n"
               "  lost          44s   24.2 %  (40 steps)\n"
               "  idle          15s    8.2 %  (before the first step, and after the last one)\n"));
  const auto parsed = nlohmann::json::parse(test::shell(state + " report abcd --json").output);
  CHECK(parsed["goodput"]["lost_steps"] == 40);
  CHECK(parsed["goodput"]["restart_s"].get<double>() == doctest::Approx(20));
}

}  // namespace
}  // namespace sortie::launcher
