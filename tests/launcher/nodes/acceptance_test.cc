// The check of a spare before it joins a run, over fake hosts in memory: fit, unfit, unreachable,
// silent.
#include "launcher/nodes/acceptance.h"

#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <nlohmann/json.hpp>

#include "tests/launcher/check/answer_checks.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/patience.h"
#include "tests/support/run_within.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using test::contains;
using test::FakeRunner;

/// Answers the clock request at once and the look request with `parts`, or not at all if `silent`.
boost::asio::awaitable<void> looked_at(FakeRunner& runner, std::vector<Json> parts, bool silent) {
  const test::CheckAnswer parts_for = [parts = std::move(parts), silent](
                                          const std::string& kind,
                                          const Json&) -> std::optional<std::vector<Json>> {
    if (kind == "clock") return std::vector<Json>{test::clock_part()};
    if (silent) return std::nullopt;
    return parts;
  };
  co_await test::answer_checks(runner, parts_for);
}

struct Spare {
  Spare() {
    job.runner.program = {"./train"};
    plan = *make_plan(job, {{"h1", {0}}}, {});
    test::write_text(dir / "runner", "#!/bin/sh\n");
  }

  Result<> accept(milliseconds limit = milliseconds(5000)) {
    const auto binary = RunnerBinary::open(dir / "runner");
    REQUIRE(binary);
    Result<> out = fail(ErrorCode::internal, "no answer");
    const auto ask = [&]() -> boost::asio::awaitable<void> {
      AcceptanceJob what{job, plan, *binary};
      config::HostSlots spare{"s1", {0, 1}};
      out = co_await accept_spare(io.get_executor(), transport, what, std::move(spare), limit,
                                  give_up);
    };
    boost::asio::co_spawn(io, ask(), [this](std::exception_ptr) { io.stop(); });
    ran = test::run_within(io, std::chrono::seconds(20));
    return out;
  }

  test::ScopedTempDir dir;
  boost::asio::io_context io{1};
  test::FakeTransport transport{io.get_executor()};
  config::JobConfig job;
  LaunchPlan plan;
  std::shared_ptr<GiveUp> give_up = std::make_shared<GiveUp>();
  milliseconds ran{};
};

/// Gives up the check after `time`.
void give_up_after(Spare& spare, milliseconds time) {
  const auto timer = std::make_shared<boost::asio::steady_timer>(spare.io, time);
  timer->async_wait([timer, give_up = spare.give_up](auto) { give_up->give_up(); });
}

const Json kProgramFound = {
    {"part", "program"}, {"name", "./train"}, {"work_dir", true}, {"found", "/work/train"}};

TEST_CASE("a spare that has what the job needs is taken") {
  Spare spare;
  spare.transport.host("s1").script = [](FakeRunner& runner) {
    return looked_at(runner, {kProgramFound}, false);
  };
  const auto accepted = spare.accept();
  CHECK_MESSAGE(accepted, (accepted ? std::string() : accepted.error().message));
}

TEST_CASE("a spare without the program is refused, by the reason and the remedy of a check") {
  Spare spare;
  spare.transport.host("s1").script = [](FakeRunner& runner) {
    return looked_at(
        runner,
        {{{"part", "program"}, {"name", "./train"}, {"work_dir", true}, {"error", "no such file"}}},
        false);
  };
  const auto accepted = spare.accept();
  REQUIRE_FALSE(accepted);
  CHECK(accepted.error().code == ErrorCode::unsupported);
  CHECK(contains(accepted.error().message, "s1: not fit to take a place in the job: program: "));
}

TEST_CASE("a spare that does not answer holds the run up no longer than it is told") {
  Spare spare;
  spare.transport.host("s1").script = [](FakeRunner& runner) {
    return looked_at(runner, {}, true);
  };
  const auto accepted = spare.accept(milliseconds(300));
  REQUIRE_FALSE(accepted);
  CHECK(contains(accepted.error().message, "no answer within"));
  CHECK(spare.ran < test::patient(std::chrono::seconds(3)));
}

TEST_CASE("a check that nobody wants any more ends at once, and its connection with it") {
  Spare spare;
  bool closed = false;
  spare.transport.host("s1").script = [&](FakeRunner& runner) -> boost::asio::awaitable<void> {
    give_up_after(spare, milliseconds(1));
    std::vector<Json> none;
    co_await looked_at(runner, std::move(none), true);
    closed = true;
  };
  const auto accepted = spare.accept(std::chrono::minutes(10));
  REQUIRE_FALSE(accepted);
  CHECK(accepted.error().code == ErrorCode::interrupted);
  spare.io.restart();
  test::run_within(spare.io, std::chrono::seconds(20));  // until no work is left
  CHECK(closed);
}

TEST_CASE("a check that is given up while it connects: the connection comes to nothing") {
  Spare spare;
  spare.transport.host("s1").connect_delay = milliseconds(1000);
  spare.transport.host("s1").script = [](FakeRunner& runner) {
    return looked_at(runner, {}, false);
  };
  give_up_after(spare, milliseconds(1));
  const auto accepted = spare.accept(std::chrono::minutes(10));
  REQUIRE_FALSE(accepted);
  CHECK(accepted.error().code == ErrorCode::interrupted);
  CHECK_FALSE(spare.transport.has_runner("s1"));
  spare.io.restart();
  test::run_within(spare.io, std::chrono::seconds(20));
  CHECK(spare.transport.connected == 1);
  CHECK_FALSE(spare.transport.has_runner("s1"));
}

TEST_CASE("a spare that is not reached") {
  Spare spare;
  spare.transport.host("s1").connect_error = Error{ErrorCode::connect, "refused"};
  const auto accepted = spare.accept();
  REQUIRE_FALSE(accepted);
  CHECK(contains(accepted.error().message, "ssh: "));
  CHECK(contains(accepted.error().message, "refused"));
}

}  // namespace
}  // namespace sortie::launcher
