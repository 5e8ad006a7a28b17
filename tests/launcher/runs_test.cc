// The files of runs as read by other commands: ps, status, prune, and logs in the order of time.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "launcher/control/adopt.h"
#include "launcher/control/log_feed.h"
#include "launcher/control/prune.h"
#include "launcher/control/run_index.h"
#include "launcher/control/show_runs.h"
#include "launcher/control/supervisor_lock.h"
#include "launcher/run/run_folder.h"
#include "tests/launcher/command_line.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

/// Makes a run folder with a plan, as a supervisor leaves it.
fs::path make_run(const fs::path& state, const std::string& id, std::optional<RunResult> result) {
  const fs::path run = state / "runs" / id;
  fs::create_directories(run / "logs");
  test::write_text(run / "plan.json", R"({"argv":["a"],"hosts":[{"name":"h1","ranks":[{"rank":0}]},
                                                              {"name":"h2","ranks":[{"rank":1}]}]})");
  if (result) REQUIRE(write_result(run, *result));
  return run;
}

TEST_CASE(
    "runs: found by id, beginning, ending, last, and folder; else the error says what is near") {
  test::ScopedTempDir dir;
  const std::string state = dir.path().string();
  make_run(dir.path(), "20260101-000000-aaaa", RunResult{});
  const fs::path second = make_run(dir.path(), "20260102-000000-bbbb", RunResult{});
  const auto index = RunIndex::open(state);
  REQUIRE(index);
  for (const std::string name : {"20260102-000000-bbbb", "20260102", "bbbb", "last"}) {
    CAPTURE(name);
    const auto found = index->find(name);
    REQUIRE(found);
    CHECK(found->filename() == second.filename());
  }
  CHECK(index->find(second.string()));
  const auto ambiguous = index->find("2026");
  REQUIRE_FALSE(ambiguous);
  CHECK(ambiguous.error().message.find("2 runs have an id that starts so") != std::string::npos);
  const auto none = index->find("zz");
  REQUIRE_FALSE(none);
  CHECK(none.error().message.find("no such run; the latest are") != std::string::npos);
}

TEST_CASE("prune: ended runs go, by age and number; living and freshly lost ones stay") {
  test::ScopedTempDir dir;
  const auto ended = [](double hours_ago) {
    return RunResult{0, "", 0, "", 0, unix_time() - hours_ago * 3600};
  };
  const auto old_run = make_run(dir.path(), "20260101-000000-aaaa", ended(50));
  const auto middle = make_run(dir.path(), "20260102-000000-bbbb", ended(30));
  const auto recent = make_run(dir.path(), "20260103-000000-cccc", ended(1));
  const auto lost = make_run(dir.path(), "20260104-000000-dddd", std::nullopt);
  const auto living = make_run(dir.path(), "20260105-000000-eeee", std::nullopt);
  const auto lock = SupervisorLock::take(living, 1);
  REQUIRE(lock);
  const std::string state = dir.path().string();
  CHECK_FALSE(prune({state, -1, "", false}));
  CHECK(prune({state, -1, "7", false}).error().message ==
        "sortie prune: --older-than 7: is no time span; write 90s, 10m, 2h or 7d");
  const auto dry = prune({state, -1, "2d", true});
  REQUIRE(dry);
  for (const char* line :
       {"kept          20260105-000000-eeee  starting: its supervisor is alive\n",
        "kept          20260104-000000-dddd  lost: last sign of life ",
        "kept          20260103-000000-cccc  ended 0: ended 1h00m ago, not longer than 2d\n",
        "kept          20260102-000000-bbbb  ended 0: ended 30h00m ago, not longer than 2d\n",
        "would remove  20260101-000000-aaaa  ended 0\n1 of 5 runs would be removed\n"})
    CHECK_MESSAGE(dry->find(line) != std::string::npos, *dry);
  CHECK(fs::exists(old_run));
  REQUIRE(prune({state, -1, "2d", false}));
  CHECK_FALSE(fs::exists(old_run));
  const auto but_one = prune({state, 1, "", false});
  REQUIRE(but_one);
  CHECK(but_one->find("20260103-000000-cccc  ended 0: one of the latest 1\n") != std::string::npos);
  CHECK_FALSE(fs::exists(middle));
  REQUIRE(prune({state, 0, "", false}));
  CHECK_FALSE(fs::exists(recent));
  CHECK(fs::exists(lost));
  CHECK(fs::exists(living));
  CHECK(read_run(lost)->state == RunState::lost);
  CHECK(read_run(living)->state == RunState::starting);
}

TEST_CASE("prune: a lost run stays for a day after the last sign of any of its sites") {
  test::ScopedTempDir dir;
  const std::string state = dir.path().string();
  const auto lost = make_run(dir.path(), "20260104-000000-dddd", std::nullopt);
  const fs::path sites = lost / "sites";
  fs::create_directories(sites / "oslo");
  std::ofstream(sites / "names") << "oslo\n";
  std::ofstream(sites / "oslo" / "events.jsonl") << "{}\n";
  const auto two_days_ago = fs::file_time_type::clock::now() - std::chrono::hours(48);
  fs::last_write_time(sites / "oslo", two_days_ago);
  for (const char* name : {"events.jsonl", "logs", "outer.log", ""})
    if (fs::exists(lost / name)) fs::last_write_time(lost / name, two_days_ago);
  auto kept = prune({state, 0, "", false});
  REQUIRE(kept);
  CHECK_MESSAGE(kept->find("lost: last sign of life ") != std::string::npos, *kept);
  CHECK(fs::exists(lost));
  fs::last_write_time(sites / "oslo" / "events.jsonl", two_days_ago);
  fs::last_write_time(lost, two_days_ago);
  REQUIRE(prune({state, 0, "", false}));
  CHECK_FALSE(fs::exists(lost));
}

TEST_CASE("ps: living runs with their training; lost ones are counted, and listed with --all") {
  test::ScopedTempDir dir;
  const std::string state = dir.path().string();
  const auto living = make_run(dir.path(), "20260105-000000-eeee", std::nullopt);
  REQUIRE(write_label(living, {"big-run", "/jobs/big.toml"}));
  test::write_text(living / "metrics.jsonl",
                   R"({"type":"start","step":0,"steps":100,"time":1}
{"type":"checkpoint","step":20,"path":"/c/step-20","time":2}
{"type":"eval","step":25,"loss":2.5,"time":2}
{"type":"step","step":30,"steps":100,"loss":4.25,"mean_tokens_per_s":12300,"eta_s":1e9,"time":3}
)");
  std::optional<SupervisorLock> lost_lock;
  const auto lost = make_run(dir.path(), "20260104-000000-dddd", std::nullopt);
  lost_lock = std::move(*SupervisorLock::take(lost, 1));
  lost_lock.reset();
  const auto lock = SupervisorLock::take(living, 1);
  REQUIRE(lock);
  const auto shown = ps_text(state, false, false);
  REQUIRE(shown);
  for (const char* part : {"big-run", "30/100", "4.2500", "12.3k", "2.5000", " 20 "})
    CHECK_MESSAGE(shown->find(part) != std::string::npos, *shown);
  CHECK(shown->find("20260104-000000-dddd") == std::string::npos);
  CHECK(shown->find("1 run of the last day is lost") != std::string::npos);
  CHECK(ps_text(state, true, false)->find("20260104-000000-dddd") != std::string::npos);
  const auto parsed = OrderedJson::parse(*ps_text(state, false, true));
  CHECK(parsed["runs"][0]["name"] == "big-run");
  CHECK(parsed["runs"][0]["training"]["step"] == 30);
  const auto status = status_text("20260105", state, false);
  REQUIRE(status);
  for (const char* part : {"30 of 100", "12.3k tokens/s", "step 20, /c/step-20"})
    CHECK_MESSAGE(status->find(part) != std::string::npos, *status);
  CHECK(status->find("to resume") == std::string::npos);  // it lives
}

TEST_CASE("status: ranks were stopped for the first cause, once it is known") {
  test::ScopedTempDir dir;
  const auto run = make_run(dir.path(), "20260105-000000-eeee", std::nullopt);
  const auto lock = SupervisorLock::take(run, 1);
  REQUIRE(lock);
  const std::string seen = R"({"event":"begin","hosts":2,"ranks":2,"time":100}
{"event":"stop","reason":"rank 1 on h2 failed","time":101}
)";
  const auto stop_row = [&](const std::string& journal) {
    test::write_text(run / "events.jsonl", journal);
    const std::string text = *status_text("eeee", dir.path().string(), false);
    const auto at = text.find("  stop ");
    REQUIRE_MESSAGE(at != std::string::npos, text);
    return text.substr(at, text.find('\n', at) - at);
  };
  CHECK(stop_row(seen) == "  stop        rank 1 on h2 failed");
  CHECK(stop_row(seen +
                 "{\"event\":\"cause\",\"text\":\"rank 0 on h1 failed\\n  x\",\"time\":102}\n") ==
        "  stop        rank 0 on h1 failed");
}

TEST_CASE("status: a lost run whose hosts may hold its ranks names the commands that help") {
  test::ScopedTempDir dir;
  const std::string state = dir.path().string();
  const auto run = make_run(dir.path(), "20260105-000000-eeee", std::nullopt);
  test::write_text(supervisor_file(run, 1), R"({"pid":1,"machine":"m","started":1000})");
  const auto config = [&](const char* loss) {
    test::write_text(run / "config.toml",
                     std::string("[runner]\non_launcher_loss = \"") + loss + "\"\n");
    return *status_text("eeee", state, false);
  };
  const std::string held = config("hold 20s");
  for (const char* part : {"hosts hold  ranks for 20s after they have lost their supervisor; `",
                           "attach --adopt 20260105-000000-eeee` goes on with them"})
    CHECK_MESSAGE(held.find(part) != std::string::npos, held);
  CHECK(config("kill").find("hosts hold") == std::string::npos);
}

TEST_CASE("ps: a run that began days ago and was lost just now is counted") {
  test::ScopedTempDir dir;
  const std::string state = dir.path().string();
  const auto run = make_run(dir.path(), "20260104-000000-dddd", std::nullopt);
  test::write_text(supervisor_file(run, 1), R"({"pid":1,"machine":"m","started":1000})");
  REQUIRE(read_run(run)->state == RunState::lost);
  CHECK(ps_text(state, false, false)->find("1 run of the last day is lost") != std::string::npos);
  const auto two_days_ago = fs::file_time_type::clock::now() - std::chrono::hours(48);
  for (const char* name : {"logs", ""}) fs::last_write_time(run / name, two_days_ago);
  CHECK(ps_text(state, false, false)->find("lost") == std::string::npos);
}

TEST_CASE("ps, status: an adopted run is as old as its first supervisor") {
  test::ScopedTempDir dir;
  const auto run = make_run(dir.path(), "20260105-000000-eeee", std::nullopt);
  test::write_text(supervisor_file(run, 1), R"({"pid":1,"machine":"m","started":1000})");
  const auto lock = SupervisorLock::take(run, 2);
  REQUIRE(lock);
  const auto record = read_run(run);
  REQUIRE(record);
  CHECK(record->supervisor.epoch == 2);
  CHECK(record->started() == 1000);
  const auto list = OrderedJson::parse(*ps_text(dir.path().string(), false, true));
  CHECK(list["runs"][0]["started"] == 1000);
}

TEST_CASE("ps, status: a run whose result could not be written ended as its journal says") {
  test::ScopedTempDir dir;
  const std::string state = dir.path().string();
  const auto run = make_run(dir.path(), "20260105-000000-eeee", std::nullopt);
  test::write_text(run / "events.jsonl",
                   R"({"event":"begin","hosts":2,"ranks":2,"time":100}
{"event":"end","exit_code":3,"text":"rank 1 on h2 failed with exit code 3","time":104}
)");
  std::optional<SupervisorLock> lock = std::move(*SupervisorLock::take(run, 1));
  CHECK_FALSE(read_run(run)->result);  // its supervisor is about to write it
  lock.reset();
  const auto record = read_run(run);
  REQUIRE(record);
  CHECK(record->state == RunState::ended);
  REQUIRE(record->result);
  CHECK(record->result->exit_code == 3);
  CHECK(record->result->started == 100);
  CHECK(record->result->ended == 104);
  CHECK(ps_text(state, false, false)->find("lost") == std::string::npos);
  const auto status = status_text("eeee", state, false);
  REQUIRE(status);
  for (const char* part : {"ended 3\n", "rank 1 on h2 failed with exit code 3\n"})
    CHECK_MESSAGE(status->find(part) != std::string::npos, *status);
}

TEST_CASE("ps: the hosts, ranks and restarts of a run over sites are those that it has now") {
  test::ScopedTempDir dir;
  const std::string state = dir.path().string();
  const fs::path run = make_run(dir.path(), "20260101-000000-aaaa", std::nullopt);
  const auto lock = SupervisorLock::take(run, 1);
  REQUIRE(lock);
  const auto plan = [&](const fs::path& folder, const std::string& hosts) {
    fs::create_directories(run / "sites" / folder);
    test::write_text(run / "sites" / folder / "plan.json",
                     R"({"argv":["a"],"hosts":)" + hosts + "}");
  };
  // The first plan has h1 and h2. In oslo a spare has taken the place of h1, rome was removed, bonn
  // was added, and a site that is just being added has no plan yet.
  plan("oslo", R"([{"name":"h1","ranks":[{"rank":0}]}])");
  plan("oslo/attempts/3", R"([{"name":"h4","ranks":[{"rank":0}]}])");
  plan("rome", R"([{"name":"h2","ranks":[{"rank":0}]}])");
  test::write_text(run / "sites/rome/removed", "");
  plan("bonn", R"([{"name":"h5","ranks":[{"rank":0,"slot":0},{"rank":1,"slot":1}]}])");
  test::write_text(run / "sites/names", "oslo\nrome\nbonn\nkyiv\n");
  const auto record = read_run(run);
  REQUIRE(record);
  CHECK(record->host_names() == std::vector<std::string>{"h4", "h5"});
  CHECK(record->world_size == 3);
  CHECK(record->hosts[1].ranks == std::vector<std::uint32_t>{1, 2});
  CHECK(record->hosts[1].slots == std::vector<int>{0, 1});
  const auto parsed = OrderedJson::parse(*ps_text(state, false, true));
  CHECK(parsed["runs"][0]["restarts"] == 2);
  CHECK(parsed["runs"][0]["ranks"] == 3);
  CHECK(status_text("20260101", state, false)->find("h[4-5] (3 ranks)") != std::string::npos);
  // The plan of the first attempt stays what it was.
  CHECK(read_run(run, 1)->host_names() == std::vector<std::string>{"h1", "h2"});
}

TEST_CASE(
    "runs: a name is given, the config's, the program's, or that of the run it goes on from") {
  test::ScopedTempDir dir;
  CHECK(default_run_name("/jobs/big.toml", {"x"}) == "big");
  CHECK(default_run_name("", {"/opt/bin/my_mpi", "a"}) == "my_mpi");
  CHECK(default_run_name("", {"/usr/bin/python3", "/opt/train.py"}) == "train.py");
  CHECK(default_run_name("", {"sh", "-c", "x"}) == "sh");
  CHECK(default_run_name(dir / "config.toml", {}) == "config");
  REQUIRE(write_label(dir.path(), {"earlier", ""}));
  CHECK(default_run_name(dir / "config.toml", {}) == "earlier");
}

TEST_CASE("logs: in the order in which they came, from a time on, and then what is new") {
  test::ScopedTempDir dir;
  const fs::path run = make_run(dir.path(), "20260101-000000-aaaa", std::nullopt);
  test::write_text(run / "logs/rank-0.out", "a0\na1\n");
  test::write_text(run / "logs/rank-1.out", "b0\nb1\n");
  test::write_text(run / "logs/rank-1.err", "unmarked\n");
  test::write_text(run / "logs/times",
                   "10000 1 out 0\n11500 0 out 0\nrubbish\n20000 0 out 3\n30000 1 out 3\n");
  const auto record = read_run(run);
  REQUIRE(record);
  std::string got;
  const auto sink = [&](const LogFeed::Chunk& chunk) { got += std::string(chunk.bytes); };
  {
    LogFeed feed(*record, {}, sink);
    feed.replay(std::nullopt);
    CHECK(got == "unmarked\nb0\na0\na1\nb1\n");
    got.clear();
    std::ofstream(run / "logs/rank-0.out", std::ios::app) << "more\n";
    while (feed.take(false)) {
    }
    CHECK(got == "more\n");
  }
  got.clear();
  LogFeed since(*record, {0}, sink);
  since.replay(20500);  // includes one second earlier: the resolution of the index
  CHECK(got == "a1\nmore\n");
}

TEST_CASE("logs: --host chooses among the hosts of all sites") {
  test::ScopedTempDir dir;
  const fs::path run = make_run(dir.path(), "20260101-000000-aaaa", RunResult{});
  test::write_text(run / "sites/names", "oslo\nrome\n");
  for (const auto& [site, host] : {std::pair{"oslo", "h1"}, {"rome", "h2"}}) {
    const fs::path folder = run / "sites" / site;
    test::write_text(folder / "plan.json", R"({"argv":["a"],"hosts":[{"name":")" +
                                               std::string(host) + R"(","ranks":[{"rank":0}]}]})");
    test::write_text(folder / "logs/rank-0.out", std::string("of ") + site + "\n");
  }
  const auto logs = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"logs", "aaaa", "--log-dir", dir.path().string()});
    return test::sortie(words);
  };
  CHECK(logs({"--host", "h2"}).output == "[rome 0 h2] of rome\n");
  CHECK(logs({"--host", "h[1-2]"}).output == "[oslo 0 h1] of oslo\n[rome 0 h2] of rome\n");
  CHECK(logs({"--host", "h2", "--follow"}).output == "[rome 0 h2] of rome\n");
  test::write_text(dir / "groups.toml", "rack = \"h[2-3]\"\n");
  test::write_text(dir / "config.toml",
                   "[runner]\ngroups_file = \"" + dir.str("groups.toml") + "\"\n");
  ::chmod(dir.str("config.toml").c_str(), 0600);
  {
    const test::ScopedVariable user("SORTIE_USER_CONFIG", dir.str("config.toml"));
    CHECK(logs({"--host", "@rack"}).output == "[rome 0 h2] of rome\n");
  }
  const auto unknown = logs({"--host", "h1,h3"});
  CHECK(unknown.output == "--host h1,h3: h3 is no host of this run; it has h[1-2]\n");
  CHECK(logs({"--host", "h1", "--site", "rome"}).output ==
        "--host h1: h1 is no host of site rome; it has h2\n");
}

TEST_CASE("logs: a clock that was set back changes neither the order nor what came since a time") {
  test::ScopedTempDir dir;
  const fs::path run = make_run(dir.path(), "20260101-000000-aaaa", std::nullopt);
  test::write_text(run / "logs/rank-0.out", "a0\na1\na2\n");
  test::write_text(run / "logs/rank-1.out", "b0\nb1\n");
  test::write_text(run / "logs/times",
                   "969000 0 out 0\n969500 1 out 0\n970500 0 out 3\n400000 1 out 3\n"
                   "401000 0 out 6\n");
  const auto record = read_run(run);
  REQUIRE(record);
  std::string got;
  const auto sink = [&](const LogFeed::Chunk& chunk) { got += std::string(chunk.bytes); };
  LogFeed(*record, {}, sink).replay(std::nullopt);
  CHECK(got == "a0\nb0\na1\nb1\na2\n");
  got.clear();
  LogFeed(*record, {0}, sink).replay(971000);
  CHECK(got == "a1\na2\n");
}

TEST_CASE("logs: ranks, ages and times as people write them") {
  CHECK(*parse_ranks("0,2-4", 8) == std::set<std::uint32_t>{0, 2, 3, 4});
  for (const char* bad : {"", "a", "3-1", "1,", "8", "-1", "0-9"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_ranks(bad, 8));
  }
  CHECK(*parse_age_ms("7d") == 7ll * 24 * 3600 * 1000);
  CHECK(*parse_age_ms("90s") == 90000);
  CHECK_FALSE(parse_age_ms("soon"));
  const std::int64_t now = 1795272076000;
  CHECK(*parse_since("10m", now) == now - 600000);
  CHECK(*parse_since("23:59", now) <= now);
  CHECK(*parse_since("2026-11-21 14:30:05", now) - *parse_since("2026-11-21T14:30", now) == 5000);
  CHECK_FALSE(parse_since("yesterday", now));
}

}  // namespace
}  // namespace sortie::launcher
