// `sortie report`: a journal to a story, over journals that a run wrote and ones that are damaged.
#include "launcher/report/report.h"

#include <doctest/doctest.h>

#include <csignal>
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
  const auto report = read_report(launch.run_folder);
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
  const std::string text = report_text(*report);
  CHECK(text.find("exit code 137 (" + explain_exit_code(137).meaning + ")") != std::string::npos);
  CHECK(text.find("first cause: rank 2 on h2 (pid 1002) ended by signal 9") != std::string::npos);
  CHECK(text.find("    last words\n") != std::string::npos);
  CHECK(text.find("2 ended after the first cause: 2 by signal 15 (SIGTERM)") != std::string::npos);
  const auto json = report_json(*report);
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
  const auto report = read_report(dir.path());
  REQUIRE(report);
  CHECK(report->unreadable_lines == 2);
  CHECK(report->ranks == 2);
  CHECK(report_text(*report).find('\x1b') == std::string::npos);
  CHECK(nlohmann::json::accept(report_json(*report).dump()));
  CHECK(read_report(dir / "nowhere").error().code == ErrorCode::not_found);
}

TEST_CASE("a run without an end is told as such") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "events.jsonl",
                   "{\"event\":\"begin\",\"hosts\":1,\"ranks\":1,\"time\":5}\n");
  const auto report = read_report(dir.path());
  REQUIRE(report);
  CHECK(!report->exit_code);
  CHECK(report_text(*report).find("no end is recorded") != std::string::npos);
  CHECK(report_json(*report)["exit_code"].is_null());
}

}  // namespace
}  // namespace sortie::launcher
