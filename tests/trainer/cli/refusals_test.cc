// Tests of how the verbs of sortie-train end when the machine lacks something, or an option can not
// be met.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/without_call.h"

namespace {

using sortie::test::has;
using sortie::testing::Finished;

namespace fs = std::filesystem;

Finished end_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SORTIE_TRAIN_BINARY);
  return sortie::testing::run(arguments);
}

}  // namespace

TEST_CASE("lack of memory is an error of every verb, with the exit code that training has") {
  // A sanitizer reports such a request instead of refusing it, unless it is told to.
  const sortie::test::ScopedVariable address("ASAN_OPTIONS", "allocator_may_return_null=1");
  const sortie::test::ScopedVariable threads("TSAN_OPTIONS", "allocator_may_return_null=1");
  const Finished refused = end_of({"bench", "copy", "--bytes", "1000TB"});
  CHECK(refused.code == 3);
  CHECK_MESSAGE(has(refused.output, "sortie-train: out of memory: "), refused.output);
  CHECK(has(refused.output, "raise the limit of memory if there is one (ulimit -v"));
}

TEST_CASE("a verb whose threads can not be started leaves no temporary files") {
  const sortie::test::ScopedTempDir dir;
  sortie::test::write_text(dir / "text", "some text\n");
  Finished refused;
  sortie::test::without_call(
      SYS_clone3,
      [&] {
        refused = end_of({"data", "build", "-q", "-o", dir.str("b"), dir.str("text")});
      },
      EAGAIN);
  CHECK(refused.code == 3);
  CHECK_MESSAGE(has(refused.output, "sortie-train: a thread could not be started: "),
                refused.output);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir.path())) ++files;
  CHECK(files == 1);  // the text
}

TEST_CASE("a sentencepiece vocabulary that is too small is named with the least one") {
  const sortie::test::ScopedTempDir dir;
  std::string text;
  for (int i = 0; i < 60; ++i) text += static_cast<char>('A' + i);
  sortie::test::write_text(dir / "text", text + " " + text + "\n");
  const auto make = [&](const std::string& size) {
    return end_of(
        {"data", "train-tokenizer", "--vocab-size", size, "-o", dir.str("m"), dir.str("text")});
  };
  const Finished refused = make("280");
  CHECK(refused.code == 2);
  const std::string before = "take ";
  const std::size_t at = refused.output.find(before);
  REQUIRE_MESSAGE(at != std::string::npos, refused.output);
  CHECK_FALSE(has(refused.output, "character_coverage"));
  const Finished made = make(std::to_string(std::stoi(refused.output.substr(at + before.size()))));
  CHECK_MESSAGE(made.code == 0, made.output);
}
