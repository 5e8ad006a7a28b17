// Bounds on what a host that sends too much can make the launcher keep, print or write.
#include <doctest/doctest.h>

#include "common/base/exit_code.h"
#include "tests/launcher/launch.h"
#include "tests/launcher/scripts.h"

namespace sortie::launcher {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using test::after_start;
using test::FakeRunner;
using test::Launch;

const std::string kFlood(1u << 20, 'x');

wire::JobReady talkative_ready() {
  wire::JobReady ready;
  ready.cpus = 1;
  ready.memory_bytes = 1;
  for (std::string* text : {&ready.hostname, &ready.kernel, &ready.cgroup, &ready.pmix})
    *text = kFlood;
  return ready;
}

wire::RankExited exit_of(std::uint32_t rank) {
  wire::RankExited exited;
  exited.rank = rank;
  return exited;
}

TEST_CASE("facts of a host are cut to what a person reads") {
  Launch launch({{"h", {0}}});
  struct Script {
    static awaitable<void> run(FakeRunner& runner) {
      const bool asked = co_await runner.until<wire::JobSpec>();
      if (!asked) co_return;
      runner.send(wire::Hello{});
      runner.send(talkative_ready());
      const bool go = co_await runner.until<wire::Start>();
      if (!go) co_return;
      runner.send(exit_of(0));
      runner.send(wire::Finished{});
      const bool done = co_await runner.until<wire::Goodbye>();
      if (done) runner.end();
    }
  };
  launch.host("h").script = Script::run;
  CHECK(launch.run().exit_code == 0);
  const auto ready = launch.events_named("ready");
  REQUIRE(ready.size() == 1);
  for (const char* key : {"hostname", "kernel", "cgroup", "pmix"}) {
    CAPTURE(key);
    CHECK(ready[0][key].get<std::string>().size() < 5000);
  }
}

TEST_CASE("an error of a host is cut, and can not take over a terminal") {
  for (const bool before_start : {true, false}) {
    Launch launch({{"h", {0}}});
    static const wire::RunnerError kError{kFlood, "\x1b]0;owned\x07" + kFlood, -1};
    struct Script {
      static awaitable<void> early(FakeRunner& runner) {
        const bool asked = co_await runner.until<wire::JobSpec>();
        if (asked) runner.send(kError);
      }
    };
    if (before_start)
      launch.host("h").script = Script::early;
    else
      launch.host("h").script = after_start([](FakeRunner& runner) { runner.send(kError); });
    const Verdict verdict = launch.run();
    CHECK(verdict.exit_code == (before_start ? kExitUnreachable : kExitLost));
    CHECK(verdict.text.size() < 5000);
    CHECK(printable_lines(verdict.text).find('\x1b') == std::string::npos);
    for (const auto& event : launch.events) CHECK(event.dump().size() < 20000);
  }
}

TEST_CASE("what happens once is noted once, however often a host says it") {
  Launch launch({{"h", {0, 1}}});
  launch.host("h").script = after_start([](FakeRunner& runner) {
    for (int i = 0; i < 5000; ++i) runner.send(wire::RankStarted{0, 1000});
    for (int i = 0; i < 5000; ++i) runner.send(exit_of(0));
    runner.exit_rank(0, 77);  // too late: the rank has exited with 0
    runner.exit_rank(1, 3);
  });
  CHECK(launch.run().exit_code == 3);
  CHECK(launch.events_named("rank_started").size() == 2);
  CHECK(launch.events_named("rank_exited").size() == 2);
}

TEST_CASE("errors without end are a broken protocol, and none is about another host's rank") {
  Launch launch({{"h1", {0}}, {"h2", {0}}});
  launch.host("h1").script = after_start([](FakeRunner& runner) {
    for (int i = 0; i < 5000; ++i) runner.send(wire::RunnerError{"timeout", "stuck", 1});
  });
  launch.host("h2").script = test::run_until_stopped;
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code != 0);
  CHECK(verdict.text.find("rank 1") == std::string::npos);
  CHECK(launch.events_named("unconfirmed").size() <= 256 + 1);  // and one for the lost host
  CHECK(launch.shown.size() < 100000);
}

TEST_CASE("a rank that starts twice with two pids is a broken protocol") {
  Launch launch({{"h", {0}}});
  launch.host("h").script = after_start([](FakeRunner& runner) {
    runner.send(wire::RankStarted{0, 1001});
  });
  const Verdict verdict = launch.run();
  CHECK(verdict.exit_code == 5);
  CHECK(verdict.text.find("runner started rank 0 twice") != std::string::npos);
}

TEST_CASE("an event larger than a runner would send is not taken") {
  Launch launch({{"h", {0}}});
  launch.host("h").script = after_start([](FakeRunner& runner) {
    runner.send(wire::RankEvent{0, R"({"type":"note","text":")" + kFlood + "\"}"});
    runner.send(wire::RankEvent{0, R"({"type":"note","text":"small enough"})"});
    runner.exit_rank(0, 3);
  });
  CHECK(launch.run().exit_code == 3);
  CHECK(launch.shown.size() < 10000);
  const std::string kept = test::read_text(launch.run_folder / "metrics.jsonl");
  CHECK(kept.find("small enough") != std::string::npos);
  CHECK(kept.size() < 1000);
}

TEST_CASE("fences that never come true do not pile up") {
  PmixRelay relay({0, 1, 2});
  std::size_t answered = 0;
  for (int i = 0; i < 100000; ++i)
    answered += relay.on_fence(0, {"key" + std::to_string(i), 3, "x"}).size();
  CHECK(relay.waiting().size() == 1024);
  CHECK(answered == 100000 - 1024);  // with an error, at once
  const auto refused = relay.on_fence(0, {"one more", 3, "x"});
  REQUIRE(refused.size() == 1);
  CHECK(std::get<wire::PmixFenceDone>(refused[0].message).status != 0);
  // Other hosts are not affected, and a finished fence makes room.
  CHECK(relay.on_fence(1, {"another", 2, "y"}).empty());
  CHECK(relay.on_fence(2, {"another", 2, "z"}).at(0).hosts.size() == 2);
  CHECK(relay.on_fence(1, {"key5", 3, ""}).empty());
  CHECK(relay.on_fence(2, {"key5", 3, ""}).at(0).hosts.size() == 3);
  CHECK(relay.on_fence(0, {"one more", 3, "x"}).empty());
}

TEST_CASE("data of fences that never come true does not pile up") {
  PmixRelay relay({0, 1});
  int kept = 0;
  for (int i = 0; i < 200; ++i)
    kept += relay.on_fence(0, {std::to_string(i), 2, kFlood}).empty() ? 1 : 0;
  CHECK(kept == 63);  // the limit is 64 MiB, keys included
  // Repeating the same fence occupies its place only once.
  PmixRelay again({0, 1});
  for (int i = 0; i < 200; ++i) CHECK(again.on_fence(0, {"same", 2, kFlood}).empty());
  CHECK(again.on_fence(1, {"same", 2, ""}).at(0).hosts.size() == 2);
  CHECK(again.waiting().empty());
}

TEST_CASE("questions that nobody answers do not pile up") {
  PmixRelay relay({0, 1});
  constexpr std::uint64_t kLimit = 1u << 20;
  for (std::uint64_t i = 0; i < kLimit; ++i) {
    const auto out = relay.on_modex_request(0, {i, 1, {}, 0});
    if (out.at(0).hosts.at(0) != 1) FAIL("refused too early");
  }
  const auto refused = relay.on_modex_request(0, {kLimit, 1, {}, 0});
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].hosts.at(0) == 0);
  CHECK(std::get<wire::PmixModexReply>(refused[0].message).status != 0);
  CHECK(relay.on_modex_request(1, {7, 0, {}, 0}).at(0).hosts.at(0) == 0);
  CHECK(relay.on_modex_reply(1, {1, 1, 0, "data"}).size() == 1);
  CHECK(relay.on_modex_request(0, {kLimit, 1, {}, 0}).at(0).hosts.at(0) == 1);
}

}  // namespace
}  // namespace sortie::launcher
