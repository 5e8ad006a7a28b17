// The lines on stderr that tell how far a verb is that takes longer than two seconds.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace {

/// 40 MB of 200,000 different words.
std::string many_words() {
  std::string text;
  std::uint64_t state = 1;
  while (text.size() < 40'000'000) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::uint64_t word = (state >> 33) % 200'000 + 12'345'678;
    for (; word > 0; word /= 21) text += static_cast<char>('a' + word % 21);
    text += state % 8 == 0 ? '\n' : ' ';
  }
  return text;
}

}  // namespace

TEST_CASE("eval and train-tokenizer show how far they are and the time that is left") {
  using namespace std::chrono_literals;
  using sortie::testing::Child;
  const sortie::test::ScopedTempDir dir;
  sortie::test::write_text(dir / "text", many_words());
  sortie::test::write_text(
      dir / "job.toml",
      fmt::format("[topology]\nglobal_batch_size = 1\n[trainer]\ntrain_iterations = 1\n"
                  "threads = 1\nsave_dir = \"{0}/saved\"\n[model]\nvocab_size = 256\n"
                  "hidden_size = 16\nnum_layers = 1\nnum_attention_heads = 2\n"
                  "sequence_length = 16\nprecision = \"f32\"\n[data]\n"
                  "data_prefixes = [\"{0}/tokens\"]\n",
                  dir.path().string()));
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"data", "build", "-o", dir.str("tokens"), dir.str("text")},
           {"train", "--config", dir.str("job.toml")}}) {
    std::vector<std::string> argv = {SORTIE_TRAIN_BINARY};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const auto done = sortie::testing::run(argv);
    REQUIRE_MESSAGE(done.code == 0, done.output);
  }
  struct Verb {
    std::string begin, unit;
    std::vector<std::string> arguments;
  };
  const std::vector<Verb> verbs = {
      {"eval: scoring text  ",
       " samples  ",
       {"eval", dir.str("saved"), "--data", dir.str("tokens"), "--batch", "1"}},
      {"data train-tokenizer: ",
       "",
       {"data", "train-tokenizer", "-o", dir.str("t.model"), dir.str("text")}},
      {"data train-tokenizer: ",
       "",
       {"data", "train-tokenizer", "--type", "bpe", "--min-count", "1", "--vocab-size", "1000000",
        "-o", dir.str("t.json"), dir.str("text")}}};
  std::vector<Child> children;
  const auto log = [&](std::size_t index) { return dir.str(fmt::format("log{}", index)); };
  for (std::size_t i = 0; i < verbs.size(); ++i) {
    std::vector<std::string> argv = {SORTIE_TRAIN_BINARY};
    argv.insert(argv.end(), verbs[i].arguments.begin(), verbs[i].arguments.end());
    children.emplace_back(argv, log(i));
  }
  const auto end = std::chrono::steady_clock::now() + sortie::test::patient(60s);
  for (std::size_t i = 0; i < verbs.size(); ++i) {
    std::string text;
    while (std::chrono::steady_clock::now() < end && !sortie::test::has(text, "\n")) {
      std::this_thread::sleep_for(50ms);
      text = sortie::test::read_text(log(i));
    }
    children[i].stop();
    CHECK_MESSAGE(text.starts_with(verbs[i].begin), text);
    CHECK_MESSAGE(sortie::test::has(text, verbs[i].unit), text);
  }
}
