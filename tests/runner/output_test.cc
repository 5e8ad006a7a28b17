// Output of ranks: complete, in order, fair, and with bounded memory, however much ranks print and
// however slowly launchers read.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "tests/support/runner_client.h"
#include "tests/support/scoped_variable.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr long kMostGrowth = 16 * 1024;  // KiB
/// Name of AddressSanitizer's options: by default it keeps up to 256 MiB of freed memory.
constexpr const char* kQuarantine = "ASAN_OPTIONS";

/// Peak resident memory in KiB.
long peak_memory(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stol(line.substr(6));
  return -1;
}

/// Offset of the first byte that differs from the helper's pattern; the size of `text` if none
/// does.
std::size_t first_wrong_byte(const std::string& text) {
  for (std::size_t at = 0; at < text.size(); at += 16) {
    const std::string expected = fmt::format("{:015x}\n", at);
    if (text.compare(at, 16, expected, 0, std::min<std::size_t>(16, text.size() - at)) != 0)
      return at;
  }
  return text.size();
}

}  // namespace

TEST_CASE("every byte value of both streams arrives") {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  RunnerClient client;
  REQUIRE(client.run(make_job({kHelper, "binary"})));
  CHECK(client.out[0] == all);
  CHECK(client.err[0] == all);
}

TEST_CASE("100 MB to a slow launcher: all bytes in order, the runner's memory bounded") {
  constexpr std::size_t kBytes = 100'000'000;
  wire::JobSpec job = make_job({kHelper, "pattern", std::to_string(kBytes)});
  job.output_window = 1u << 20;
  const ScopedVariable no_quarantine(kQuarantine, "quarantine_size_mb=1");
  RunnerClient client;
  client.send_credit = false;
  REQUIRE(client.start(job));
  const long before = peak_memory(client.pid());
  // Without credit the window limits the output.
  CHECK(client.wait_until([&] { return client.output_bytes >= job.output_window / 4; }));
  client.pump(milliseconds(500));
  CHECK(client.output_bytes <= job.output_window);
  std::uint64_t acknowledged = 0;
  long peak = 0;
  while (!client.finished && !client.end_of_stream) {
    const std::uint64_t received = client.output_bytes;
    if (received == acknowledged) {
      client.pump(milliseconds(1));
      continue;
    }
    CHECK(received - acknowledged <= job.output_window);
    client.send(wire::OutputCredit{received - acknowledged});
    acknowledged = received;
    client.pump(milliseconds(1));
    peak = std::max(peak, peak_memory(client.pid()));
  }
  const std::size_t total = (kBytes + 15) / 16 * 16;
  CHECK(client.out[0].size() == total);
  CHECK(first_wrong_byte(client.out[0]) == total);
  CHECK(client.exited.at(0).code == 0);
  MESSAGE("runner's peak memory: " << before << " KiB, then " << peak << " KiB");
  CHECK(peak - before < kMostGrowth);
}

TEST_CASE("a launcher that reads nothing at all does not make the runner grow") {
  wire::JobSpec job = make_job({kHelper, "chatty-or-quiet"}, 3);
  job.output_window = 1u << 30;  // only the pipe limits the output, not the credit
  const ScopedVariable no_quarantine(kQuarantine, "quarantine_size_mb=1");
  RunnerClient client;
  REQUIRE(client.start(job));
  const long before = peak_memory(client.pid());
  const auto beat = [&] {
    client.send(wire::Heartbeat{});
    ::usleep(50000);
  };
  // The runner writes until the launcher's pipe is full, then no more.
  const auto until = steady_clock::now() + RunnerClient::kPatience;
  std::size_t waiting = 0;
  do {
    waiting = client.unread();
    beat();
  } while ((client.unread() != waiting || waiting < 32u << 10) && steady_clock::now() < until);
  REQUIRE(waiting >= 32u << 10);
  for (int i = 0; i < 20; ++i) beat();
  const long peak = peak_memory(client.pid());
  MESSAGE("runner's peak memory: " << before << " KiB, then " << peak << " KiB");
  CHECK(peak - before < kMostGrowth);
  client.send(wire::Stop{0, "test"});
  CHECK(client.wait_finished());
}

TEST_CASE("beside a chatty rank a quiet one's line arrives at once") {
  wire::JobSpec job = make_job({kHelper, "chatty-or-quiet"}, 3);
  RunnerClient client;
  const auto begin = steady_clock::now();
  REQUIRE(client.start(job));
  // Rank 0 never stops writing: without fair scheduling the quiet lines would never arrive.
  CHECK(client.wait_until([&] {
    return !client.out[1].empty() && !client.out[2].empty() && client.out[0].size() > (1u << 20);
  }));
  CHECK(client.out[1] == "quiet line\n");
  CHECK(client.out[2] == "quiet line\n");
  const double waited = std::chrono::duration<double>(steady_clock::now() - begin).count();
  MESSAGE("quiet lines after " << waited << " s (written at 0.3 s), chatty rank by then "
                               << (client.out[0].size() >> 20) << " MiB");
  client.send(wire::Stop{0, "test"});
  REQUIRE(client.wait_finished());
}

TEST_CASE("without credit a chatty rank leaves room for a quiet one") {
  wire::JobSpec job = make_job({kHelper, "chatty-or-quiet"}, 3);
  RunnerClient client;
  client.send_credit = false;
  REQUIRE(client.start(job));
  CHECK(client.wait_until([&] {
    return !client.out[1].empty() && !client.out[2].empty() &&
           client.out[0].size() >= job.output_window / 4;
  }));
  client.pump(milliseconds(500));
  CHECK(client.out[0].size() <= job.output_window / 2);
  CHECK(client.out[1] == "quiet line\n");
  CHECK(client.out[2] == "quiet line\n");
  client.send(wire::Stop{0, "test"});
  client.pump(milliseconds(500));
  client.send_credit = true;
  client.send(wire::OutputCredit{client.output_bytes});
  REQUIRE(client.wait_finished());
}

TEST_CASE("a rank's end is told after its last byte, beside a rank that never stops writing") {
  // Rank 0 writes forever. The others write 1 MB and exit.
  wire::JobSpec job =
      make_job({"sh", "-c",
                "if [ $RANK = 0 ]; then exec " + kHelper + " pattern 100000000000; else exec " +
                    kHelper + " pattern 1000000; fi"},
               4);
  RunnerClient client;
  REQUIRE(client.start(job));
  for (int i = 0; i < 3; ++i) REQUIRE(client.expect<wire::RankExited>());
  for (std::uint32_t rank = 1; rank < 4; ++rank) {
    CHECK(client.out[rank].size() == 1'000'000);
    CHECK(first_wrong_byte(client.out[rank]) == 1'000'000);
  }
  client.send(wire::Stop{0, "test"});
  REQUIRE(client.wait_finished());
  CHECK(client.output_after_exit == 0);
}

TEST_CASE("a surviving grandchild that keeps the pipe open does not hold up the end") {
  wire::JobSpec job = make_job({"sh", "-c", "setsid sleep 60 & echo out; echo err >&2"});
  RunnerClient client;
  REQUIRE(client.run(job));  // its timeout is shorter than the sleep
  CHECK(client.out[0] == "out\n");
  CHECK(client.err[0] == "err\n");
}

TEST_CASE("a rank that closes its streams lives on") {
  wire::JobSpec job = make_job({"sh", "-c", "echo up; exec >&- 2>&-; sleep 0.5; exit 4"});
  RunnerClient client;
  REQUIRE(client.run(job));
  CHECK(client.exited.at(0).code == 4);
}
