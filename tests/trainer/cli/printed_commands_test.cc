// Commands that `sortie-train` prints to be copied. They are read from its output and called, with
// paths that have a blank.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace {

using sortie::test::has;
using sortie::testing::Finished;

Finished sortie_train(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SORTIE_TRAIN_BINARY);
  return sortie::testing::run(arguments);
}

/// Calls the last command between backticks whose words contain `verb`, by a shell.
Finished call_printed(const std::string& output, const std::string& verb) {
  const std::size_t at = output.rfind(verb);
  REQUIRE_MESSAGE(at != std::string::npos, output);
  const std::size_t begin = output.rfind('`', at) + 1, end = output.find('`', at);
  REQUIRE_MESSAGE(end != std::string::npos, output);
  const std::string command = output.substr(begin, end - begin);
  CAPTURE(command);
  return sortie::testing::run({"/bin/sh", "-c", command});
}

constexpr const char* kTinyConfig = R"([topology]
global_batch_size = 2
[trainer]
train_iterations = 2
threads = 1
save_dir = "%/run one"
[model]
vocab_size = 256
hidden_size = 16
num_layers = 1
num_attention_heads = 2
sequence_length = 16
precision = "f32"
[data]
data_prefixes = ["%/tokens"]
)";

/// The config with `from` replaced by `to`.
std::string tiny_config(const std::string& folder, const std::string& from, const std::string& to) {
  std::string config = kTinyConfig;
  const std::size_t found = config.find(from);
  REQUIRE(found != std::string::npos);
  config.replace(found, from.size(), to);
  for (std::size_t place; (place = config.find('%')) != std::string::npos;)
    config.replace(place, 1, folder);
  return config;
}

}  // namespace

TEST_CASE("printed commands of sortie-train work with paths that have a blank") {
  const sortie::test::ScopedTempDir dir;
  const std::string saved = dir.str("run one"), none = dir.str("none yet");
  const auto trained_with = [&](const std::string& from, const std::string& to) {
    sortie::test::write_text(dir / "my job.toml", tiny_config(dir.path(), from, to));
    return sortie_train({"train", "--config", dir.str("my job.toml")});
  };
  sortie::test::write_text(dir / "text", std::string(4000, 'x'));
  const Finished built = sortie_train({"data", "build", "-o", dir.str("tokens"), dir.str("text")});
  REQUIRE_MESSAGE(built.code == 0, built.output);
  const Finished trained = trained_with("threads = 1", "threads = 1");
  REQUIRE_MESSAGE(trained.code == 0, trained.output);

  REQUIRE(sortie_train({"export", saved, dir.str("hf one")}).code == 0);
  const Finished imported = sortie_train({"import", dir.str("hf one"), dir.str("imported one")});
  REQUIRE_MESSAGE(imported.code == 0, imported.output);
  const Finished model = call_printed(imported.output, "checkpoint model");
  CHECK_MESSAGE(model.code == 0, model.output);
  CHECK_MESSAGE(has(model.output, "[model]\n"), model.output);

  // Another model.
  const Finished other = trained_with("num_layers = 1", "num_layers = 2");
  CHECK(other.code == 2);
  const Finished before = call_printed(other.output, "checkpoint model");
  CHECK_MESSAGE(before.code == 0, before.output);
  CHECK_MESSAGE(has(before.output, "[model]\n"), before.output);

  // Folders without a checkpoint.
  std::filesystem::create_directory(none);
  const Finished listed = sortie_train({"checkpoint", "ls", none});
  CHECK_MESSAGE(has(listed.output, none), listed.output);
  for (const Finished& refused :
       {sortie_train({"generate", "--checkpoint", none, "--prompt", "x"}),
        trained_with("run one\"", "run two\"\nload_dir = \"" + none + "\"")}) {
    CHECK_MESSAGE(refused.code == 8, refused.output);
    const Finished again = call_printed(refused.output, "checkpoint ls");
    CHECK(again.code == listed.code);
    CHECK(again.output == listed.output);
  }
}
