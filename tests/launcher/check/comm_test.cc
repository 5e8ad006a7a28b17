// Rates measured between the hosts of a job: how reports are read, which hosts are blamed, and how
// the result is shown.
#include "launcher/check/comm.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "launcher/check/comm_job.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::launcher::check;
using sortie::launcher::HostPlan;
using sortie::launcher::PlannedJob;
using sortie::launcher::RankPlan;
using sortie::test::contains;
using sortie::test::count_of;
using sortie::test::has;

namespace {

/// A report for hosts h01, h02 ...: all pairs and the ring, with the rates `rate(i, j)`.
template <class Rate>
CommReport report_of(int hosts, Rate rate) {
  CommReport report;
  report.library = "Open MPI v4.1.4";
  report.ranks = static_cast<std::size_t>(hosts);
  const auto name = [](int i) { return fmt::format("h{:02}", i + 1); };
  for (int i = 0; i < hosts; ++i) {
    report.hosts.push_back(name(i));
    for (int j = i + 1; j < hosts; ++j)
      report.pairs.push_back({name(i), name(j), rate(i, j), 50.0 + i + j});
    report.ring.push_back({name(i), name((i + 1) % hosts), rate(i, (i + 1) % hosts), 0});
  }
  return report;
}

/// Rates with noise of a few percent, and slow links of host `slow`.
auto slow_host(int slow, double slow_rate = 2.5) {
  return [slow, slow_rate](int i, int j) {
    return i == slow || j == slow ? slow_rate : 10.0 - 0.1 * ((i * 7 + j * 3) % 5);
  };
}

}  // namespace

TEST_CASE("rates have a unit, and are given in Gbit/s") {
  CHECK(*parse_bit_rate("1Gbit/s") == 1.0);
  CHECK(*parse_bit_rate("900 Mbit/s") == doctest::Approx(0.9));
  CHECK(*parse_bit_rate("2.5Tbit") == 2500.0);
  CHECK(*parse_bit_rate("64kbit/s") == doctest::Approx(64e-6));
  for (const char* wrong :
       {"", "10", "Gbit/s", "10GB/s", "-1Gbit/s", "0Gbit/s", "1Gbit/s2", "nan Gbit"})
    CHECK_MESSAGE(!parse_bit_rate(wrong), wrong);
  CHECK(parse_bit_rate("10").error().message ==
        "'10' is no rate; write a number and a unit: 900Mbit/s, 10Gbit/s");
}

TEST_CASE("a host all of whose links are slow is named, once, and nobody else") {
  for (const int hosts : {3, 4, 7, 32}) {
    CAPTURE(hosts);
    const CommJudgement judged = judge_comm(report_of(hosts, slow_host(2)), {});
    CHECK(judged.usual_gbit_s == doctest::Approx(10.0).epsilon(0.05));
    CHECK(judged.floor_gbit_s == doctest::Approx(7.0).epsilon(0.05));
    REQUIRE(judged.slow.size() == 1);
    CHECK(judged.slow[0].hosts == std::vector<std::string>{"h03"});
    contains(judged.slow[0].text, "links at 2.5 Gbit/s, below ");
    contains(judged.slow[0].text, "0.7 of the median here");
    CHECK(!judged.slow[0].fix.empty());
  }
  CHECK(judge_comm(report_of(6, slow_host(-1)), {}).slow.empty());
  // 0.75 of the median is not slow.
  CHECK(judge_comm(report_of(6, slow_host(2, 7.5)), {}).slow.empty());
}

TEST_CASE("several slow hosts are one finding") {
  const auto report = report_of(9, [](int i, int j) {
    const bool slow = i == 1 || j == 1 || i == 6 || j == 6;
    return slow ? (i == 1 || j == 1 ? 2.0 : 3.0) : 10.0;
  });
  const CommJudgement judged = judge_comm(report, {});
  REQUIRE(judged.slow.size() == 1);
  CHECK(judged.slow[0].hosts == std::vector<std::string>{"h02", "h07"});
  contains(judged.slow[0].text, "links at 2 to 3 Gbit/s");
}

TEST_CASE("one slow link names its two ends and no host as such") {
  const auto report = report_of(
      5, [](int i, int j) { return i + j == 4 && i * j == 3 ? 1.0 : 10.0; });  // h02 - h04
  const CommJudgement judged = judge_comm(report, {});
  REQUIRE(judged.slow.size() == 1);
  CHECK(judged.slow[0].hosts == std::vector<std::string>{"h02", "h04"});
  contains(judged.slow[0].text, "h02 - h04: 1 Gbit/s");
}

TEST_CASE("a floor of the user's is what counts, also with two hosts") {
  const auto same = [](int, int) { return 10.0; };
  CHECK(judge_comm(report_of(4, same), 9.0).slow.empty());
  const CommJudgement all = judge_comm(report_of(4, same), 11.0);
  REQUIRE(all.slow.size() == 1);
  CHECK(all.slow[0].hosts.size() == 4);
  contains(all.slow[0].text, "all links: 10 Gbit/s, below 11 Gbit/s");
  const CommJudgement two = judge_comm(report_of(2, same), 11.0);
  REQUIRE(two.slow.size() == 1);
  contains(two.slow[0].text, "h01 - h02: 10 Gbit/s, below 11 Gbit/s");
  const CommJudgement open = judge_comm(report_of(2, same), {});
  CHECK(open.floor_gbit_s == 0);
  CHECK(open.slow.empty());
  CHECK(has(comm_text({{}, report_of(2, same), open, 1}, {}), "not judged: two hosts"));
}

TEST_CASE("a ring is judged where the pairs do not explain it") {
  auto report = report_of(6, [](int, int) { return 10.0; });
  for (CommLink& link : report.ring)
    if (link.from == "h03" || link.from == "h06") link.gbit_s = 4.0;
  const CommJudgement judged = judge_comm(report, {});
  REQUIRE(judged.slow.size() == 1);
  contains(judged.slow[0].text, "in a ring of all hosts h03 -> h04, h06 -> h01: 4 Gbit/s");
  // A slow host is slow in the ring too, but is reported only once.
  CHECK(judge_comm(report_of(6, slow_host(3)), {}).slow.size() == 1);
}

TEST_CASE("what rank 0 wrote is read, ranks of one host together, and not believed blindly") {
  const std::string text = R"({"schema":"sortie/bench-comm/1","library":"MPI","ranks":4,
    "hosts":["a","a","b\u001b[2J","b\u001b[2J"],
    "links":{"pairs":[{"from":"a","to":"a","gbit_s":99,"latency_us":1},
                      {"from":"a","to":"b","gbit_s":2,"latency_us":10},
                      {"from":"a","to":"b","gbit_s":4,"latency_us":20}],
             "ring":[{"from":"a","to":"a","gbit_s":99},{"from":"a","to":"b","gbit_s":3}]}})";
  const auto report = parse_comm_report(text);
  REQUIRE(report);
  CHECK(report->ranks == 4);
  CHECK(report->hosts == std::vector<std::string>{"a", "b^[[2J"});
  REQUIRE(report->pairs.size() == 1);
  CHECK(report->pairs[0].gbit_s == 3.0);
  CHECK(report->pairs[0].latency_us == 15.0);
  REQUIRE(report->ring.size() == 1);
  const std::string links = R"("links":{"pairs":[{"from":"a","to":"b","gbit_s":)";
  const std::string head = R"({"schema":"sortie/bench-comm/1","hosts":["a","b"],)";
  for (const std::string& wrong :
       {std::string(), std::string("nothing"), std::string("{}"), std::string("[1]"),
        head + "\"links\":{}}", std::string(R"({"schema":"sortie/bench-comm/2"})"),
        head + links + "-1}],\"ring\":[]}}", head + links + "\"fast\"}],\"ring\":[]}}",
        head + links + "1}]}}", head + R"("links":{"pairs":[],"ring":[]}})",
        head + R"("links":{"pairs":[7],"ring":[]}})"})
    CHECK_MESSAGE(!parse_comm_report(wrong), wrong);
}

TEST_CASE("a table for people, findings with what to do, JSON for programs") {
  CommOutcome outcome{{}, report_of(4, slow_host(1)), {}, 3.5};
  outcome.judgement = judge_comm(outcome.report, {});
  const std::string text = comm_text(outcome, {});
  CAPTURE(text);
  CHECK(has(text, "links of 4 hosts, 4 ranks, Open MPI v4.1.4"));
  CHECK(has(text, "FAIL comm: h02: links at 2.5 Gbit/s"));
  CHECK(has(text, "\n     fix: see the speed and errors of its interface"));
  CHECK(count_of(text, "\x1b[") == 0);
  CHECK(count_of(text, "h02  ") >= 3);  // the slowest of the others
  CHECK(count_of(comm_text(outcome, {true, true}), "\x1b[") == 2);
  const auto json = comm_json(outcome);
  CHECK(json["verdict"] == "fail");
  CHECK(json["floor"] == "usual");
  CHECK(json["pairs"].size() == 6);
  CHECK(json["pairs"][0]["ok"] == false);  // h01 - h02
  CHECK(json["pairs"][1]["ok"] == true);
  CHECK(json["slow"][0]["hosts"] == nlohmann::json({"h02"}));
  outcome.judgement = judge_comm(outcome.report, 1.0);
  CHECK(has(comm_text(outcome, {}), "comm: PASS: every link reaches 1 Gbit/s\n"));
  CHECK(comm_json(outcome)["verdict"] == "pass");
  outcome.error = Error{ErrorCode::timeout, "not measured: not done within 3 s"};
  CHECK(comm_text(outcome, {}) == "\nFAIL comm: not measured: not done within 3 s\n");
  CHECK(comm_json(outcome)["error"]["stage"] == "timeout");
}

TEST_CASE("many hosts: the slowest are shown") {
  CommOutcome outcome{{}, report_of(64, slow_host(60)), {}, 1};
  outcome.judgement = judge_comm(outcome.report, {});
  const std::string text = comm_text(outcome, {});
  CHECK(count_of(text, "\n") < 45);
  CHECK(has(text, "\nh61 "));
  CHECK(has(text, "and 32 faster hosts; -v shows every link"));
  CHECK(count_of(comm_text(outcome, {false, true}), "\n") > 64 * 63 / 2);
}

TEST_CASE(
    "the measuring job has the hosts and the transport of the job, and nothing of its training") {
  PlannedJob job;
  job.loaded.job.runner.ssh.user = "jo";
  job.loaded.job.runner.hosts_file = "/etc/hosts-of-jo";
  job.loaded.job.runner.mpi = "off";
  job.loaded.job.runner.on_launcher_loss = "hold 1h";
  job.loaded.job.runner.stage = {"/opt/sortie-train", "/data/huge.bin"};
  job.loaded.job.model.architecture = "llama";
  job.plan.argv = {"{stage}/sortie-train", "train"};
  for (const char* name : {"h01", "h02"}) {
    HostPlan host;
    host.name = name;
    for (const int slot : {4, 6}) {
      RankPlan rank;
      rank.slot = slot;
      host.ranks.push_back(rank);
    }
    job.plan.hosts.push_back(host);
  }
  const config::JobConfig one = comm_job(job, {.bytes = 1000}, "/usr/bin/sortie-train");
  CHECK(one.runner.hosts == std::vector<std::string>{"h01 slots=4,", "h02 slots=4,"});
  CHECK(one.runner.hosts_file.empty());
  CHECK(one.runner.ssh.user == "jo");
  CHECK(one.runner.mpi == "auto");
  CHECK(one.runner.on_launcher_loss == "kill");
  CHECK(one.runner.stage == std::vector<std::string>{"/opt/sortie-train"});
  CHECK(one.runner.program.front() == "{stage}/sortie-train");
  CHECK(one.runner.program.back() == "1000");
  CHECK(one.model.architecture == config::JobConfig().model.architecture);
  job.loaded.job.runner.program = {"./my_mpi"};
  const config::JobConfig all = comm_job(job, {.all_ranks = true}, "/usr/bin/sortie-train");
  CHECK(all.runner.hosts == std::vector<std::string>{"h01 slots=4,6", "h02 slots=4,6"});
  CHECK(all.runner.program.front() == "/usr/bin/sortie-train");
  CHECK(all.runner.program.back() == "all");
  CHECK(all.runner.stage.empty());
}
