// Tests of the command line of the built `sortie-train`: every verb follows the conventions of
// `sortie`.
#include <filesystem>
#include <set>

#include "tests/launcher/command_line.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;
using test::after;
using test::all_verbs;
using test::has;
using test::holds;
using testing::Finished;

/// SORTIE_BINARY is sortie-train here.
Finished train(std::vector<std::string> arguments) {
  return test::sortie(std::move(arguments));
}

TEST_CASE("every verb's help begins with examples") {
  const auto verbs = all_verbs();
  CHECK(verbs.size() >= 16);
  for (std::vector<std::string> verb : verbs) {
    CAPTURE(verb);
    std::vector<std::string> asked = {"help"};
    asked.insert(asked.end(), verb.begin(), verb.end());
    verb.push_back("--help");
    const Finished help = train(verb);
    CHECK(help.code == 0);
    CHECK_MESSAGE(help.output.starts_with("Examples:\n  "), help.output);
    for (const char* part : {"\nUsage: sortie-train ", "--quiet", "--verbose"})
      CHECK_MESSAGE(has(help.output, part), part);
    CHECK(train(asked).output == help.output);
  }
  CHECK(train({"--help"}).output.starts_with("Examples:\n  sortie-train "));
  CHECK(train({"help"}).output == train({"--help"}).output);
  CHECK(train({"--version"}).output.starts_with("sortie-train "));
}

TEST_CASE("what is mistyped is answered with what is near, in one line, and exit code 2") {
  struct Row {
    std::vector<std::string> arguments;
    std::string near;
  };
  for (const Row& row :
       {Row{{"genrate"}, "did you mean `generate`?"},
        Row{{"data", "buidl"}, "did you mean `build`?"},
        Row{{"generate", "--promt", "x"}, "did you mean `--prompt`?"},
        Row{{"data", "build", "--tokeniser", "byte"},
            "data build: no option `--tokeniser`; did you mean `--tokenizer`?"},
        Row{{"probe", "m", "--dtype", "bf61"}, "did you mean `bf16`?"},
        Row{{"help", "evla"}, "did you mean `eval`?"}, Row{{"man", "evla"}, "did you mean `eval`?"},
        Row{{"checkpoint"}, "sortie-train: checkpoint: a verb is missing; use "},
        Row{{}, "see `sortie-train --help`"},
        Row{{"plan"}, "--config is missing; see `sortie-train plan --help`"},
        Row{{"train", "--", "x"}, "`train` accepts no program after --"}}) {
    CAPTURE(row.near);
    const Finished result = train(row.arguments);
    CHECK_MESSAGE(has(result.output, row.near), result.output);
    CHECK(result.output.starts_with("sortie-train: "));
    CHECK(result.code == 2);
    CHECK(std::ranges::count(result.output, '\n') == 1);
  }
}

TEST_CASE("an empty value is refused before the verb runs") {
  const test::ScopedTempDir dir;
  std::ofstream(dir / "a.txt") << "some text\n";
  const Finished built =
      train({"data", "build", dir.str("a.txt"), "--include", "", "-o", dir.str("data")});
  CHECK(built.code == 2);
  CHECK_MESSAGE(
      built.output == "sortie-train: --include: the value is empty; give it one, or leave it out\n",
      built.output);
  CHECK_FALSE(fs::exists(dir / "data.bin"));
  CHECK(train({"generate", "nowhere", "--tokenizer", ""}).output ==
        "sortie-train: --tokenizer: the value is empty; give it one, or leave it out\n");
  CHECK(has(train({"generate", "nowhere", "--prompt", ""}).output, "nowhere: no such folder"));
}

TEST_CASE("the place of a trained tokenizer is made and checked before the training") {
  const test::ScopedTempDir dir;
  std::ofstream(dir / "a.txt") << "some text, some more text\n";
  const auto trained = [&](const std::string& output) {
    return train({"data", "train-tokenizer", "--type", "bpe", "--vocab-size", "260", "-o", output,
                  dir.str("a.txt")});
  };
  CHECK(trained(dir.str("new/folder/t.json")).code == 0);
  CHECK(fs::exists(dir / "new/folder/t.json"));
  for (const char* folder : {"new", "other/"}) {
    const Finished refused = trained(dir.str(folder));
    CHECK(refused.code == 2);
    CHECK_MESSAGE(has(refused.output, "--output " + dir.str(folder) + ": a folder; name a file"),
                  refused.output);
  }
  const Finished refused = trained(dir.str("a.txt/t.json"));
  CHECK_MESSAGE(has(refused.output, "create " + dir.str("a.txt") + ": "), refused.output);
}

TEST_CASE("a number below its range is refused in few words") {
  CHECK(train({"eval", "nowhere", "--samples", "-1"}).output ==
        "sortie-train: eval: --samples: Value -1 is less than 0; see `sortie-train eval --help`\n");
  CHECK(train({"generate", "nowhere", "--prompt", "x", "--temperature", "nan"}).output ==
        "sortie-train: --temperature: nan is not a number\n");
  CHECK(has(train({"eval", "nowhere", "--samples", "all"}).output, "Value all is not a number;"));
  CHECK(has(train({"bench", "copy", "--bytes", "0"}).output, "Value 0 is not above 0;"));
}

TEST_CASE("every manual page renders without a warning") {
  const test::ScopedTempDir dir;
  REQUIRE(train({"man", "--output-dir", dir.path()}).code == 0);
  std::set<std::string> expected = {"sortie-train.1"};
  for (const auto& verb : all_verbs())
    if (verb.size() == 1) expected.insert("sortie-train-" + verb[0] + ".1");
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(dir.path()))
    found.insert(entry.path().filename());
  CHECK(found == expected);
  for (const std::string& name : found) {
    CAPTURE(name);
    const Finished warnings = testing::run({"groff", "-man", "-Tutf8", "-ww", "-z", dir.str(name)});
    CHECK(warnings.code == 0);
    CHECK(warnings.output == "");
  }
}

TEST_CASE("completions know verbs, flags and words") {
  CHECK(holds(after({"gen"}), "generate"));
  CHECK(holds(after({"data", ""}), "build"));
  CHECK(holds(after({"generate", "--che"}), "--checkpoint"));
  CHECK(after({"export", "--dtype", "b"}) == std::vector<std::string>{"bf16", ":words"});
  CHECK(holds(after({"help", "ev"}), "eval"));
  CHECK(after({"train", ""}).back() == ":files");
  const std::string bin = fs::path(SORTIE_BINARY).parent_path().string();
  const auto in_bash = [&](const std::string& words) {
    return testing::run({"/usr/bin/env", "-i", "PATH=" + bin + ":/usr/bin:/bin", "bash", "-c",
                         "source <(sortie-train completion bash); compopt() { :; }\n"
                         "COMP_WORDS=(" +
                             words +
                             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
                             "_sortie_train sortie-train \"${COMP_WORDS[-1]}\"; echo "
                             "\"${COMPREPLY[*]}\"; complete -p sortie-train"})
        .output;
  };
  CHECK(in_bash("sortie-train genera") == "generate\ncomplete -F _sortie_train sortie-train\n");
  for (const char* shell : {"zsh", "fish"}) {
    const std::string script = train({"completion", shell}).output;
    CHECK(has(script, "sortie-train"));
    CHECK_FALSE(has(script, "@PROGRAM@"));
    CHECK_FALSE(has(script, "@NAME@"));
  }
}

TEST_CASE("config and checkpoint are given by their place or by their name") {
  const test::ScopedTempDir dir;
  const std::string none = dir.str("none.toml");
  CHECK(train({"train", none}).output == train({"train", "--config", none}).output);
  CHECK(has(train({"train", none}).output, none + ": No such file or directory"));
  // The rules for training configs also apply without a launcher.
  const std::string blend = dir.str("blend.toml");
  test::write_text(blend,
                   "[data]\ndata_prefixes = [\"/a\", \"/b\"]\nweights = [\"1\"]\n"
                   "[trainer]\ntrain_epochs = 2\n");
  const Finished broken = train({"train", blend});
  CHECK(broken.code == 2);
  CHECK(has(broken.output, blend + ":3:11: data.weights: 1 weights for 2 prefixes"));
  CHECK(has(broken.output, blend + ":5:16: trainer.train_epochs: a blend or Megatron's order"));
  const Finished both = train({"train", none, "--config", none});
  CHECK(both.code == 2);
  for (const char* verb : {"generate", "eval"}) {
    std::vector<std::string> placed = {verb, dir.path()},
                             named = {verb, "--checkpoint", dir.path()};
    for (auto* arguments : {&placed, &named}) {
      if (std::string(verb) == "eval") arguments->insert(arguments->end(), {"--data", "x"});
      CHECK(train(*arguments).code != 2);
    }
    CHECK(train(placed).output == train(named).output);
  }
}

}  // namespace
}  // namespace sortie::trainer
