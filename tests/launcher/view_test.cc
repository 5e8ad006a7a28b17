// The reducer of a run's files: the source of the output of `ps`, `status`, `report`, `attach` and
// the end of a run.
#include "launcher/view/run_view.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "launcher/recovery/attempt_events.h"
#include "launcher/view/attempts_text.h"
#include "launcher/view/journal_event.h"
#include "launcher/view/rounds_text.h"
#include "launcher/view/training_text.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

TEST_CASE("every event that the launcher writes is in the vocabulary and in its README") {
  const fs::path source = SORTIE_SOURCE;
  const std::string readme = test::read_text(source / "launcher/view/README.md");
  const std::regex call(R"(\bevent\(\s*JournalEvent::([a-z_]+))");
  std::set<std::string> written;
  for (const auto& entry : fs::recursive_directory_iterator(source / "launcher")) {
    if (entry.path().extension() != ".cc") continue;
    const std::string text = test::read_text(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), call), end; it != end; ++it)
      written.insert((*it)[1]);
  }
  CHECK(written.size() >= 19);
  for (const std::string& name : written) {
    CAPTURE(name);
    CHECK(journal_event(name));
    CHECK(readme.find("| `" + name + "` |") != readme.npos);
  }
  for (const std::string_view name : kJournalEvents) CHECK(written.contains(std::string(name)));
}

TrainingView taken(std::initializer_list<Json> events) {
  RunView view;
  RunReducer reducer(view);
  for (const Json& event : events) reducer.metric(event);
  return view.training;
}

TEST_CASE("training: the newest step, checkpoint and validation, and the lowest of all") {
  const TrainingView view =
      taken({{{"type", "start"},
              {"step", 40},
              {"steps", 100},
              {"resumed_from", "/c/step-40"},
              {"best_loss", 3.5},
              {"best_step", 30},
              {"save_dir", "/c"},
              {"time", 10}},
             {{"type", "step"}, {"step", 41}, {"steps", 100}, {"loss", 4.5}, {"time", 11}},
             {{"type", "eval"}, {"step", 50}, {"loss", 3.25}, {"time", 12}},
             {{"type", "checkpoint"}, {"step", 50}, {"path", "/c/best/step-50"}, {"best", true}},
             {{"type", "eval"}, {"step", 60}, {"loss", 3.75}, {"time", 13}},
             {{"type", "checkpoint"}, {"step", 60}, {"path", "/c/step-60"}, {"time", 13}},
             {{"type", "step"},
              {"step", 61},
              {"steps", 100},
              {"loss", 4},
              {"tokens_per_s", 10},
              {"mean_tokens_per_s", 8},
              {"eta_s", 39},
              {"time", 14}}});
  CHECK(view.first_step == 40);
  CHECK(view.step == 61);
  CHECK(view.loss == 4);
  CHECK(view.tokens_per_s == 8);  // the smoothed rate, if there is one
  CHECK(view.eta_at(24) == 29);
  CHECK(view.eta_at(100) == 0);
  CHECK(view.validation->loss == 3.75);
  CHECK(view.best->step == 50);
  CHECK(view.checkpoint->path == "/c/step-60");
  CHECK(view.best_checkpoint->path == "/c/best/step-50");
  CHECK(live_line(view, 14) ==
        "step 61/100  loss 4.0000  8 tokens/s  ETA 39s  checkpoint 60  best 3.2500 at step 50");
}

TEST_CASE("training: what a rollback has left is neither the last nor the best") {
  const Json before = {{"type", "eval"}, {"step", 10}, {"loss", 3.5}};
  const Json kept = {
      {"type", "checkpoint"}, {"step", 10}, {"path", "/c/best/step-10"}, {"best", true}};
  const Json left = {{"type", "eval"}, {"step", 30}, {"loss", 3}};
  const Json best = {
      {"type", "checkpoint"}, {"step", 30}, {"path", "/c/best/step-30"}, {"best", true}};
  const Json back = {{"type", "rollback"}, {"from", 35}, {"to", 20}, {"path", "/c/step-20"}};
  const TrainingView view = taken({before, kept, left, best, back});
  CHECK(view.step == 20);
  CHECK_FALSE(view.validation);
  CHECK_FALSE(view.best);
  CHECK_FALSE(view.best_checkpoint);
  const TrainingView again = taken(
      {before,
       kept,
       left,
       best,
       back,
       {{"type", "eval"}, {"step", 30}, {"loss", 3.75}, {"best_loss", 3.5}, {"best_step", 10}}});
  CHECK(again.validation->step == 30);
  CHECK(again.best->step == 10);
  const TrainingView earlier = taken({before, kept, back});
  CHECK(earlier.validation->step == 10);
  CHECK(earlier.best->step == 10);
  CHECK(earlier.best_checkpoint->step == 10);
}

TEST_CASE("training: every validation set has its loss, beside the mean") {
  const auto eval = [](int step, double code, double wiki) -> Json {
    return {{"type", "eval"},   {"step", step},      {"loss", (code + wiki) / 2}, {"best_step", 20},
            {"best_loss", 2.5}, {"loss/code", code}, {"loss/wiki\n", wiki}};
  };
  const TrainingView view = taken(
      {{{"type", "step"}, {"step", 30}, {"steps", 100}}, eval(20, 2, 3), eval(30, 2.25, 4.25)});
  using Sets = std::map<std::string, double>;
  CHECK(view.validation->sets == Sets{{"code", 2.25}, {"wiki^J", 4.25}});
  CHECK(view.best->sets == Sets{{"code", 2}, {"wiki^J", 3}});
  const auto rows = training_rows(view, {"/runs/x", "n", true}, 0);
  const auto by_set =
      std::ranges::find(rows, "by set", &std::pair<std::string, std::string>::first);
  REQUIRE(by_set != rows.end());
  CHECK(by_set->second == "code 2.2500, wiki^J 4.2500");
  CHECK(
      training_summary(view, {"/runs/x", "n", true})
          .find("validation loss 3.2500 at step 30 (code 2.2500, wiki^J 4.2500) (lowest 2.5000 at "
                "step 20)\n") != std::string::npos);
  const auto out = training_json(view, {"/runs/x", "n", true}, 0);
  CHECK(out["validation"]["sets"]["code"] == 2.25);
  CHECK(out["best"]["sets"]["wiki^J"] == 3);
  // A single set has no name. For an earlier run only the mean is known.
  const TrainingView one =
      taken({{{"type", "start"}, {"steps", 9}, {"best_step", 4}, {"best_loss", 1}},
             {{"type", "eval"}, {"step", 6}, {"loss", 3}}});
  CHECK_FALSE(training_json(one, {}, 0)["validation"].contains("sets"));
  CHECK_FALSE(training_json(one, {}, 0)["best"].contains("sets"));
}

TEST_CASE("training: a resumed run that has saved nothing goes on from where it began") {
  const TrainingView view = taken({{{"type", "start"},
                                    {"step", 40},
                                    {"steps", 100},
                                    {"resumed_from", "/c/step-40"},
                                    {"save_dir", "/c"}}});
  const std::string text = training_summary(view, {"/runs/x", "n", false});
  CHECK(text.find("last checkpoint: step 40, /c/step-40\nto resume from step 40:\n  ") !=
        text.npos);
  CHECK(text.ends_with(" run --name n /runs/x/config.toml"));
  CHECK(training_summary(view, {"/runs/x", "n", true}).find("to resume") == text.npos);
}

TEST_CASE("training: a validation without a finite loss is not the lowest") {
  const TrainingView view =
      taken({{{"type", "start"}, {"step", 0}, {"steps", 100}, {"time", 11}},
             {{"type", "eval"}, {"step", 50}, {"loss", 3.25}, {"time", 12}},
             {{"type", "eval"}, {"step", 50}, {"loss", nullptr}, {"time", 13}}});
  const auto rows = training_rows(view, {"/runs/x", "n", true}, 0);
  const auto row = std::ranges::find(rows, "validation", &decltype(rows)::value_type::first);
  REQUIRE(row != rows.end());
  CHECK(row->second == "- at step 50, lowest 3.2500 at step 50");
}

TEST_CASE("training: what is in memory is for the run's own restarts, and no place to go on from") {
  const Json fresh = {{"type", "start"}, {"step", 0}, {"steps", 100}, {"save_dir", "/c"}};
  const Json kept = {{"type", "memory_checkpoint"}, {"step", 40}};
  const Json again = {{"type", "start"},
                      {"step", 40},
                      {"steps", 100},
                      {"resumed_from", "memory"},
                      {"save_dir", "/c"}};
  const TrainingView view = taken({fresh, kept, again});
  CHECK(training_json(view, {"/runs/x", "n", true}, 0)["memory_step"] == 40);
  CHECK(training_json(view, {"/runs/x", "n", false}, 0)["memory_step"].is_null());
  const auto rows = training_rows(view, {"/runs/x", "n", true}, 0);
  CHECK(std::ranges::find(rows, std::pair<std::string, std::string>(
                                    "in memory", "step 40, for restarts of this run alone")) !=
        rows.end());
  const std::string text = training_summary(view, {"/runs/x", "n", false});
  CHECK(text.find("last checkpoint: none\nto start again at step 0:") != text.npos);
  // A best checkpoint is one to resume from, until there is a newer one.
  const Json best = {
      {"type", "checkpoint"}, {"step", 30}, {"path", "/c/best/step-30"}, {"best", true}};
  const Json older = {{"type", "checkpoint"}, {"step", 20}, {"path", "/c/step-20"}};
  const Json same = {{"type", "checkpoint"}, {"step", 30}, {"path", "/c/step-30"}};
  CHECK(taken({fresh, best}).checkpoint->path == "/c/best/step-30");
  CHECK(taken({fresh, older, best}).checkpoint->path == "/c/best/step-30");
  CHECK(taken({fresh, best, same}).checkpoint->path == "/c/step-30");
  CHECK(taken({fresh, same, best}).checkpoint->path == "/c/step-30");
  // The next run resumes from the checkpoint on disk.
  const TrainingView saved =
      taken({fresh, {{"type", "checkpoint"}, {"step", 20}, {"path", "/c/step-20"}}, kept, again});
  CHECK(training_summary(saved, {"/runs/x", "n", false}).find("to resume from step 20:") !=
        text.npos);
}

TEST_CASE("training: a suspect checkpoint is not one to resume from while there is another") {
  const auto saved = [](std::int64_t step, bool suspect) {
    return Json{{"type", "checkpoint"},
                {"step", step},
                {"path", "/c/step-" + std::to_string(step)},
                {"suspect", suspect}};
  };
  const Json fresh = {{"type", "start"}, {"step", 0}, {"steps", 60}, {"save_dir", "/c"}};
  const auto summary = [](const TrainingView& view) {
    return training_summary(view, {"/runs/x", "n", false});
  };
  std::string text = summary(taken({fresh, saved(15, false), saved(25, true), saved(30, true)}));
  CHECK_MESSAGE(test::has(text,
                          "last checkpoint: step 15, /c/step-15; that of step 30 is suspect\n"
                          "to resume from step 15:"),
                text);
  text = summary(taken({fresh, saved(5, true), saved(10, true)}));
  CHECK_MESSAGE(
      test::has(text, "last checkpoint: step 10, /c/step-10, suspect\nto resume from step 10:"),
      text);
  text =
      summary(taken({fresh, saved(5, true), saved(10, false), saved(20, true), saved(25, false)}));
  CHECK_MESSAGE(test::has(text, "last checkpoint: step 25, /c/step-25\nto resume from step 25:"),
                text);
}

TEST_CASE(
    "training: with all steps done and the last of them not saved, the rest is to be repeated") {
  const Json fresh = {{"type", "start"}, {"step", 0}, {"steps", 20}, {"save_dir", "/c"}};
  const Json saved = {{"type", "checkpoint"}, {"step", 10}, {"path", "/c/step-10"}};
  const Json last = {{"type", "step"}, {"step", 20}, {"steps", 20}, {"loss", 2}};
  const TrainingRun run{"/runs/x", "n", false};
  const TrainingView failed = taken({fresh, saved, last});
  CHECK(test::has(training_summary(failed, run), "to resume from step 10:"));
  CHECK_FALSE(training_json(failed, run, 0)["go_on"].is_null());
  for (const bool suspect : {false, true}) {
    const Json end = {
        {"type", "checkpoint"}, {"step", 20}, {"path", "/c/step-20"}, {"suspect", suspect}};
    CHECK_FALSE(test::has(training_summary(taken({fresh, saved, last, end}), run), "to resume"));
  }
}

TEST_CASE("training: without checkpoints that is said; a finished one has nothing to go on with") {
  const std::string none =
      training_summary(taken({{{"type", "start"}, {"step", 0}, {"steps", 100}},
                              {{"type", "step"}, {"step", 7}, {"steps", 100}, {"loss", 2}}}),
                       {"/runs/x", "n", false});
  CHECK(none.find("training ended at step 7 of 100, loss 2.0000\n") == 0);
  CHECK(
      none.find("last checkpoint: none: trainer.save_dir is not set\nto start again at step 0:") !=
      none.npos);
  const std::string done =
      training_summary(taken({{{"type", "step"}, {"step", 100}, {"steps", 100}, {"loss", 2}}}),
                       {"/runs/x", "n", false});
  CHECK(done.find("to ") == done.npos);
}

TEST_CASE(
    "training: what ranks say can not forge a line, and a program without training has none") {
  const TrainingView view =
      taken({{{"type", "step"}, {"step", 1}, {"steps", 2}},
             {{"type", "checkpoint"}, {"step", 1}, {"path", "/c\nto go on:\n  rm -rf /"}}});
  const std::string text = training_summary(view, {"/runs/x", "n", false});
  CHECK(text.find("/c^Jto go on:^J  rm") != text.npos);
  const TrainingView none = taken({{{"type", "note"}, {"text", "x"}}, {{"type", "x"}}});
  CHECK_FALSE(none.any());
  CHECK(training_summary(none, {}).empty());
  CHECK(training_rows(none, {}, 0).empty());
  CHECK(training_json(none, {}, 0).is_null());
  CHECK(live_line(none, 0).empty());
}

TEST_CASE("a million step lines cost one look at each, and the last whole one counts") {
  const test::ScopedTempDir dir;
  std::string text;
  for (int i = 1; i <= 20000; ++i)
    text += Json{{"type", "step"}, {"step", i}, {"steps", 20000}, {"loss", 1.0 / i}}.dump() + "\n";
  test::write_text(dir / "metrics.jsonl", text + R"({"type":"step","step":1)");
  CHECK(read_training(dir.path()).step == 20000);
}

TEST_CASE("profiles: in the run folder, or where the rank wrote it") {
  const TrainingView view =
      taken({{{"type", "step"}, {"step", 1}, {"steps", 2}},
             {{"type", "profile"}, {"rank", 0}},
             {{"type", "profile"}, {"rank", 1}, {"host", "h2"}, {"path", "/t"}}});
  CHECK(training_summary(view, {"/runs/x", "n", true})
            .find("profiles: /runs/x/profile-rank-0.json h2:/t") != std::string::npos);
}

TEST_CASE("sites: one that was removed stays that after its end, whatever ends it") {
  RunView view;
  RunReducer reducer(view);
  const auto site = [&](const std::string& name, const std::string& state, Json more) {
    more.update({{"event", "site"}, {"time", 1}, {"site", name}, {"state", state}});
    reducer.journal(more);
  };
  for (const std::string name : {"oslo", "rome"}) site(name, "begun", Json::object());
  site("rome", "removed", Json::object());
  for (const std::string name : {"oslo", "rome"})
    site(name, "ended", {{"exit_code", 143}, {"text", "stopped by `sortie stop`"}});
  const std::string text = sites_text(view);
  CHECK(text.find("oslo             ended 143, joined 0 times: stopped by") != text.npos);
  CHECK(text.find("rome             removed, joined 0 times\n") != text.npos);
}

TEST_CASE("attempts: what each was, and the view of the newest one") {
  AttemptEnd end;
  end.attempt = 1;
  end.exit_code = 137;
  end.failure = FailureClass::software;
  end.cause = "rank 1 on h2 ended by signal 9";
  end.rank = 1;
  end.rank_code = 137;
  end.blamed_host = "h2";
  end.unusable_hosts = {"h2"};
  end.broken = true;
  end.committed_step = 40;
  end.begun_at_step = 0;
  end.started = true;
  end.begun = 100;
  end.ended = 112.5;
  Decision decision;
  decision.action = Decision::Action::restart;
  decision.reason = "restart after a failure of class software";
  decision.pause = std::chrono::milliseconds(1500);
  decision.hosts = {"h1", "s1"};
  decision.replaced = {{"s1", "h2"}};
  decision.cordon = {"h2"};
  RunView view;
  RunReducer reducer(view);
  const auto take = [&](JournalEvent event, double time, nlohmann::ordered_json fields) {
    Json line = {{"event", journal_event_name(event)}, {"time", time}};
    line.update(Json::parse(fields.dump()));
    reducer.journal(line);
  };
  take(JournalEvent::begin, 100, {{"hosts", 2}, {"ranks", 2}});
  take(JournalEvent::attempt, 100, event_fields(AttemptBegin{1, {"h1", "h2"}, 2}));
  for (const int rank : {0, 1})
    take(JournalEvent::rank_started, 101, {{"rank", rank}, {"host", "h"}, {"pid", 7}});
  take(JournalEvent::hang, 111, {{"text", "rank 1 is silent"}, {"stacks", "stacks-1"}});
  CHECK(view.hang_at == 11);
  take(JournalEvent::stop, 112, {{"reason", "r"}});
  CHECK_FALSE(view.stop_grace_ms);  // as in the journal of a run with sites
  take(JournalEvent::stop, 112, {{"reason", "r"}, {"grace_ms", 10000}});
  CHECK(view.stop_grace_ms == 10000u);
  CHECK(view.attempt() == 1);
  CHECK_FALSE(view.restarting());
  take(JournalEvent::rank_exited, 112, {{"rank", 1}, {"status", "signal 9 (SIGKILL)"}});
  CHECK(view.rank[0].state == "running");
  take(JournalEvent::attempt_end, 112.6, event_fields(end));
  CHECK(view.rank[0].state == "lost");  // nothing was heard of its end
  CHECK(view.rank[1].state == "ended");
  take(JournalEvent::decision, 112.7, event_fields(DecisionMade{1, decision}));
  CHECK(view.restarting());
  CHECK(view.stop_at);
  take(JournalEvent::attempt, 114, event_fields(AttemptBegin{2, {"h1", "s1"}, 2}));
  CHECK_FALSE(view.restarting());
  CHECK(view.attempt() == 2);
  CHECK(view.restarts() == 1);
  CHECK_FALSE(view.stop_at);
  CHECK_FALSE(view.hang_at);
  CHECK(view.hang.empty());
  CHECK(view.hang_stacks.empty());
  CHECK(view.rank.empty());
  CHECK(view.cordoned == std::vector<std::string>{"h2"});
  REQUIRE(view.attempts.size() == 2);
  const AttemptView& first = view.attempts[0];
  CHECK(first.all_running == 1);
  CHECK(first.ended == 12.5);
  CHECK(first.decision == decision.reason);
  CHECK(event_fields(first.end) == event_fields(end));  // unchanged by writing and reading
  CHECK(view.attempts[1].hosts == std::vector<std::string>{"h1", "s1"});
  const Json made = Json::parse(event_fields(DecisionMade{1, decision}).dump());
  CHECK(read_decision(made).decision.pause == decision.pause);
  CHECK(read_decision(made).decision.hosts == decision.hosts);
  const std::string text = attempts_text(view);
  CHECK(text.find("rank 1 on h2 ended by signal 9 (class software, exit code 137)") != text.npos);
  CHECK(text.find("step 40 committed") != text.npos);
  CHECK(attempts_json(view)[1]["attempt"] == 2);
  CHECK(attempts_json(view)[1]["resumed"].is_null());
  take(JournalEvent::resumed, 115, event_fields(AttemptResumed{2, "memory", 40, "", 3}));
  CHECK(attempts_text(view).find("; from step 40 in memory (3 steps lost)\n") != text.npos);
  CHECK(attempts_json(view)[1]["resumed"].dump() ==
        R"({"from":"memory","step":40,"path":null,"lost_steps":3})");
  take(JournalEvent::resumed, 115, event_fields(AttemptResumed{2, "disk", 20, "/c", {}}));
  CHECK(attempts_text(view).find("; from step 20 on the disk\n") != text.npos);
  CHECK(attempts_json(view)[1]["resumed"]["path"] == "/c");
  CHECK(attempt_end_text(view.attempts[0]).starts_with("attempt 1 has failed: rank 1 on h2 ended"));
  view.attempts[0].end.failure = FailureClass::planned;
  CHECK(attempt_end_text(view.attempts[0]) == "attempt 1 has ended; " + view.attempts[0].decision);
  // Members that are missing or have another type count as unknown. The line is not rejected.
  for (const JournalEvent event : {JournalEvent::attempt, JournalEvent::resumed,
                                   JournalEvent::attempt_end, JournalEvent::decision})
    take(event, 120, {{"attempt", "x"}, {"hosts", 3}, {"cause", 5}, {"unusable", {1, 2}}});
  CHECK(view.attempts.size() == 3);
}

}  // namespace
}  // namespace sortie::launcher
