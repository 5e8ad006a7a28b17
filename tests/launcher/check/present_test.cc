// Output for people and programs: folding, the table, JSON. A hostile host can not inject anything
// into it.
#include "launcher/check/present.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/launcher/check/reports.h"

using namespace sortie;
using namespace sortie::launcher::check;
using namespace sortie::test;

namespace {

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("hosts with the same verdicts are one column, the same reason is said once") {
  std::vector<HostResult> hosts;
  for (const char* name : {"h01", "h02", "h03", "h04"}) hosts.push_back(sound_host(name));
  for (std::size_t i : {1u, 3u})
    hosts[i].error = Error{ErrorCode::connect, "port 22: Connection refused"};
  const auto findings = evaluate(hosts, sound_expectations());
  const std::string text = check_text(hosts, findings, {});
  CAPTURE(text);
  CHECK(text.find("h[01,03] (2)  h[02,04] (2)") != text.npos);
  CHECK(count(text, "Connection refused") == 1);
  CHECK(count(text, "FAIL ssh: h[02,04] (2): connect: port 22: Connection refused") == 1);
  CHECK(text.find("\n     fix: ") != text.npos);
  CHECK(text.ends_with("4 hosts: 2 passed, 0 with warnings, 2 failed\n"));
  CHECK(count(text, "\x1b[") == 0);
  PresentOptions verbose;
  verbose.verbose = verbose.color = true;
  const std::string all = check_text(hosts, findings, verbose);
  CHECK(all.find("mpi: h[01-04] (4): Open MPI v4.1.4, PMIx 4.2.2") != all.npos);
  CHECK(count(all, "\x1b[") > 10);
}

TEST_CASE("many different columns go below each other") {
  std::vector<HostResult> hosts;
  for (int i = 0; i < 9; ++i) {
    hosts.push_back(sound_host("a-long-name-of-a-host-" + std::to_string(i)));
    if (i & 1) hosts.back().report.host->cpus = 1;
    if (i & 2) hosts.back().report.host->runs_left = 1;
    if (i & 4) hosts.back().report.host->available_bytes = 1;
  }
  const auto findings = evaluate(hosts, sound_expectations());
  const std::string text = check_text(hosts, findings, {});
  CHECK(count(text, "\nssh ") > 1);
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != text.npos && end != begin;
       begin = end + 1)
    CHECK(end - begin <= 100);
}

TEST_CASE("hosts that were reached through an ssh master are named") {
  std::vector<HostResult> hosts = {sound_host("h1"), sound_host("h2"), sound_host("h3")};
  PresentOptions options;
  const auto shown = [&] {
    return check_text(hosts, evaluate(hosts, sound_expectations()), options);
  };
  CHECK_FALSE(shown().contains("master"));
  hosts[0].through = hosts[1].through = "/home/ada/.ssh/cm-1";
  CHECK(shown().contains("\nthrough an ssh master: h[1-2] (2)\n"));
  const auto findings = evaluate(hosts, sound_expectations());
  const auto json = nlohmann::json::parse(check_json_text(hosts, findings, 1.5));
  CHECK(json["hosts"][0]["through"] == "/home/ada/.ssh/cm-1");
  CHECK_FALSE(json["hosts"][2].contains("through"));
}

TEST_CASE("JSON has its schema, a verdict, and every check of every host") {
  std::vector<HostResult> hosts = {sound_host("h1"), sound_host("h2")};
  hosts[1].report.host->cpus = 1;
  const auto findings = evaluate(hosts, sound_expectations());
  const auto json = nlohmann::json::parse(check_json_text(hosts, findings, 1.5));
  CHECK(json["schema"] == "sortie/check/1");
  CHECK(json["verdict"] == "warn");
  CHECK(json["hosts"].size() == 2);
  CHECK(json["hosts"][0]["verdict"] == "pass");
  CHECK(json["hosts"][1]["verdict"] == "warn");
  CHECK(json["hosts"][1]["checks"].size() == check_names(sound_expectations()).size());
  CHECK(json["hosts"][0]["links"][0]["to"] == "h0");
  CHECK(check_exit_code(Verdict::pass) == 0);
  CHECK(check_exit_code(Verdict::warn) == 1);
  CHECK(check_exit_code(Verdict::fail) == 2);
}

TEST_CASE("a hostile host: what is no object, too deep, too large or too much is refused") {
  HostReport report;
  for (const std::string& bad : std::vector<std::string>{
           "", "1", "[]", "{", "nonsense", std::string(kMaxReportBytes + 1, ' '),
           std::string(20, '[') + std::string(20, ']'),
           R"({"part":"host","x":)" + std::string(9, '[') + std::string(9, ']') + "}"})
    CHECK_FALSE(add_part(report, bad));
  HostReport flood;
  std::size_t taken = 0;
  while (taken < 2 * kMaxReportParts && add_part(flood, R"({"part":"at","what":"x"})")) ++taken;
  CHECK(taken <= kMaxReportParts);
  HostReport heavy;
  const std::string big =
      R"({"part":"at","what":")" + std::string(kMaxReportBytes - 100, 'x') + "\"}";
  for (taken = 0; taken < 1000 && add_part(heavy, big);) ++taken;
  CHECK(taken < 40);
  CHECK(heavy.at.size() < 5000);
}

TEST_CASE("a hostile host: wrong types count as missing, its escape codes reach no terminal") {
  HostResult host = sound_host("h1");
  host.report = HostReport{};
  for (
      const char* part :
      {R"({"part":"host","cpus":-3,"kernel":{"a":1},"memory_bytes":1e300,"memlock":"x","cgroup":7})",
       R"({"part":"gpus","smi":"/usr/bin/\u001b[2J","smi_error":"\u001b]0;owned\u0007","gpus":[1,{"name":2},"z"]})",
       R"({"part":"trainer","answer":{"build":7,"nccl":"\u001b[2J","cpu":[],"gpus":[1,{"name":"\u001b","clock_mhz":-1}]}})",
       R"({"part":"peer","name":["h0"],"round_trip_us":"fast"})",
       R"({"part":"listen","port":70000})", R"({"part":"clock","unix_us":18446744073709551615})",
       R"({"part":"folder","role":"shm","error":"\u009b31m","free_bytes":18446744073709551615})",
       R"({"part":"no such part","x":1})", R"({"x":1})"})
    CHECK(add_part(host.report, part));
  CHECK(host.report.host->cpus == 0);
  CHECK_FALSE(host.report.listen_port);
  CHECK(host.report.gpus->gpus.size() == 3);
  CHECK(host.report.trainer->build.empty());
  CHECK(host.report.trainer->nccl == "^[[2J");
  CHECK(host.report.trainer->gpus.size() == 2);
  CHECK(host.report.trainer->gpus[1].clock_mhz == 0);
  const std::vector<HostResult> hosts = {host};
  const auto findings = evaluate(hosts, sound_expectations());
  CHECK(worst(findings) == Verdict::fail);
  const std::string text = check_text(hosts, findings, {});
  CHECK(text.find('\x1b') == text.npos);
  CHECK(text.find('\x07') == text.npos);
  CHECK(text.find("\xc2\x9b") == text.npos);
  CHECK(nlohmann::json::accept(check_json_text(hosts, findings, 1)));
}
