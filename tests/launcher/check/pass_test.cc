// A check pass over fake hosts in memory: a host that fails or is silent does not affect the
// others.
#include "launcher/check/pass.h"

#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "launcher/check/sites.h"
#include "tests/launcher/check/answer_checks.h"
#include "tests/launcher/check/reports.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/patience.h"
#include "tests/support/run_within.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::launcher::check;
using namespace sortie::test;
using std::chrono::milliseconds;

namespace {

const milliseconds kLimit = test::patient(milliseconds(1500));

void answer(FakeRunner& runner, const nlohmann::json& part) {
  runner.send(wire::CheckReport{part.dump()});
}

/// A runner that answers everything. Its clock is `ahead` of ours.
boost::asio::awaitable<void> sound(FakeRunner& runner, std::chrono::seconds ahead) {
  const CheckAnswer parts_for = [ahead](const std::string& kind, const nlohmann::json& request) {
    std::vector<nlohmann::json> parts;
    if (kind == "clock") parts.push_back(clock_part(ahead));
    if (kind == "listen") parts.push_back({{"part", "listen"}, {"port", 1000}});
    if (kind == "reach")
      for (const auto& peer : request["peers"])
        parts.push_back({{"part", "peer"},
                         {"name", peer["name"]},
                         {"round_trip_us", 100},
                         {"mtu", 1500},
                         {"own_mtu", 1500}});
    if (kind == "link") {
      const nlohmann::json way = {
          {"bytes", 1000000}, {"us", 1000000}, {"segments", 700}, {"again", 7}};
      const bool measures = request["duration_ms"] > 0;
      parts.push_back({{"part", "link"},
                       {"name", request["name"]},
                       {"round_trip_us", 100},
                       {"out", measures ? way : nlohmann::json::object()},
                       {"back", measures ? way : nlohmann::json::object()}});
    }
    return parts;
  };
  co_await answer_checks(runner, parts_for);
}

/// A host with a trainer, of which a library may be missing.
boost::asio::awaitable<void> with_trainer(FakeRunner& runner, bool complete) {
  const CheckAnswer parts_for = [complete](const std::string& kind, const nlohmann::json&) {
    std::vector<nlohmann::json> parts;
    nlohmann::json missing = nlohmann::json::array();
    if (!complete) missing.push_back("libmpi.so.40");
    if (kind == "clock") parts.push_back({{"part", "clock"}, {"unix_us", 1}});
    if (kind == "look")
      parts.push_back({{"part", "program"}, {"found", "/opt/train"}, {"missing", missing}});
    if (kind == "trainer")
      parts.push_back({{"part", "trainer"}, {"answer", {{"build", "ab"}, {"nccl", "2.28.9"}}}});
    return parts;
  };
  co_await answer_checks(runner, parts_for);
}

/// Answers Hello and nothing else.
boost::asio::awaitable<void> silent(FakeRunner& runner) {
  for (;;) {
    const std::optional<wire::Message> message = co_await runner.next();
    if (!message) co_return;
    runner.send(wire::Hello{wire::kProtocolVersion, ""});
  }
}

/// Reports parts without end and never reports that it is done.
boost::asio::awaitable<void> flood(FakeRunner& runner) {
  for (;;) {
    const std::optional<wire::Message> message = co_await runner.next();
    if (!message) co_return;
    if (std::holds_alternative<wire::Hello>(*message))
      runner.send(wire::Hello{wire::kProtocolVersion, ""});
    else
      for (std::size_t i = 0; i < kMaxReportParts + 10; ++i)
        answer(runner, {{"part", "at"}, {"what", "x"}});
  }
}

boost::asio::awaitable<void> garbage(FakeRunner& runner) {
  co_await runner.until<wire::Hello>();
  runner.send(wire::Hello{wire::kProtocolVersion, ""});
  runner.send(wire::CheckReport{"\x1b[2J no JSON"});
  for (;;) {
    const std::optional<wire::Message> message = co_await runner.next();
    if (!message) co_return;
  }
}

boost::asio::awaitable<void> dies(FakeRunner& runner) {
  co_await runner.until<wire::Hello>();
  runner.send(wire::Hello{wire::kProtocolVersion, ""});
  co_await runner.until<wire::CheckRequest>();
  runner.end();
}

boost::asio::awaitable<void> talks_at_length(FakeRunner& runner) {
  co_await runner.until<wire::Hello>();
  runner.send(wire::Hello{wire::kProtocolVersion, ""});
  co_await runner.until<wire::CheckRequest>();
  runner.send(wire::RunnerError{"runner", "\x1b[2J" + std::string(1u << 20, 'x'), -1});
  co_await runner.sleep(milliseconds(100));
}

struct InSites {
  std::vector<config::HostSlots> hosts;
};

struct Checked {
  explicit Checked(std::vector<std::string> names) {
    std::vector<config::HostSlots> hosts;
    for (const std::string& name : names) hosts.push_back({name, {0}});
    job.loaded.job.runner.program = {"true"};
    auto plan = launcher::make_plan(job.loaded.job, hosts, {});
    REQUIRE(plan);
    job.plan = std::move(*plan);
    test::write_text(dir / "runner", "#!/bin/sh\n");
    options.host_limit = kLimit;
  }

  /// The same for hosts in sites.
  explicit Checked(const InSites& sites) : Checked(names_of(sites.hosts)) {
    job.hosts = sites.hosts;
    expect.sites = {51000, 2};
  }

  static std::vector<std::string> names_of(const std::vector<config::HostSlots>& hosts) {
    std::vector<std::string> names;
    for (const config::HostSlots& host : hosts) names.push_back(host.name);
    return names;
  }

  std::vector<HostResult> run() {
    auto binary = launcher::RunnerBinary::open(dir / "runner");
    REQUIRE(binary);
    std::vector<HostResult> results;
    bool done = false;
    {
      Pass pass({io.get_executor(), transport, *binary}, job, expect, options);
      boost::asio::co_spawn(io, pass.run(), [&](std::exception_ptr error) {
        done = !error;
        io.stop();
      });
      ran = test::run_within(io, std::chrono::seconds(25));
      results = pass.results();
    }
    REQUIRE(done);
    return results;
  }

  ScopedTempDir dir;
  boost::asio::io_context io{1};
  FakeTransport transport{io.get_executor()};
  launcher::PlannedJob job;
  CheckOptions options;
  Expectations expect;
  milliseconds ran{};
};

}  // namespace

TEST_CASE("pass: a clock that is off is seen whatever the network does") {
  Checked checked({"h1", "h2"});
  checked.transport.host("h1").script = [](FakeRunner& r) {
    return sound(r, std::chrono::seconds(0));
  };
  checked.transport.host("h2").script = [](FakeRunner& r) {
    return sound(r, std::chrono::seconds(-90));
  };
  const auto results = checked.run();
  CHECK(judge_clock(results[0]).verdict == Verdict::pass);
  CHECK(judge_clock(results[1]).verdict == Verdict::fail);
  CHECK(judge_clock(results[1]).reason == "90.0 s behind this machine's clock");
  CHECK(judge_network(results)[0].verdict == Verdict::pass);
}

TEST_CASE(
    "pass: hosts reach out within their site, and one of each measures the way to the others") {
  Checked checked(InSites{
      {{"a1", {0}, "a"}, {"b1", {0}, "b"}, {"a2", {0}, "a"}, {"c1", {0}, "c"}, {"b2", {0}, "b"}}});
  for (const char* name : {"a1", "a2", "b2", "c1"})
    checked.transport.host(name).script = [](FakeRunner& r) {
      return sound(r, std::chrono::seconds(0));
    };
  checked.transport.host("b1").connect_error = Error{ErrorCode::auth, "no key"};
  const auto results = checked.run();
  using Names = std::vector<std::string>;
  CHECK(results[0].asked_peers == Names{"a2"});
  CHECK(results[2].asked_peers == Names{"a1"});
  CHECK(results[4].asked_peers.empty());  // the other host of its site is not reached
  // b2 represents site b, because the first host of that site is not reached.
  CHECK(std::set<std::string>(results[0].asked_links.begin(), results[0].asked_links.end()) ==
        std::set<std::string>{"b2", "c1"});
  CHECK(results[2].asked_links.empty());
  CHECK(results[3].asked_links.size() == 2);
  const auto links = site_links(results, 1.0);
  REQUIRE(links.size() == 6);
  for (const launcher::SiteLink& link : links) {
    CHECK(link.works);
    CHECK(link.byte_s == 1e6);
    CHECK(link.loss == 0.01);
  }
  CHECK(judge_sites(results, checked.expect)[0].verdict == Verdict::pass);
}

TEST_CASE("pass: a trainer is asked where it can be started, in jobs that have one") {
  const auto ask = [](bool complete, bool wanted) {
    Checked checked({"h1"});
    checked.expect.ask_trainer = wanted;
    checked.transport.host("h1").script = [complete](FakeRunner& r) {
      return with_trainer(r, complete);
    };
    const auto results = checked.run();
    CHECK_FALSE(results[0].error);
    return results[0].report.trainer;
  };
  const auto answered = ask(true, true);
  REQUIRE(answered);
  CHECK(answered->build == "ab");
  CHECK(answered->nccl == "2.28.9");
  CHECK_FALSE(ask(false, true));
  CHECK_FALSE(ask(true, false));
}

TEST_CASE("pass: hosts of different sites need no way to each other if the launcher is the way") {
  Checked checked(InSites{{{"a1", {0}, "a"}, {"b1", {0}, "b"}, {"a2", {0}, "a"}}});
  checked.expect.sites.reset();
  for (const char* name : {"a1", "a2", "b1"})
    checked.transport.host(name).script = [](FakeRunner& r) {
      return sound(r, std::chrono::seconds(0));
    };
  const auto results = checked.run();
  CHECK(results[0].asked_peers == std::vector<std::string>{"a2"});
  CHECK(results[1].asked_peers.empty());
  CHECK(results[2].site == "a");
}

TEST_CASE("pass: the error of a host is short and takes over no terminal") {
  Checked checked({"talks"});
  checked.transport.host("talks").script = talks_at_length;
  const auto results = checked.run();
  REQUIRE(results[0].error);
  CHECK(results[0].error->code == ErrorCode::runner);
  CHECK(results[0].error->message.starts_with("^[[2Jxxx"));
  CHECK(results[0].error->message.size() < 5000);
}

TEST_CASE("pass: silent, flooding, lying and dying hosts cost no one else anything") {
  Checked checked({"good", "silent", "flood", "garbage", "dies", "refused", "slow", "good2"});
  for (const char* name : {"good", "good2"})
    checked.transport.host(name).script = [](FakeRunner& r) {
      return sound(r, std::chrono::seconds(0));
    };
  checked.transport.host("silent").script = silent;
  checked.transport.host("flood").script = flood;
  checked.transport.host("garbage").script = garbage;
  checked.transport.host("dies").script = dies;
  checked.transport.host("refused").connect_error = Error{ErrorCode::auth, "no key"};
  checked.transport.host("slow").connect_delay = test::patient(milliseconds(30000));
  const auto results = checked.run();
  CHECK(checked.ran < test::patient(milliseconds(20000)));
  const auto code = [&](std::size_t i) {
    return results[i].error ? error_code_name(results[i].error->code) : "fine";
  };
  CHECK(code(0) == "fine");
  CHECK(code(1) == "timeout");
  CHECK(code(2) == "protocol");
  CHECK(code(3) == "protocol");
  CHECK(code(4) == "lost");
  CHECK(code(5) == "auth");
  CHECK(code(6) == "timeout");
  CHECK(code(7) == "fine");
  CHECK(results[0].asked_peers == std::vector<std::string>{"good2"});
  CHECK(judge_network(results)[0].verdict == Verdict::pass);
  CHECK(results[3].error->message.find('\x1b') == std::string::npos);
}
