// More output than a terminal accepts: which lines are shown, that the others are counted, and that
// no rank is starved.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <sstream>
#include <string>
#include <thread>

#include "common/base/fd.h"
#include "launcher/console/console.h"

namespace sortie::launcher {

TEST_CASE("a rank that writes more than the terminal takes leaves room for the lines of others") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  Console::Style style;
  style.out = style.err = write_end.get();
  style.queue_bytes = 1 << 20;
  std::string piece;
  for (int i = 0; i < 1000; ++i) piece += fmt::format("{:063}\n", i);
  std::string shown;
  std::size_t dropped = 0;
  std::thread reader;
  {
    Console console(style);
    std::size_t at = 0;  // pieces that end inside of lines, as in reality
    for (int i = 0; i < 300; ++i) {
      const std::string part = (piece + piece).substr(at, 60001);
      at = (at + part.size()) % piece.size();
      console.output(0, "h", wire::Stream::out, part);
    }
    for (int i = 0; i < 100; ++i)
      console.output(1, "h", wire::Stream::out, fmt::format("tick {}\n", i));
    dropped = console.dropped_lines();
    Console site(console, "eu", false);
    site.output(2, "h", wire::Stream::out, piece);
    CHECK(console.dropped_lines() > dropped);  // a run reports the lines of its sites
    dropped = console.dropped_lines();
    write_end.reset();
    reader = std::thread([&] {
      char buffer[1 << 16];
      for (ssize_t n = 0; (n = ::read(read_end.get(), buffer, sizeof buffer)) > 0;)
        shown.append(buffer, static_cast<std::size_t>(n));
    });
  }
  reader.join();
  std::size_t whole = 0, ticks = 0;
  std::istringstream lines(shown);
  for (std::string line; std::getline(lines, line);) {
    const bool tick = line == fmt::format("[1 h] tick {}", ticks);
    ticks += tick;
    whole += line.starts_with("[0 h] 0") && line.size() == 69;
    CHECK((tick || (line.starts_with("[0 h] 0") && line.size() == 69)));
  }
  CHECK(ticks == 100);
  CHECK(dropped > 200 * 900);
  CHECK(whole + dropped == 300u * 60001 / 64 + 1000);  // each line is either shown or counted
}

}  // namespace sortie::launcher
