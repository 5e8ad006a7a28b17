// Progress of ranks in their training: lines, the table, heartbeats, stacks. The last tests use a
// real runner and real processes.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>

#include "runner/progress/committed_step.h"
#include "runner/progress/progress_line.h"
#include "runner/progress/progress_table.h"
#include "runner/progress/stacks.h"
#include "tests/support/patience.h"
#include "tests/support/runner_client.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::runner;
using namespace sortie::test;
using std::chrono::milliseconds;
using std::chrono::seconds;
using training::Section;

namespace {

ProgressLine line_of(std::string_view text) {
  ProgressLine line;
  REQUIRE(read_progress_line(text, line) == LineKind::progress);
  return line;
}

ProgressLine at(std::uint64_t step, Section section, std::uint64_t own_us = 0) {
  ProgressLine line;
  line.step = step;
  line.section = section;
  line.own_us = own_us;
  return line;
}

constexpr ProgressTable::Clock::time_point kBegin{std::chrono::hours(1)};

/// The rank's progress in the last heartbeat, once `good` returns true; nullopt after half a
/// minute.
std::optional<wire::RankProgress> place_of(
    RunnerClient& client, std::uint32_t rank,
    const std::function<bool(const wire::RankProgress&)>& good) {
  for (int i = 0; i < 3000; ++i) {
    client.pump(milliseconds(10));
    if (!client.last_beat) continue;
    for (const wire::RankProgress& place : client.last_beat->ranks)
      if (place.rank == rank && good(place)) return place;
  }
  return std::nullopt;
}

char process_state_of(pid_t pid) {
  const std::string stat = read_text("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t end = stat.rfind(')');
  return end == std::string::npos ? '?' : stat.at(end + 2);
}

/// Waits until the rank has sent its lines and the runner has reported its PID; these arrive in
/// either order.
bool wait_for_told(RunnerClient& client, std::uint32_t rank) {
  return client.wait_until(
      [&] { return client.out[rank].contains("told") && client.pids.contains(rank); });
}

}  // namespace

TEST_CASE("a line of progress is read, an event is none, and a broken one is neither") {
  const ProgressLine line = line_of(
      R"({"type":"progress","step":12,"section":"forward","sequence":345,"ticks":6,"own_us":789})");
  CHECK(line == ProgressLine{12, Section::forward, 345, 6, 789});
  CHECK(line_of(R"({"type": "progress", "step": 3, "more": [1]})") ==
        ProgressLine{3, Section::step, 0, 0, 0});
  ProgressLine untouched{7, Section::save, 1, 2, 3};
  const ProgressLine before = untouched;
  for (const char* event :
       {R"({"type":"step","step":1})", R"({"type":"note","text":"\"progress\""})",
        R"({"progress":1})", R"({"type":["progress"]})", R"({"type":"progress",)"}) {
    CAPTURE(event);
    CHECK(read_progress_line(event, untouched) == LineKind::event);
  }
  for (const char* broken :
       {R"({"type":"progress"})", R"({"type":"progress","step":-1})",
        R"({"type":"progress","step":"1"})", R"({"type":"progress","step":1.5})",
        R"({"type":"progress","step":1,"section":"nap"})",
        R"({"type":"progress","step":1,"section":5})",
        R"({"type":"progress","step":1,"sequence":null})",
        R"({"type":"progress","step":99999999999999999999999})"}) {
    CAPTURE(broken);
    CHECK(read_progress_line(broken, untouched) == LineKind::broken);
  }
  CHECK(untouched == before);
  const std::string huge =
      R"({"type":"progress","step":1,"x":")" + std::string(2000, 'x') + R"("})";
  CHECK(read_progress_line(huge, untouched) == LineKind::event);
}

TEST_CASE("a rank stands still while nothing of what it tells changes, also when it repeats it") {
  ProgressTable table;
  CHECK(table.report(kBegin).empty());
  table.take(3, at(5, Section::forward), kBegin);
  table.take(3, at(5, Section::forward), kBegin + seconds(4));
  auto told = table.report(kBegin + seconds(5));
  REQUIRE(told.size() == 1);
  CHECK(told[0].rank == 3);
  CHECK(told[0].step == 5);
  CHECK(told[0].section == static_cast<std::uint8_t>(Section::forward));
  CHECK(told[0].standing_ms == 5000);
  CHECK(told[0].silent_ms == 1000);
  CHECK(told[0].longest_ms == 0);  // it has not ended yet
  table.take(3, at(5, Section::backward), kBegin + seconds(6));
  told = table.report(kBegin + seconds(6));
  CHECK(told[0].standing_ms == 0);
  CHECK(told[0].longest_ms == 6000);
  CHECK(told[0].longest_section == static_cast<std::uint8_t>(Section::forward));
  CHECK(table.report(kBegin + seconds(7))[0].longest_ms == 0);  // reported once
  table.rank_ended(3);
  CHECK(table.report(kBegin + seconds(8)).empty());
}

TEST_CASE("ticks and collectives are progress, own time alone is none") {
  ProgressTable table;
  ProgressLine line = at(1, Section::evaluate);
  table.take(0, line, kBegin);
  line.own_us = 5;
  table.take(0, line, kBegin + seconds(1));
  CHECK(table.report(kBegin + seconds(2))[0].standing_ms == 2000);
  line.ticks = 1;
  table.take(0, line, kBegin + seconds(3));
  CHECK(table.report(kBegin + seconds(3))[0].standing_ms == 0);
  line.sequence = 1;
  table.take(0, line, kBegin + seconds(5));
  CHECK(table.report(kBegin + seconds(6))[0].standing_ms == 1000);
}

TEST_CASE("time in which the runner did not run does not count") {
  ProgressTable table;
  table.take(0, at(1, Section::reduce), kBegin);
  table.skip(seconds(60), kBegin + seconds(62));
  const auto told = table.report(kBegin + seconds(62));
  CHECK(told[0].standing_ms == 2000);
  CHECK(told[0].silent_ms == 2000);
  table.take(0, at(2, Section::reduce), kBegin + seconds(62));
  table.skip(seconds(60), kBegin + seconds(62));  // the line arrived after the pause
  CHECK(table.report(kBegin + seconds(63))[0].standing_ms == 1000);
}

TEST_CASE("own work per step is that of whole windows of ten seconds and at least one step") {
  ProgressTable table;
  const auto own_at = [&](int second) { return table.report(kBegin + seconds(second))[0].own_us; };
  table.take(0, at(1, Section::data, 0), kBegin);
  table.take(0, at(5, Section::data, 4'000'000), kBegin + seconds(5));
  CHECK(own_at(5) == 0);
  table.take(0, at(9, Section::data, 8'000'000), kBegin + seconds(10));
  CHECK(own_at(10) == 1'000'000);
  table.take(0, at(9, Section::forward, 9'000'000), kBegin + seconds(25));
  CHECK(own_at(25) == 1'000'000);  // no step has ended
  table.take(0, at(10, Section::data, 28'000'000), kBegin + seconds(40));
  CHECK(own_at(40) == 20'000'000);
  table.take(0, at(1, Section::data, 0), kBegin + seconds(41));  // another program, from step 1
  table.take(0, at(3, Section::data, 6'000'000), kBegin + seconds(51));
  CHECK(own_at(51) == 3'000'000);
}

TEST_CASE("the first number of a text") {
  CHECK(first_number("120\n") == 120);
  CHECK(first_number("step 7 of 9") == 7);
  CHECK(first_number("iter_0000042") == 42);
  CHECK_FALSE(first_number(""));
  CHECK_FALSE(first_number("none yet"));
  CHECK_FALSE(first_number("1234567890123456789012"));
}

TEST_CASE("progress goes into heartbeats and not to the launcher as an event") {
  wire::JobSpec job = make_job({kHelper, "tell", R"({"type":"note","text":"one"})",
                                R"({"type":"progress","step":4,"section":"reduce","sequence":9})",
                                R"({"type":"progress","step":"x"})", R"({"type":"note"})"},
                               2);
  RunnerClient client;
  REQUIRE(client.start(job));
  for (const std::uint32_t rank : {0u, 1u}) {
    const auto place =
        place_of(client, rank, [](const wire::RankProgress& p) { return p.standing_ms > 300; });
    REQUIRE(place);
    CHECK(place->step == 4);
    CHECK(place->section == static_cast<std::uint8_t>(Section::reduce));
    CHECK(place->sequence == 9);
    CHECK(place->silent_ms == place->standing_ms);
  }
  // Events after the line of progress.
  REQUIRE(client.wait_until(
      [&] { return client.events[0].size() >= 2 && client.events[1].size() >= 2; }));
  client.send(wire::Stop{0, "enough"});
  REQUIRE(client.wait_finished());
  CHECK(client.events[0] ==
        std::vector<std::string>{R"({"type":"note","text":"one"})", R"({"type":"note"})"});
  const std::string said = client.diagnostics();
  CHECK(count_of(said, ": a line of type progress") == 1);  // a warning of both ranks appears once
  // Heartbeats no longer contain ranks that have ended.
  const std::size_t beats = client.beats;
  for (int i = 0; i < 3000 && client.beats < beats + 2; ++i) client.pump(milliseconds(10));
  REQUIRE(client.beats >= beats + 2);
  CHECK(client.last_beat->ranks.empty());
}

TEST_CASE("a runner that was stopped does not take its own sleep for that of its ranks") {
  wire::JobSpec job = make_job({kHelper, "tell", R"({"type":"progress","step":1})"});
  job.heartbeat_timeout_ms = 60'000;
  RunnerClient client;
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(client.start(job));
  REQUIRE(place_of(client, 0, [](const wire::RankProgress&) { return true; }));
  ::kill(client.pid(), SIGSTOP);
  ::usleep(4'000'000);
  ::kill(client.pid(), SIGCONT);
  const std::size_t beats = client.beats;
  for (int i = 0; i < 3000 && client.beats == beats; ++i) client.pump(milliseconds(10));
  const auto place = place_of(client, 0, [](const wire::RankProgress&) { return true; });
  REQUIRE(place);
  // At most the time since its line, less the four seconds stopped (heartbeats are 0.2 s apart).
  const auto time = std::chrono::steady_clock::now() - begin - milliseconds(3000);
  CHECK(place->standing_ms < std::chrono::duration_cast<milliseconds>(time).count());
  client.send(wire::Stop{0, "enough"});
  CHECK(client.wait_finished());
}

TEST_CASE("the committed step comes from a file, and one that can not be read holds up nothing") {
  const ScopedTempDir dir;
  wire::JobSpec job = make_job({kHelper, "sleep"});
  job.progress_file = dir.str("progress");
  RunnerClient client;
  REQUIRE(client.start(job));
  const auto committed = [&](std::uint64_t wanted) {
    for (int i = 0; i < 3000; ++i) {
      client.pump(milliseconds(10));
      if (client.last_beat && client.last_beat->committed_step == wanted) return true;
    }
    return false;
  };
  CHECK(committed(0));  // no file yet
  write_text(dir / "progress", "0 steps\n");
  CHECK(committed(1));
  write_text(dir / "progress", "iteration 240\n");
  CHECK(committed(241));
  std::filesystem::remove(dir / "progress");
  REQUIRE(::mkfifo(dir.str("progress").c_str(), 0600) == 0);
  const std::size_t beats = client.beats;
  for (int i = 0; i < 3000 && client.beats < beats + 4; ++i) client.pump(milliseconds(10));
  CHECK(client.beats >= beats + 4);
  CHECK(client.last_beat->committed_step == 241);
  client.send(wire::Stop{0, "enough"});
  CHECK(client.wait_finished());
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit());
  CHECK(remains(job) == "");
}

TEST_CASE("stacks: the program's own where it answers SIGQUIT, the kernel's view always") {
  for (const bool answers : {true, false}) {
    CAPTURE(answers);
    wire::JobSpec job = make_job({kHelper, "tell"});
    if (answers) job.env.emplace_back("ANSWERS_QUIT", "1");
    RunnerClient client;
    REQUIRE(client.start(job));
    REQUIRE(wait_for_told(client, 0));
    client.send(wire::DumpStacks{{0, 0, 7}, 20000});
    const auto dump = client.expect<wire::StackDump>();
    REQUIRE(dump);
    CHECK(dump->rank == 0);
    CHECK(dump->text.contains("rank-helper"));
    CHECK(dump->text.contains("system call"));
    CHECK(dump->text.contains("wait_for_godot") == answers);
    CHECK(dump->how == (answers ? "program" : "kernel: no process of it catches SIGQUIT"));
    CHECK(process_state_of(client.pids.at(0)) != 'Z');  // SIGQUIT did not end it
    client.send(wire::DumpStacks{{0}, 20000});          // stacks sent before are not sent again
    const auto again = client.expect<wire::StackDump>();
    REQUIRE(again);
    CHECK(count_of(again->text, "wait_for_godot") == (answers ? 1 : 0));
    client.send(wire::Stop{0, "enough"});
    CHECK(client.wait_finished());
  }
}

TEST_CASE(
    "stacks of a rank that is stopped, of what a shell has started, and of one that is gone") {
  wire::JobSpec job =
      make_job({"sh", "-c", "test $RANK = 1 || exit 0; " + kHelper + " tell; true"}, 2);
  job.env.emplace_back("ANSWERS_QUIT", "1");
  RunnerClient client;
  REQUIRE(client.start(job));
  REQUIRE(wait_for_told(client, 1));
  for (int i = 0; i < 3000 && !client.exited.contains(0); ++i) client.pump(milliseconds(10));
  client.send(wire::DumpStacks{{0, 1}, 20000});
  auto dump = client.expect<wire::StackDump>();
  REQUIRE(dump);
  CHECK(dump->rank == 0);
  CHECK(dump->how == "none: it has no process");
  dump = client.expect<wire::StackDump>();
  REQUIRE(dump);
  CHECK(dump->how == "program");
  CHECK(dump->text.contains("wait_for_godot"));
  const auto tree = process_tree_of(client.pids.at(1));
  REQUIRE(tree.size() == 2);
  ::kill(tree[1], SIGSTOP);
  for (int i = 0; i < 3000 && process_state_of(tree[1]) != 'T'; ++i) ::usleep(1000);
  const auto begin = std::chrono::steady_clock::now();
  client.send(wire::DumpStacks{{1}, 1500});
  dump = client.expect<wire::StackDump>();
  REQUIRE(dump);
  CHECK(std::chrono::steady_clock::now() - begin < patient(seconds(20)));
  CHECK(dump->how == "kernel: no process of it answered SIGQUIT");
  CHECK(dump->text.contains("T (stopped)"));
  client.send(wire::Stop{1000, "enough"});
  CHECK(client.wait_finished());
}
