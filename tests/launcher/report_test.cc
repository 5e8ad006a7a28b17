// `sortie report`: from a journal to a timeline, for journals that a run wrote and for damaged
// ones.
#include "launcher/report/report.h"

#include <doctest/doctest.h>

#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using test::after_start;
using test::FakeRunner;
using test::Launch;

TEST_CASE("the report of a run in which a rank was killed") {
  Launch launch({{"h1", {0, 1}}, {"h2", {0}}});
  launch.host("h1").script = test::run_until_stopped;
  launch.host("h2").script = after_start([](FakeRunner& runner) {
    test::say(runner, 2, "last words\n");
    runner.exit_rank(2, SIGKILL, true);
  });
  CHECK(launch.run().exit_code == 137);
  const auto report = read_run_view(launch.run_folder);
  REQUIRE(report);
  CHECK(report->hosts == 2);
  CHECK(report->ranks == 3);
  CHECK(report->connected.hosts == 2);
  CHECK(report->ready.hosts == 2);
  CHECK(report->exit_code == 137);
  CHECK(report->consequences == 2);
  REQUIRE((report->started && report->all_running && report->cause_at && report->ended));
  CHECK(*report->started <= *report->all_running);
  CHECK(*report->all_running <= *report->ended);
  const std::string text = report_text(*report, {});
  CHECK(text.find("exit code 137 (" + explain_exit_code(137).meaning + ")") != std::string::npos);
  CHECK(text.find("first cause: rank 2 on h2 (pid 1002) ended by signal 9") != std::string::npos);
  CHECK(text.find("    last words\n") != std::string::npos);
  CHECK(text.find("2 ended after the first cause: 2 by signal 15 (SIGTERM)") != std::string::npos);
  const auto json = report_json(*report, {});
  CHECK(json["schema"] == "sortie/report/1");
  CHECK(json["cause"]["rank"] == 2);
  CHECK(json["cause"]["last_lines"][0] == "last words");
  CHECK(json["aftermath"]["signal 15 (SIGTERM)"] == 2);
}

TEST_CASE("a journal of any shape: what can be read is told, nothing takes over the terminal") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "events.jsonl",
                   "not json\n[]\n{}\n{\"event\":3}\n{\"event\":\"end\",\"exit_code\":\"x\"}\n"
                   "{\"event\":\"host_lost\",\"host\":\"h\\u001b[2J\",\"message\":7}\n"
                   "{\"event\":\"rank_exited\",\"status\":[],\"consequence\":true}\n"
                   "{\"event\":\"cause\",\"text\":\"a\\u001b]0;x\\u0007\\nb\",\"time\":1e300}\n"
                   "{\"event\":\"begin\",\"hosts\":-1,\"ranks\":2}\n{\"event\":\"st");
  const auto report = read_run_view(dir.path());
  REQUIRE(report);
  CHECK(report->unreadable_lines == 2);
  CHECK(report->ranks == 2);
  const std::string text = report_text(*report, {});
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.find("\n2 lines of events.jsonl could not be read\n") != std::string::npos);
  test::write_text(dir / "events.jsonl", "not json\n");
  CHECK(report_text(*read_run_view(dir.path()), {})
            .find("\n1 line of events.jsonl could not be read\n") != std::string::npos);
  CHECK(nlohmann::json::accept(report_json(*report, {}).dump()));
  CHECK(read_run_view(dir / "nowhere").error().code == ErrorCode::not_found);
}

TEST_CASE("what happened is shown in the order of its times, not in that of its lines") {
  const test::ScopedTempDir dir;
  // By its host's clock, rank 0 died before the launcher saw rank 1 start.
  test::write_text(dir / "events.jsonl",
                   R"({"event":"begin","hosts":1,"ranks":2,"time":100}
{"event":"connected","host":"h1","time":101}
{"event":"ready","host":"h1","time":102}
{"event":"started","time":103}
{"event":"rank_started","rank":0,"time":104}
{"event":"rank_started","rank":1,"time":109}
{"event":"stop","grace_ms":1000,"time":107}
{"event":"cause","died_at":106,"text":"rank 0 ended","time":108}
{"event":"end","exit_code":1,"time":110}
)");
  const auto report = read_run_view(dir.path());
  REQUIRE(report);
  std::istringstream lines(report_text(*report, {}));
  std::vector<double> times;
  for (std::string line; std::getline(lines, line);)
    if (double at = 0; std::sscanf(line.c_str(), " +%lf s", &at) == 1) times.push_back(at);
  CHECK(times == std::vector<double>{1, 2, 3, 6, 7, 9, 10});
}

TEST_CASE("the code of a run that stops without progress, or in a pause, is not that of a rank") {
  const test::ScopedTempDir dir;
  const std::string failed = R"({"event":"begin","hosts":1,"ranks":1,"time":100}
{"event":"attempt","attempt":1,"time":100}
{"event":"cause","what":"exit","text":"rank 0 on h1 failed with exit code 3","time":101}
{"event":"attempt_end","attempt":1,"exit_code":3,"class":"app","time":102}
)";
  const auto text = [&](const std::string& rest) {
    test::write_text(dir / "events.jsonl", failed + rest);
    const auto report = read_run_view(dir.path());
    REQUIRE(report);
    return report_text(*report, {});
  };
  const std::string by_rank = text(
      R"({"event":"decision","attempt":1,"action":"stop","exit_code":3,"no_progress":false}
{"event":"end","exit_code":3,"time":103}
)");
  CHECK_MESSAGE(
      by_rank.find("exit code 3 (the code of the rank that failed first)") != std::string::npos,
      by_rank);
  const std::string by_limit = text(
      R"({"event":"decision","attempt":1,"action":"stop","exit_code":3,"no_progress":true}
{"event":"end","exit_code":10,"time":103}
)");
  CHECK_MESSAGE(by_limit.find("exit code 10 (" + explain_exit_code(kExitNoProgress).meaning) !=
                    std::string::npos,
                by_limit);
  const std::string by_order = text(
      R"({"event":"decision","attempt":1,"action":"restart","reason":"restart"}
{"event":"end","exit_code":143,"text":"stopped by `sortie stop` before the next attempt","time":103}
)");
  CHECK_MESSAGE(
      by_order.find("exit code 143 (" + explain_exit_code(143).meaning) != std::string::npos,
      by_order);
  CHECK_MESSAGE(by_order.find("  end: stopped by `sortie stop` before the next attempt\n") !=
                    std::string::npos,
                by_order);
}

TEST_CASE("a host that an adopted run connects to again counts once per attempt") {
  const test::ScopedTempDir dir;
  const std::string adopted = R"({"event":"begin","hosts":2,"ranks":2,"time":100}
{"event":"attempt","attempt":1,"time":100}
{"event":"connected","host":"h1","time":101}
{"event":"connected","host":"h2","time":102}
{"event":"started","time":103}
{"event":"adopted","epoch":2,"hosts":["h1"],"lost":["h2"],"time":200}
{"event":"connected","host":"h1","time":201}
{"event":"connected","host":"h2","time":202}
)";
  test::write_text(dir / "events.jsonl", adopted);
  const auto report = read_run_view(dir.path());
  REQUIRE(report);
  CHECK(report->connected.hosts == 2);
  const std::string text = report_text(*report, {});
  CHECK(text.find("+   2.000 s  2 of 2 hosts connected") != std::string::npos);
  CHECK_MESSAGE(text.find("+ 100.000 s  supervisor 2 took over from supervisor 1: 1 host adopted, "
                          "h2 lost\n") != std::string::npos,
                text);
  const auto adopted_json = report_json(*report, {})["adopted"];
  REQUIRE(adopted_json.size() == 1);
  CHECK(adopted_json[0]["at_s"] == 100.0);
  CHECK(adopted_json[0]["supervisor"] == 2);
  CHECK(adopted_json[0]["hosts"].dump() == R"(["h1"])");
  CHECK(adopted_json[0]["lost"].dump() == R"(["h2"])");
  test::write_text(dir / "events.jsonl",
                   adopted + "{\"event\":\"attempt\",\"attempt\":2,\"time\":300}\n" +
                       "{\"event\":\"connected\",\"host\":\"h1\",\"time\":301}\n");
  CHECK(read_run_view(dir.path())->connected.hosts == 1);
}

TEST_CASE("the report of a training knows where it stands and how it goes on") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "events.jsonl",
                   "{\"event\":\"begin\",\"hosts\":1,\"ranks\":1,\"time\":5}\n");
  test::write_text(dir / "metrics.jsonl",
                   R"({"type":"start","step":0,"steps":100,"save_dir":"/c","time":6}
{"type":"step","step":1,"steps":100,"loss":5.5,"time":7}
{"type":"checkpoint","step":20,"path":"/c/step-00000020","time":8}
{"type":"step","step":30,"steps":100,"loss":4.25,"time":9}
{"type":"step","step":31,"st)");
  const auto report = read_run_view(dir.path());
  REQUIRE(report);
  const TrainingRun run{dir.path(), "my run", false};
  const std::string text = report_text(*report, run);
  CHECK(text.find("step        30 of 100\n") != std::string::npos);
  CHECK(text.find("loss        4.2500\n") != std::string::npos);
  CHECK(text.find("checkpoint  step 20, /c/step-00000020\n") != std::string::npos);
  CHECK(text.find("\n  1 rank on 1 host; ") != std::string::npos);
  CHECK(text.find("  resume      from step 20: ") != std::string::npos);
  test::write_text(dir / "config.toml",
                   "[runner]\nenv = { A = \"x\", A_TOKEN = \"(secret)\" }\n"
                   "secret_env = {X = \"(secret)\"}\nprogram = [\"Y = \\\"(secret)\\\"\"]\n");
  CHECK(training_summary(report->training, run)
            .find("\nto resume from step 20 (export A_TOKEN X first):\n") != std::string::npos);
  CHECK(text.find("run --name 'my run' " + dir.str("config.toml")) != std::string::npos);
  CHECK(report_json(*report, run)["training"]["checkpoint"]["step"] == 20);
}

TEST_CASE("a site goes on with the config of its run") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "sites/names", "rome\n");
  test::write_text(dir / "sites/rome/events.jsonl",
                   "{\"event\":\"begin\",\"hosts\":1,\"ranks\":1,\"time\":5}\n");
  test::write_text(dir / "sites/rome/metrics.jsonl",
                   "{\"type\":\"start\",\"step\":0,\"steps\":100,\"time\":6}\n");
  const auto report = read_run_view(dir / "sites/rome");
  REQUIRE(report);
  const std::string text = report_text(*report, {dir / "sites/rome", "", false});
  CHECK(text.find(" run " + dir.str("config.toml")) != std::string::npos);
}

TEST_CASE("a run without an end is told as such") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "events.jsonl",
                   "{\"event\":\"begin\",\"hosts\":1,\"ranks\":1,\"time\":5}\n");
  const auto report = read_run_view(dir.path());
  REQUIRE(report);
  CHECK(!report->exit_code);
  CHECK(report_text(*report, {}).find("no end is recorded") != std::string::npos);
  CHECK(report_json(*report, {})["exit_code"].is_null());
}

}  // namespace
}  // namespace sortie::launcher
