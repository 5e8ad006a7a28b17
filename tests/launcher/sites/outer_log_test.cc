// Which lines of outer.log count.
#include "launcher/sites/outer_log.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "launcher/sites/coordinator.h"

namespace sortie::launcher {
namespace {

const std::string kLogBegin =
    "{\"by\":1,\"do\":\"takes\",\"read\":0}\n{\"by\":1,\"do\":\"left\",\"site\":\"a\"}\n";
const std::string kLogNext = "{\"by\":2,\"do\":\"left\",\"site\":\"c\"}\n";

std::string takes_log(std::size_t read) {
  return fmt::format("{{\"by\":2,\"do\":\"takes\",\"read\":{}}}\n", read);
}

/// Without the empty lines.
std::string counting(const std::string& text) {
  const auto lines = lines_that_count(text);
  REQUIRE(lines);
  CHECK(std::ranges::count(*lines, '\n') == std::ranges::count(text, '\n'));
  std::string out;
  for (const char c : *lines)
    if (c != '\n' || (!out.empty() && out.back() != '\n')) out += c;
  return out;
}

TEST_CASE("sites: what a supervisor that was replaced still writes to the log counts for nothing") {
  const std::string late = "{\"by\":1,\"do\":\"left\",\"site\":\"b\"}\n";
  const std::string takes = takes_log(kLogBegin.size());
  const std::string wanted = "{\"by\":1,\"do\":\"left\",\"site\":\"a\"}\n" + kLogNext;
  CHECK(counting(kLogBegin + takes + kLogNext) == wanted);
  CHECK(counting(kLogBegin + late + takes + kLogNext) == wanted);
  CHECK(counting(kLogBegin + takes + late + kLogNext) == wanted);
  CHECK(counting(kLogBegin + "{\"by\":1,\"do\":\"le\n" + takes + kLogNext) == wanted);
}

TEST_CASE("sites: a damaged line of the log is dropped at the end, and else an error") {
  const std::string wanted = "{\"by\":1,\"do\":\"left\",\"site\":\"a\"}\n";
  for (const std::string line :
       {"7\n", "[]\n", "{\"by\":\"x\"}\n", "{\"by\":-1,\"do\":\"left\"}\n", "\xff\n",
        "{\"by\":1,\"do\":\"takes\",\"read\":[]}\n", "{\"by\":1,\"do\":\"le"}) {
    CAPTURE(line);
    CHECK(counting(kLogBegin + line) == wanted);
    if (line.back() != '\n') continue;
    CHECK(counting(kLogBegin + line + line + takes_log(0) + kLogNext) == kLogNext);
    const auto lines = lines_that_count(kLogBegin + line + line + kLogNext);
    REQUIRE_FALSE(lines);
    CHECK(lines.error().code == ErrorCode::data);
    CHECK(lines.error().message.find("line 3 is damaged; ") == 0);
  }
}

TEST_CASE("sites: a line of the log that lacks something is named by its number in the file") {
  OuterCoordinator coordinator({.sites = {"a", "c"}, .outer = {}}, [] { return std::string(); });
  const auto lines = lines_that_count(kLogBegin + takes_log(kLogBegin.size()) + kLogNext +
                                      "{\"by\":2,\"do\":\"order\"}\n");
  REQUIRE(lines);
  const Result<> read = coordinator.restore(*lines);
  REQUIRE_FALSE(read);
  CHECK(read.error().message.find("line 5 is damaged (") == 0);
}

}  // namespace
}  // namespace sortie::launcher
