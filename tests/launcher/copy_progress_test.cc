// The lines on stderr that tell how far `sortie push`, `sortie pull` and staging are.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

TEST_CASE("push and pull show how far they are, and push the time that reading takes") {
  using namespace std::chrono_literals;
  const test::ScopedTempDir dir;
  test::write_text(dir / "large", "");
  std::filesystem::resize_file(dir / "large", 200ull << 30);  // takes no space, but minutes to read
  const auto copy = [&](const std::string& verb) {
    return testing::Child(
        {SORTIE_BINARY, verb, "--hosts", "localhost", dir.str("large"), dir.str(verb + "-to")},
        dir.str(verb));
  };
  const auto shown = [&](const std::string& verb) { return test::read_text(dir / verb); };
  testing::Child push = copy("push"), pull = copy("pull");
  const auto end = std::chrono::steady_clock::now() + test::patient(60s);
  while (std::chrono::steady_clock::now() < end && (shown("push").empty() || shown("pull").empty()))
    std::this_thread::sleep_for(50ms);
  CHECK(push.running());
  CHECK(pull.running());
  const std::string text = shown("push");
  CHECK_MESSAGE(text.starts_with("reading files: "), text);
  CHECK_MESSAGE(test::has(text, " of 200.0 GiB, "), text);
  CHECK_MESSAGE(test::has(text, "/s, ETA "), text);
  CHECK_MESSAGE(shown("pull").starts_with("pull from 1 host: "), shown("pull"));
}

TEST_CASE("a run shows how far the reading of files to stage is") {
  using namespace std::chrono_literals;
  const test::ScopedTempDir dir;
  test::write_text(dir / "large", "");
  std::filesystem::resize_file(dir / "large", 200ull << 30);  // takes no space, but minutes to read
  testing::Child run({SORTIE_BINARY, "run", "--hosts", "localhost", "--set",
                      "runner.stage=[\"" + dir.str("large") + "\"]", "--set",
                      "logger.log_dir=" + dir.str("state"), "--", "true"},
                     dir.str("shown"));
  const auto shown = [&] { return test::read_text(dir / "shown"); };
  const auto end = std::chrono::steady_clock::now() + test::patient(60s);
  while (std::chrono::steady_clock::now() < end && !test::has(shown(), "ETA"))
    std::this_thread::sleep_for(50ms);
  CHECK(run.running());
  const std::string text = shown();
  CHECK_MESSAGE(test::has(text, "runner.stage: reading files: "), text);
  CHECK_MESSAGE(test::has(text, " of 200.0 GiB, "), text);
}

}  // namespace
}  // namespace sortie::launcher
