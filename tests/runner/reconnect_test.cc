// A runner that holds its ranks, and new connections of its launcher: which of them it obeys, and
// that output and events continue at the counts that the launcher sends.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <memory>

#include "tests/runner/checked_runner.h"
#include "tests/support/runner_client.h"

using namespace sortie;
using namespace sortie::test;

namespace {

/// Writes numbers to stdout, and each also as an event.
wire::JobSpec counting_job() {
  wire::JobSpec job =
      make_job({"/usr/bin/python3", "-ISc",
                "import os, socket, time\n"
                "link = socket.socket(socket.AF_UNIX); link.connect(os.environ['SORTIE_SOCKET'])\n"
                "for n in range(120):\n"
                "    os.write(1, b'%d\\n' % n); link.sendall(b'{\"type\":\"n\",\"n\":%d}\\n' % n); "
                "time.sleep(0.02)\n"});
  job.hold_ms = 20000;
  job.heartbeat_timeout_ms = 5000;
  return job;
}

wire::Adopt order_for(const wire::JobSpec& job, std::uint32_t epoch, std::uint32_t link,
                      std::uint64_t bytes, std::uint64_t events) {
  wire::Adopt order;
  order.run_id = job.run_id;
  order.attempt = job.attempt;
  order.node_rank = job.node_rank;
  order.epoch = epoch;
  order.link = link;
  order.events = events;
  order.log_sizes = {{0, wire::Stream::out, bytes}};
  return order;
}

std::string numbers(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += std::to_string(i) + "\n";
  return text;
}

std::size_t lines_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

}  // namespace

namespace {

/// The entry of the run among those that a check finds without a launcher; null if it is none.
nlohmann::json found_without_launcher(const wire::JobSpec& job) {
  CheckedRunner runner;
  const nlohmann::json host = runner.part_of(look(), "host");
  for (const nlohmann::json& run : host["run_folders"]["without_launcher"])
    if (run["run"] == job.run_id) return run;
  return nullptr;
}

}  // namespace

TEST_CASE("a check finds a run whose ranks are held, until a launcher has adopted it") {
  const ScopedTempDir dir;
  wire::JobSpec job = make_job(
      {"/bin/sh", "-c", "echo begun; until [ -e \"$0\" ]; do sleep 0.05; done", dir.str("gate")});
  job.hold_ms = 20000;
  RunnerClient first;
  REQUIRE(first.start(job));
  REQUIRE(first.wait_until([&] { return !first.out[0].empty(); }));
  CHECK(found_without_launcher(job).is_null());
  first.close_input();
  first.close_output();
  nlohmann::json found;
  for (int tries = 0; tries < 100 && found.is_null(); ++tries) found = found_without_launcher(job);
  REQUIRE(found.is_object());
  CHECK(found["seconds_left"].get<std::uint64_t>() <= 20);
  RunnerClient second;
  second.send(wire::Hello{wire::kProtocolVersion, "build"});
  REQUIRE(second.expect<wire::Hello>());
  second.send(order_for(job, 2, 1, first.out[0].size(), 0));
  REQUIRE(second.expect<wire::Adopted>());
  found = true;
  for (int tries = 0; tries < 100 && !found.is_null(); ++tries) found = found_without_launcher(job);
  CHECK(found.is_null());
  write_text(dir / "gate", "");
  REQUIRE(second.wait_finished());
  second.send(wire::Goodbye{});
  CHECK(first.wait_exit()->success());
}

TEST_CASE("the launcher's connection breaks: over the next one output and events go on") {
  const wire::JobSpec job = counting_job();
  RunnerClient first;
  first.send_credit = false;  // nothing is acknowledged: the runner keeps all of it
  REQUIRE(first.start(job));
  REQUIRE(
      first.wait_until([&] { return lines_of(first.out[0]) > 3 && first.events[0].size() > 3; }));
  first.close_input();
  first.close_output();

  // The launcher has kept half of what it received, as if the rest had arrived after its connection
  // broke.
  const std::string kept = first.out[0].substr(0, first.out[0].size() / 2);
  const std::size_t events = first.events[0].size() / 2;
  RunnerClient second;
  second.send(wire::Hello{wire::kProtocolVersion, "build"});
  REQUIRE(second.expect<wire::Hello>());
  second.send(order_for(job, 1, 2, kept.size(), events));
  const auto adopted = second.expect<wire::Adopted>();
  REQUIRE(adopted);
  CHECK(adopted->epoch == 1);
  CHECK(adopted->link == 2);
  CHECK(adopted->events == events);
  REQUIRE(second.wait_finished());
  CHECK(second.exited.at(0).code == 0);
  CHECK(kept + second.out[0] == numbers(120));
  std::vector<std::string> all(first.events[0].begin(),
                               first.events[0].begin() + static_cast<std::ptrdiff_t>(events));
  all.insert(all.end(), second.events[0].begin(), second.events[0].end());
  REQUIRE(all.size() == 120);
  for (std::size_t i = 0; i < all.size(); ++i)
    CHECK(all[i] == "{\"type\":\"n\",\"n\":" + std::to_string(i) + "}");
  second.send(wire::Goodbye{});
  CHECK(first.wait_exit()->success());
  CHECK(remains(job) == "");
}

TEST_CASE("of several connections the holder obeys the highest epoch, then the highest link") {
  const wire::JobSpec job = counting_job();
  RunnerClient first;
  REQUIRE(first.start(job));
  REQUIRE(first.expect<wire::RankStarted>());
  struct Row {
    std::uint32_t epoch, link;
    const char* refusal;  // nullptr: obeyed
  };
  // The first connection is never closed here: a launcher may notice its loss before the runner
  // does.
  const Row rows[] = {
      {1, 1, "this launcher has a later connection (link 1 is not above 1)"}, {1, 3, nullptr},
      {1, 2, "this launcher has a later connection (link 2 is not above 3)"}, {2, 1, nullptr},
      {1, 9, "another launcher has adopted this run (epoch 1 is below 2)"},   {2, 2, nullptr}};
  std::vector<std::unique_ptr<RunnerClient>> clients;
  for (const Row& row : rows) {
    CAPTURE(row.epoch);
    CAPTURE(row.link);
    RunnerClient& client = *clients.emplace_back(std::make_unique<RunnerClient>());
    client.send(wire::Hello{wire::kProtocolVersion, "build"});
    REQUIRE(client.expect<wire::Hello>());
    client.send(order_for(job, row.epoch, row.link, 0, 0));
    if (row.refusal) {
      const auto error = client.expect<wire::RunnerError>();
      REQUIRE(error);
      CHECK(error->code == "runner");
      CHECK(error->message == row.refusal);
    } else {
      CHECK(client.expect<wire::Adopted>());
    }
  }
  RunnerClient& last = *clients.back();
  last.send(wire::Stop{0, "enough"});
  REQUIRE(last.wait_finished());
  last.send(wire::Goodbye{});
  CHECK(first.wait_exit());
  CHECK(remains(job) == "");
}

TEST_CASE("a launcher that adopts knows the host's time before it hears of ranks that have ended") {
  wire::JobSpec job = make_job({public_helper(), "by-rank"}, 2);
  job.hold_ms = 20000;
  RunnerClient first;
  REQUIRE(first.start(job));
  REQUIRE(first.expect<wire::RankExited>());
  first.close_input();
  first.close_output();
  RunnerClient second;
  second.send(wire::Hello{wire::kProtocolVersion, "build"});
  REQUIRE(second.expect<wire::Hello>());
  second.send(order_for(job, 2, 1, 0, 0));
  REQUIRE(second.expect<wire::Adopted>());
  REQUIRE(second.expect<wire::RankExited>());
  CHECK(second.beats_before_exit.begin()->second == 1);
  CHECK(second.last_beat->time_boot_ms >= second.exited.begin()->second.time_boot_ms);
  second.send(wire::Goodbye{});
  CHECK(first.wait_exit());
}

TEST_CASE("whoever asks for a run that nobody holds is told so") {
  wire::JobSpec job = counting_job();
  RunnerClient client;
  client.send(wire::Hello{wire::kProtocolVersion, "build"});
  REQUIRE(client.expect<wire::Hello>());
  client.send(order_for(job, 1, 2, 0, 0));
  const auto error = client.expect<wire::RunnerError>();
  REQUIRE(error);
  CHECK(error->code == "lost");
}
