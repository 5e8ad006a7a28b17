// The stdin of a rank, and jobs that start without a Start message.
#include <doctest/doctest.h>

#include <csignal>

#include "runner/job/job_check.h"
#include "tests/support/runner_client.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::test;

namespace {

wire::JobSpec make_input_job(std::vector<std::string> argv, std::uint32_t window = 256u << 10) {
  wire::JobSpec job = make_job(std::move(argv));
  job.autostart = 1;
  job.input_window = window;
  return job;
}

void begin(RunnerClient& client, const wire::JobSpec& job) {
  client.send(wire::Hello{});
  client.send(job);
}

/// Sends `data` within the window, then end of input; true if the rank's stdin stayed open until
/// then.
bool feed(RunnerClient& client, const std::string& data, std::uint64_t window) {
  std::uint64_t room = window;
  for (std::size_t at = 0; at < data.size();) {
    const std::uint64_t size =
        std::min<std::uint64_t>({room, 32u << 10, static_cast<std::uint64_t>(data.size() - at)});
    if (size == 0) {
      const auto credit = client.expect<wire::InputCredit>();
      if (!credit || credit->closed) return false;
      room += credit->bytes;
      if (room > window) return false;
      continue;
    }
    client.send(wire::Input{data.substr(at, size), 0});
    at += size;
    room -= size;
  }
  client.send(wire::Input{"", 1});
  return true;
}

}  // namespace

TEST_CASE("a job with autostart runs without Start, and a Start is an error") {
  wire::JobSpec job = make_job({"echo", "by itself"});
  job.autostart = 1;
  RunnerClient client;
  begin(client, job);
  REQUIRE(client.expect<wire::JobReady>());
  REQUIRE(client.wait_finished());
  CHECK(client.out[0] == "by itself\n");
  CHECK(client.exited.at(0).code == 0);
  client.send(wire::Goodbye{});
  CHECK(client.wait_exit()->success());
  CHECK(remains(job) == "");

  RunnerClient twice;
  wire::JobSpec other = make_job({"sleep", "100"});
  other.autostart = 1;
  begin(twice, other);
  REQUIRE(twice.expect<wire::RankStarted>());
  twice.send(wire::Start{});
  const auto error = twice.expect<wire::RunnerError>();
  REQUIRE(error);
  CHECK(error->message == "Start twice");
  CHECK(remains(other) == "");
}

TEST_CASE("stdin arrives whole, in order, with its end") {
  std::string data;
  for (int i = 0; i < 300000; ++i) data += std::to_string(i) + "\n";
  for (const std::uint32_t window : {256u << 10, 4096u}) {
    const wire::JobSpec job = make_input_job({"cat"}, window);
    RunnerClient client;
    begin(client, job);
    REQUIRE(client.expect<wire::JobReady>());
    const std::string part = window == 4096u ? data.substr(0, 200000) : data;
    REQUIRE(feed(client, part, window));
    REQUIRE(client.wait_finished());
    CHECK(client.out[0] == part);
    client.send(wire::Goodbye{});
    CHECK(client.wait_exit()->success());
    CHECK(remains(job) == "");
  }
}

TEST_CASE("a rank that does not read holds the input back, not the runner") {
  const wire::JobSpec job = make_input_job({"sleep", "100"});
  RunnerClient client;
  begin(client, job);
  REQUIRE(client.expect<wire::JobReady>());
  for (int i = 0; i < 8; ++i) client.send(wire::Input{std::string(32u << 10, 'x'), 0});
  const auto credit = client.expect<wire::InputCredit>();  // the bytes that fit in the pipe
  REQUIRE(credit);
  CHECK(credit->bytes <= 128u << 10);
  client.send(wire::Stop{100, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.exited.at(0).stopped == 1);
}

TEST_CASE("a rank that closes its stdin is told of once; what comes then is dropped") {
  const ScopedTempDir dir;
  wire::JobSpec job = make_input_job(
      {"sh", "-c", "exec <&-; echo closed; until test -e $GATE; do sleep 0.02; done; echo end"});
  job.env = {{"GATE", dir.str("gate")}};
  RunnerClient client;
  begin(client, job);
  REQUIRE(client.wait_until([&] { return client.out[0] == "closed\n"; }));
  client.send(wire::Input{"nobody reads this", 0});
  const auto credit = client.expect<wire::InputCredit>();
  REQUIRE(credit);
  CHECK(credit->closed == 1);
  client.send(wire::Input{std::string(60000, 'x'), 0});
  client.send(wire::Input{"", 1});
  write_text(dir / "gate", "");
  REQUIRE(client.wait_finished());
  CHECK(client.out[0] == "closed\nend\n");
  CHECK(client.exited.at(0).code == 0);
}

TEST_CASE("input outside the rules ends the job") {
  struct Row {
    std::vector<wire::Input> inputs;
    std::uint32_t window;
    const char* message;
  };
  for (const Row& row :
       {Row{{{std::string(60000, 'x'), 0}}, 0, "Input for a job without stdin"},
        Row{{{"a", 1}, {"b", 0}}, 4096, "Input after its end"},
        Row{{{std::string(60000, 'x'), 0}}, 4096, "60000 bytes of Input for a window of 4096"}}) {
    CAPTURE(row.message);
    const wire::JobSpec job = make_input_job({"sleep", "100"}, row.window);
    RunnerClient client;
    begin(client, job);
    REQUIRE(client.expect<wire::RankStarted>());
    for (const wire::Input& input : row.inputs) client.send(input);
    const auto error = client.expect<wire::RunnerError>();
    REQUIRE(error);
    CHECK(error->message == row.message);
    CHECK(remains(job) == "");
  }
  wire::JobSpec two = make_job({"cat"}, 2);
  two.input_window = 4096;
  CHECK(runner::check_job(two).error().message ==
        "job: input_window: stdin is for one rank, not 2");
  wire::JobSpec large = make_input_job({"cat"}, (16u << 20) + 1);
  CHECK(!runner::check_job(large));
}
