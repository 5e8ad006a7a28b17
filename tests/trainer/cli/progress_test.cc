// Tests of the progress of long verbs: the rate, the remaining time, and when a line is shown.
#include "trainer/cli/progress.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "common/base/fd.h"
#include "tests/support/patience.h"
#include "tests/support/text.h"
#include "trainer/cli/output_options.h"

namespace sortie::trainer {
namespace {

using test::has;
using namespace std::chrono_literals;

std::string after(ProgressMeter& meter, double seconds, WorkProgress work) {
  meter.update(work, seconds);
  return meter.text(seconds);
}

/// Returns what a ProgressLine writes to `writer` while work is reported every 50 ms. This lasts
/// for `time` and, if `awaited`, until `reader` has output.
std::string shown(int reader, int writer, std::chrono::milliseconds time, bool awaited = false) {
  std::FILE* out = ::fdopen(writer, "w");
  REQUIRE(out != nullptr);
  {
    ProgressLine line("data build", out);
    const auto end = std::chrono::steady_clock::now() + time;
    const auto last = end + sortie::test::patient(30s);
    const auto goes_on = [&] {
      pollfd polled{reader, POLLIN, 0};
      const auto now = std::chrono::steady_clock::now();
      return now < end || (awaited && now < last && ::poll(&polled, 1, 0) == 0);
    };
    for (std::uint64_t done = 0; goes_on(); done += 50'000'000) {
      line.update({"tokenizing", done, 10'000'000'000});
      std::this_thread::sleep_for(50ms);
    }
  }
  std::fclose(out);
  // A terminal delivers bytes with a delay, so this reads to the end, which a terminal reports as
  // EIO.
  std::string text, piece(65536, '\0');
  for (ssize_t size; (size = ::read(reader, piece.data(), piece.size())) > 0;)
    text.append(piece, 0, static_cast<std::size_t>(size));
  return text;
}

}  // namespace

TEST_CASE("the next piece of a stage has a rate of its own") {
  ProgressMeter meter;
  after(meter, 0.0, {"reading", 0, 1'000'000'000});
  after(meter, 10.0, {"reading", 1'000'000'000, 1'000'000'000});
  after(meter, 10.1, {"reading", 0, 100'000'000});
  const std::string text = after(meter, 11.1, {"reading", 10'000'000, 100'000'000});
  CHECK_MESSAGE(has(text, "10.0 MB/s  ETA 0:09"), text);
}

TEST_CASE("a line has the share, the rate and the time that is left") {
  ProgressMeter meter;
  for (int second = 0; second <= 20; ++second)
    meter.update({"tokenizing", static_cast<std::uint64_t>(second) * 10'000'000, 1'000'000'000},
                 second);
  CHECK(meter.text(20) == "tokenizing  20 %  200.0 MB of 1.0 GB  10.0 MB/s  ETA 1:20");
  // The remaining time decreases without a report.
  CHECK(has(meter.text(30), "ETA 1:10"));
  // After the speed halves, the rate follows over some seconds rather than at once.
  const std::string soon = after(meter, 21, {"tokenizing", 205'000'000, 1'000'000'000});
  CHECK(has(soon, "  9.1 MB/s"));
  for (int second = 22; second <= 60; ++second)
    meter.update({"tokenizing", 200'000'000 + static_cast<std::uint64_t>(second - 20) * 5'000'000,
                  1'000'000'000},
                 second);
  CHECK(has(meter.text(60), "  5.0 MB/s  ETA 2:00"));
}

TEST_CASE("things that are counted, a new stage, and work whose end is not known") {
  ProgressMeter meter;
  meter.update({"scoring text", 0, 64, "samples"}, 0);
  CHECK(after(meter, 4, {"scoring text", 8, 64, "samples"}) ==
        "scoring text  12 %  8 of 64 samples  2/s  ETA 0:28");
  CHECK(after(meter, 5, {"counting words"}) == "counting words  0:00 so far");
  CHECK(meter.text(67) == "counting words  1:02 so far");
  // The first report may count work that was done before.
  CHECK(after(meter, 70, {"writing", 5'000'000, 10'000'000}) == "writing  50 %  5.0 MB of 10.0 MB");
}

TEST_CASE("a pipe gets a plain line after two seconds, and short work nothing") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const Fd reader(ends[0]);
  const std::string text = shown(reader.get(), ends[1], 2100ms, true);
  CHECK(text.starts_with("data build: tokenizing  "));
  CHECK(has(text, "/s  ETA "));
  CHECK(text.find('\r') == std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  REQUIRE(::pipe(ends) == 0);
  const Fd other(ends[0]);
  CHECK(shown(other.get(), ends[1], 1ms) == "");
}

TEST_CASE("with --quiet nothing is shown, however long it lasts") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const Fd reader(ends[0]);
  output_options().quiet = true;
  const std::string text = shown(reader.get(), ends[1], 2600ms);
  output_options().quiet = false;
  CHECK(text == "");
}

TEST_CASE("on a terminal one line is rewritten, and taken away at the end") {
  int master = -1, slave = -1;
  REQUIRE(::openpty(&master, &slave, nullptr, nullptr, nullptr) == 0);
  const Fd reader(master);
  const std::string text = shown(master, slave, 2100ms, true);
  CHECK(text.starts_with("\rtokenizing  "));
  CHECK(text.find('\n') == std::string::npos);
  CHECK(text.ends_with("\r\x1b[K"));
}

}  // namespace sortie::trainer
