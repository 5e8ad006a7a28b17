// Health findings of hosts in the launcher: validated, judged, grouped and shown.
#include <doctest/doctest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "launcher/health/health_event.h"
#include "launcher/health/health_text.h"
#include "launcher/health/health_view.h"
#include "launcher/report/report.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/restarting.h"
#include "tests/launcher/scripts.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using health::Finding;
using test::after_start;
using test::contains;
using test::FakeRunner;
using test::has;
using test::Launch;
using test::Restarting;

Finding gpu_xid(int code, int gpu = 3, std::optional<int> recovery = {}) {
  Finding finding{.kind = health::Kind::xid, .code = code};
  finding.device = gpu == 3 ? "0000:3b:00.0" : "0000:5e:00.0";
  finding.gpu = gpu;
  finding.recovery = recovery;
  return finding;
}

wire::HealthEvent health_event(int n, const Finding& finding) {
  const std::string line = health::to_line(finding);
  return {"{\"n\":" + std::to_string(n) + "," + line.substr(1)};
}

TEST_CASE("a finding survives the way from the helper to the journal and back") {
  Finding finding = gpu_xid(95, 3, 1);
  finding.uuid = "GPU-12";
  finding.source = "nvml";
  finding.text = "a \"quoted\" \\ text";
  finding.count = 7;
  finding.value = 2.5;
  finding.fatal = true;
  const auto heard = finding_of(nlohmann::json::parse(health::to_line(finding)));
  REQUIRE(heard);
  const auto read = finding_of(nlohmann::json::parse(health_json("h03", *heard).dump()));
  REQUIRE(read);
  CHECK(health::to_line(*read) == health::to_line(finding));
}

TEST_CASE("a host is not trusted with its words") {
  HealthIntake intake;
  for (const char* bad : {"",
                          "{}",
                          "[]",
                          "null",
                          R"({"type":"health"})",
                          R"({"type":"step","kind":"xid"})",
                          R"({"type":"health","kind":"xids"})",
                          R"({"type":"health","kind":7})",
                          R"({"type":"health","kind":"xid","code":-1})",
                          R"({"type":"health","kind":"xid","code":1e9})",
                          R"({"type":"health","kind":"xid","code":99999999999})",
                          R"({"type":"health","kind":"xid","code":"79"})",
                          R"({"type":"health","kind":"xid","gpu":-3})",
                          R"({"type":"health","kind":"xid","device":["a"]})",
                          R"({"type":"health","kind":"xid","recovery":8})",
                          R"({"type":"health","kind":"xid","fatal":1})",
                          R"({"type":"health","kind":"xid","value":"x"})",
                          R"({"type":"health","kind":"xid","count":-1})",
                          R"({"type":"health","kind":"xid","n":-1})",
                          R"({"type":"health","kind":"xid","age_ms":-1})"}) {
    CAPTURE(bad);
    CHECK_FALSE(intake.take(bad, 1));
  }
  CHECK_FALSE(intake.take(std::string(70'000, 'x'), 1));
  const auto odd = intake.take(
      R"({"type":"health","kind":"disk","device":"\u001b]0;x\u0007","text":"a\nb","class":"app"})",
      1);
  REQUIRE((odd && *odd));
  CHECK((*odd)->device.find('\x1b') == std::string::npos);
  CHECK((*odd)->text.find('\n') == std::string::npos);
  CHECK(health::remedy_command(health::Remedy::storage, "h", **odd).empty());
}

TEST_CASE("each finding once, and no flood of them") {
  HealthIntake intake;
  CHECK(intake.take(health_event(1, gpu_xid(79)).json, 1)->has_value());
  CHECK_FALSE(intake.take(health_event(1, gpu_xid(79)).json, 2)->has_value());
  CHECK(intake.take(health_event(3, gpu_xid(79)).json, 2)->has_value());
  CHECK_FALSE(intake.take(health_event(2, gpu_xid(79)).json, 2)->has_value());
  CHECK(intake.number() == 3);
  std::size_t taken = 2;
  for (int n = 4; n < 2000; ++n)
    taken += intake.take(health_event(n, gpu_xid(79)).json, 3)->has_value();
  CHECK(taken == HealthIntake::kMostAMinute);
  CHECK(intake.left_out() == 1998 - HealthIntake::kMostAMinute + 0);
  CHECK(intake.left_out() == 0);
  CHECK(intake.take(health_event(2001, gpu_xid(79)).json, 64)->has_value());
}

TEST_CASE("within ten seconds the highest class of a GPU is the cause, whatever came first") {
  HealthView view;
  CHECK(view.take("h", gpu_xid(43), 100).fresh);
  auto taken = view.take("h", gpu_xid(31), 101);
  CHECK_FALSE(taken.fresh);
  CHECK(taken.changed);  // a finding that inherits yields to one that does not
  CHECK(view.take("h", gpu_xid(48), 105).changed);
  CHECK_FALSE(view.take("h", gpu_xid(45), 106).changed);
  CHECK_FALSE(view.take("h", gpu_xid(13), 112).changed);
  REQUIRE(view.incidents("h").size() == 1);
  const HealthIncident incident = view.incidents("h")[0];
  CHECK(incident.finding.code == 48);
  CHECK(incident.findings == 5);
  CHECK(incident.first_at == 100);
  CHECK(incident.text() ==
        "GPU 3 (0000:3b:00.0): XID 48: uncorrectable memory error (double bit) (5 findings)");
  CHECK(view.take("h", gpu_xid(45), 130).fresh);     // later
  CHECK(view.take("h", gpu_xid(45, 4), 130).fresh);  // another GPU
  CHECK(view.take("h2", gpu_xid(45), 130).fresh);    // another host
}

TEST_CASE("what the driver asks for replaces the table's answer, also when it comes later") {
  HealthView view;
  view.take("h", gpu_xid(95), 100);
  CHECK(explained_by_hardware(view, "h", 0, 101)->unusable);
  CHECK(view.take("h", gpu_xid(95, 3, health::kRecoveryNone), 100.1).changed);
  const auto evidence = explained_by_hardware(view, "h", 0, 101);
  REQUIRE(evidence);
  CHECK_FALSE(evidence->unusable);
}

TEST_CASE("whether hardware explains a failure") {
  HealthView view;
  view.take("h1", gpu_xid(31), 100);  // the program's fault
  view.take("h2", gpu_xid(74), 100);  // a link: a restart repairs it
  view.take("h3", gpu_xid(79), 100);  // the GPU is unusable
  view.take("h4", gpu_xid(9999), 100);
  Finding oom{.kind = health::Kind::oom_kill};
  view.take("h5", oom, 100);
  CHECK_FALSE(explained_by_hardware(view, "h1", 50, 101));
  CHECK_FALSE(explained_by_hardware(view, "h4", 50, 101));
  CHECK_FALSE(explained_by_hardware(view, "h5", 50, 101));
  CHECK_FALSE(explained_by_hardware(view, "unknown", 50, 101));
  const auto link = explained_by_hardware(view, "h2", 50, 101);
  REQUIRE(link);
  CHECK_FALSE(link->unusable);
  CHECK(link->kind == health::Class::link);
  const auto gone = explained_by_hardware(view, "h3", 50, 101);
  REQUIRE(gone);
  CHECK(gone->unusable);
  CHECK(gone->reason == "GPU 3 (0000:3b:00.0): XID 79: the GPU has fallen off the bus");
  CHECK(gone->command == "ssh h3 sudo systemctl reboot");
  CHECK(gone->at == 100);
  // Long before the failure, and before the attempt.
  CHECK_FALSE(explained_by_hardware(view, "h2", 50, 100 + kEvidenceBefore + 1));
  CHECK(explained_by_hardware(view, "h3", 50, 50'000));
  CHECK_FALSE(explained_by_hardware(view, "h3", 101, 50'000));
  // The finding may arrive after the failure, but only for a limited time.
  CHECK(explained_by_hardware(view, "h2", 50, 100 - kEvidenceAfter));
  CHECK_FALSE(explained_by_hardware(view, "h2", 50, 99 - kEvidenceAfter));
}

TEST_CASE("a GPU that the job does not use explains nothing") {
  HealthView view;
  view.set_gpus("h", {0, 1});
  view.take("h", gpu_xid(79, 3), 100);
  CHECK_FALSE(explained_by_hardware(view, "h", 0, 101));
  view.take("h", gpu_xid(79, 1), 100);
  CHECK(explained_by_hardware(view, "h", 0, 101));
  HostPlan plan;
  plan.ranks.resize(2);
  CHECK_FALSE(gpus_of(plan));
  plan.ranks[0].env = {{"CUDA_VISIBLE_DEVICES", "2"}};
  CHECK_FALSE(gpus_of(plan));
  plan.ranks[1].env = {{"CUDA_VISIBLE_DEVICES", "4,5"}};
  CHECK(gpus_of(plan) == std::set<int>{2, 4, 5});
  plan.ranks[1].env = {{"CUDA_VISIBLE_DEVICES", "GPU-1234"}};
  CHECK_FALSE(gpus_of(plan));
}

TEST_CASE("the worst of the last minutes") {
  HealthView view;
  CHECK_FALSE(view.worst("h", 100, 60));
  view.take("h", gpu_xid(79), 100);
  view.take("h", gpu_xid(31, 4), 150);
  CHECK(view.worst("h", 155, 60)->finding.code == 79);
  CHECK(view.worst("h", 170, 60)->finding.code == 31);
  CHECK_FALSE(view.worst("h", 500, 60));
  for (int i = 0; i < 1000; ++i) view.take("h", gpu_xid(31), 1000 + i * 20);
  CHECK(view.incidents("h").size() == HealthView::kMostIncidents);
}

TEST_CASE("a run that ends because of a fault that a person has to mend leaves the host cordoned") {
  Restarting launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = test::run_until_stopped;
  launch.host("h2").script = after_start([](FakeRunner& runner) {
    Finding finding = gpu_xid(79);
    finding.gpu = 0;
    finding.source = "kmsg";
    runner.send(health_event(1, finding));
    runner.exit_rank(1, SIGBUS, true);
  });
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 128 + SIGBUS);
  CHECK(contains(verdict.text, "h2 can not be used, no spare is left for it"));
  CHECK(launch.cordoned == std::vector<std::string>{"h2"});
  CHECK(contains(launch.shown, "h2: cordoned; `sortie nodes ls` says why"));
}

TEST_CASE("a finding that the runner sends again counts from the time when it was made") {
  for (const bool old : {false, true}) {
    CAPTURE(old);
    Launch launch({{"h", {0}}});
    launch.host("h").script = after_start([old](FakeRunner& runner) {
      Finding finding = gpu_xid(74);  // explains failures of the next two minutes
      finding.gpu = 0;
      wire::HealthEvent event = health_event(1, finding);
      if (old) event.json = "{\"age_ms\":600000," + event.json.substr(1);
      runner.send(event);
      runner.exit_rank(0, 1);
    });
    CHECK(launch.run().exit_code == 1);
    CHECK(launch.events_named("health").size() == 1);
    CHECK(launch.events_named("attempt_end").at(0)["class"] == (old ? "app" : "hardware"));
  }
}

TEST_CASE("a sick GPU of one host: journal, console, status' rows and report name it") {
  Launch launch({{"h1", {0, 1}}, {"h2", {0}}});
  launch.host("h1").script = test::run_until_stopped;
  launch.host("h2").script = after_start([](FakeRunner& runner) {
    Finding sources;
    sources.text = "kernel log; no NVML: not found; links: eth0";
    runner.send(health_event(1, sources));
    Finding finding = gpu_xid(79);
    finding.gpu = 0;  // the rank's slot
    finding.source = "kmsg";
    finding.text = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.";
    runner.send(health_event(2, finding));
    runner.send(health_event(2, finding));
    finding.gpu = 5;
    finding.device = "0000:c1:00.0";
    runner.send(health_event(3, finding));
    runner.send(wire::HealthEvent{"{\"type\":\"health\",\"kind\":\"\\u001b[2J\"}"});
    runner.exit_rank(2, SIGBUS, true);
  });
  CHECK(launch.run().exit_code == 128 + SIGBUS);
  const auto events = launch.events_named("health");
  REQUIRE(events.size() == 3);
  CHECK(events[1]["host"] == "h2");
  CHECK(events[1]["class"] == "hardware");
  CHECK(events[1]["action"] == "cordon");
  CHECK(events[1]["gpu"] == 0);
  CHECK(events[1]["command"] == "ssh h2 sudo systemctl reboot");
  CHECK_FALSE(events[1].contains("used"));
  CHECK(events[2]["used"] == false);
  CHECK(contains(launch.shown,
                 "GPU 5 (0000:c1:00.0): XID 79: the GPU has fallen off the bus, which "
                 "this job does not use"));
  REQUIRE(launch.events_named("event_refused").size() == 1);
  CHECK(launch.events_named("event_refused")[0]["host"] == "h2");
  CHECK(contains(launch.shown,
                 "h2: GPU 0 (0000:3b:00.0): XID 79: the GPU has fallen off the bus; to repair it: "
                 "ssh h2 sudo systemctl reboot"));
  const auto view = read_run_view(launch.run_folder);
  REQUIRE(view);
  const std::string rows = health_rows(view->health, "h2");
  CHECK(contains(rows, "health: cordon: GPU 0 (0000:3b:00.0): XID 79"));
  CHECK(contains(rows, "ssh h2 sudo systemctl reboot"));
  CHECK(health_rows(view->health, "h1").empty());
  const std::string text = report_text(*view, {});
  CHECK(contains(text, "  h2: GPU 0 (0000:3b:00.0): XID 79"));  // in the timeline
  CHECK(contains(text, "health of hosts:\n  h2: cordon: GPU 0 (0000:3b:00.0): XID 79"));
  CHECK(contains(text, "NVRM: Xid (PCI:0000:3b:00): 79"));
  CHECK(contains(text, "to repair it: ssh h2 sudo systemctl reboot"));
  CHECK(
      contains(text, "health was watched by:\n  h2: kernel log; no NVML: not found; links: eth0"));
  CHECK(report_json(*view, {})["health"]["h2"][1]["code"] == 79);
}

TEST_CASE("two supervisors of one run write the same finding; it is one") {
  const test::ScopedTempDir dir;
  nlohmann::ordered_json event = health_json("h", gpu_xid(79));
  event["schema"] = "sortie/events/1";
  event["event"] = "health";
  event["n"] = 4;
  std::string text;
  for (const double time : {1000.0, 1500.0}) {
    event["time"] = time;
    text += event.dump() + "\n";
  }
  event["n"] = 5;
  event["time"] = 1600;
  text += event.dump() + "\n{\"event\":\"health\",\"host\":\"h\",\"kind\":9}\n";
  test::write_text(dir / "events.jsonl", text);
  const RunView view = read_journal(dir.path());
  REQUIRE(view.health.incidents("h").size() == 2);
  CHECK(view.health.incidents("h")[1].first_at == 1600);
}

}  // namespace
}  // namespace sortie::launcher
