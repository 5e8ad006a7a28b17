// Tests of the verbs of sortie-train as a user calls them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/cpu/cpu_list.h"
#include "tests/support/child.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace {

using sortie::test::has;

namespace fs = std::filesystem;
using sortie::testing::Finished;

Finished train(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SORTIE_TRAIN_BINARY);
  return sortie::testing::run(arguments);
}

constexpr const char* kConfig = R"([topology]
global_batch_size = 2
[trainer]
train_iterations = 3
threads = 1
eval_interval = 3
eval_samples = 2
save_dir = "%/checkpoints"
[model]
vocab_size = 300
hidden_size = 16
num_layers = 1
num_attention_heads = 2
sequence_length = 16
precision = "f32"
[data]
data_prefixes = ["%/tokens"]
[data.validation_sets]
first = "%/tokens"
second = "%/tokens"
)";

/// Holds a tokenizer, token files built with it, and a checkpoint trained on them. The config does
/// not name a tokenizer.
struct Trained {
  sortie::test::ScopedTempDir dir;

  Trained() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i) + " of the text\n";
    sortie::test::write_text(dir.path() / "text", text);
    make_tokenizer("one", text);
    make_tokenizer("two", "another, yet another and again another thing\n" + text);
    build("tokens", "hf:" + at("one.json"));
    std::string config = kConfig;
    for (std::size_t place; (place = config.find('%')) != config.npos;)
      config.replace(place, 1, dir.path().string());
    sortie::test::write_text(dir.path() / "job.toml", config);
    const Finished trained = train({"train", "--config", at("job.toml")});
    REQUIRE_MESSAGE(trained.code == 0, trained.output);
    log = trained.output;
  }
  std::string at(const std::string& name) const { return (dir.path() / name).string(); }
  /// Replaces `from` by `to` in the config.
  void change(const std::string& from, const std::string& to) const {
    std::string config = sortie::test::read_text(dir.path() / "job.toml");
    const std::size_t found = config.find(from);
    REQUIRE(found != std::string::npos);
    sortie::test::write_text(dir.path() / "job.toml", config.replace(found, from.size(), to));
  }
  void make_tokenizer(const std::string& name, const std::string& text) const {
    sortie::test::write_text(dir.path() / (name + ".txt"), text);
    const Finished made = train({"data", "train-tokenizer", "--type", "bpe", "--vocab-size", "290",
                                 "-o", at(name + ".json"), at(name + ".txt")});
    REQUIRE_MESSAGE(made.code == 0, made.output);
  }
  void build(const std::string& name, const std::string& tokenizer) const {
    const Finished built = train(
        {"data", "build", "--overwrite", "--tokenizer", tokenizer, "-o", at(name), at("text")});
    REQUIRE_MESSAGE(built.code == 0, built.output);
  }
  std::string log;
};

}  // namespace

TEST_CASE("the save_dir of a run over several sites: the folders of the sites are named") {
  const Trained place;
  fs::create_directory(place.at("run"));
  fs::create_directory(place.at("run/site-empty"));
  for (const char* site : {"run/site-oslo", "run/site-rome"})
    fs::copy(place.at("checkpoints"), place.at(site), fs::copy_options::recursive);
  const std::string names = "; it has the checkpoints of sites: name " + place.at("run/site-oslo") +
                            " or " + place.at("run/site-rome");
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"checkpoint", "ls", place.at("run")},
        {"generate", "--checkpoint", place.at("run"), "--prompt", "line"}}) {
    const Finished refused = train(verb);
    CHECK(refused.code == 8);
    CHECK_MESSAGE(has(refused.output, names), refused.output);
  }
}

TEST_CASE("generate and eval use the tokenizer in the checkpoint, or one that is named") {
  const Trained place;
  fs::rename(place.at("one.json"), place.at("moved.json"));
  const std::vector<std::string> generate = {"generate", "--checkpoint",  place.at("checkpoints"),
                                             "--prompt", "line 7 of",     "--max-tokens",
                                             "4",        "--temperature", "0"};
  const Finished own = train(generate);
  CHECK_MESSAGE(own.code == 0, own.output);
  CHECK(own.output.starts_with("line 7 of"));
  const auto with = [](std::vector<std::string> arguments, const std::string& tokenizer) {
    arguments.insert(arguments.end(), {"--tokenizer", tokenizer});
    return train(arguments);
  };
  CHECK(with(generate, "hf:" + place.at("moved.json")).output == own.output);
  const Finished other = with(generate, "hf:" + place.at("two.json"));
  CHECK(other.code == 9);
  CHECK(has(other.output, "--tokenizer: hf:" + place.at("two.json")));
  CHECK(has(other.output, "/tokenizer/tokenizer.json"));

  const std::vector<std::string> eval = {"eval",   "--checkpoint",     place.at("checkpoints"),
                                         "--data", place.at("tokens"), "--samples",
                                         "2"};
  const Finished score = train(eval);
  CHECK_MESSAGE(score.code == 0, score.output);
  CHECK(has(score.output, "bits per byte"));
  // Token files of another tokenizer are refused, because the figures would be wrong.
  place.build("tokens", "hf:" + place.at("two.json"));
  const Finished refused = train(eval);
  CHECK(refused.code == 9);
  CHECK(has(refused.output, place.at("tokens") + " of --data: hf:" + place.at("two.json")));
  CHECK(has(refused.output, "checkpoint " + place.at("checkpoints")));
  CHECK_FALSE(has(refused.output, "bits per byte"));
  // Training on them does not resume from that checkpoint either.
  const Finished resumed = train({"train", "--config", place.at("job.toml")});
  CHECK(resumed.code == 9);
  CHECK(has(resumed.output, "do not have the same vocabulary"));
}

TEST_CASE("verbs refuse a damaged checkpoint, and take the newest good one of a folder") {
  const Trained place;
  place.change("train_iterations = 3", "train_iterations = 6");
  const Finished longer = train({"train", "--config", place.at("job.toml")});
  REQUIRE_MESSAGE(longer.code == 0, longer.output);
  const auto eval = [&](const std::string& checkpoint) {
    return train({"eval", checkpoint, "--data", place.at("tokens"), "--samples", "2"});
  };
  const auto generate = [&](const std::string& checkpoint) {
    return train({"generate", checkpoint, "--prompt", "line 7", "--max-tokens", "2"});
  };
  const std::string folder = place.at("checkpoints"), older = folder + "/step-00000003",
                    newest = folder + "/step-00000006";
  fs::remove_all(folder + "/best");
  const auto damage = [](const std::string& checkpoint) {
    const std::string shard = checkpoint + "/shard-00000-of-00001.safetensors";
    std::string bytes = sortie::test::read_text(shard);
    bytes[bytes.size() * 2 / 3] ^= 1;
    sortie::test::write_text(shard, bytes);
    return shard;
  };
  const Finished good = eval(older);
  REQUIRE_MESSAGE(good.code == 0, good.output);
  sortie::test::write_text(place.at("ids.json"), R"({"input_ids": [[1, 2]]})");
  const auto probe = [&](const std::string& checkpoint, const std::string& out) {
    return train({"probe", checkpoint, "--tokens", place.at("ids.json"), "--out", place.at(out)});
  };
  const auto exported = [&](const std::string& checkpoint, const std::string& out) {
    return train({"export", checkpoint, place.at(out)});
  };
  REQUIRE(exported(older, "older").code == 0);
  const std::string shard = damage(newest);
  for (const Finished& refused :
       {eval(newest), generate(newest), probe(newest, "none"), exported(newest, "none")}) {
    CHECK(refused.code == 8);
    CHECK_MESSAGE(has(refused.output, shard + ": SHA-256 is "), refused.output);
    CHECK_FALSE(has(refused.output, "bits per byte"));
  }
  const Finished instead = eval(folder);
  CHECK(instead.code == 0);
  CHECK_MESSAGE(has(instead.output, "checkpoint skipped: " + shard), instead.output);
  CHECK(instead.output.ends_with(good.output));
  for (const Finished& other : {probe(folder, "probed"), exported(folder, "newest-good")}) {
    CHECK(other.code == 0);
    CHECK_MESSAGE(has(other.output, "checkpoint skipped: " + shard), other.output);
  }
  CHECK(sortie::test::read_text(place.at("newest-good/model.safetensors")) ==
        sortie::test::read_text(place.at("older/model.safetensors")));
  const std::string also = damage(older);
  for (const Finished& refused :
       {eval(folder), generate(folder), probe(folder, "none"), exported(folder, "none")}) {
    CHECK(refused.code == 8);
    CHECK_MESSAGE(has(refused.output, "none of its checkpoints can be used: " + shard),
                  refused.output);
    CHECK(has(refused.output, also));
  }
}

TEST_CASE("-v says what the program does, -q nothing but errors; answers are printed with both") {
  const Trained place;
  const std::vector<std::string> eval = {"eval",   place.at("checkpoints"), "--samples",   "2",
                                         "--data", place.at("tokens"),      "--precision", "f32"};
  const auto with = [&](const std::string& flag, bool before) {
    std::vector<std::string> arguments = eval;
    arguments.insert(before ? arguments.begin() : arguments.end(), flag);
    return train(arguments);
  };
  const Finished plain = train(eval);
  CHECK_MESSAGE(plain.code == 0, plain.output);
  for (const bool before : {false, true}) {
    CHECK(with("-q", before).output == plain.output);
    const Finished verbose = with("--verbose", before);
    CHECK(has(verbose.output, "sortie-train: debug: " + place.at("checkpoints")));
    CHECK(has(verbose.output, ", loaded in "));
    CHECK(verbose.output.ends_with(plain.output));
  }
  // Warnings and hints are messages, which -q suppresses. Answers and errors are not.
  const std::string exported = place.at("exported");
  REQUIRE(train({"export", place.at("checkpoints"), exported}).code == 0);
  const Finished loud = train({"import", exported, place.at("loud")});
  CHECK(has(loud.output, "checkpoint model"));
  const Finished quiet = train({"import", "-q", exported, place.at("quiet")});
  CHECK(quiet.code == 0);
  CHECK(quiet.output.starts_with(place.at("quiet")));
  CHECK(std::ranges::count(quiet.output, '\n') == 1);
  CHECK(has(train({"-q", "import", place.at("none"), place.at("more")}).output,
            "sortie-train import: "));
}

TEST_CASE("a training with more compute threads than cores says so at its start") {
  const Trained place;
  CHECK_FALSE(has(place.log, "compute threads"));  // it has one compute thread
  std::string config = sortie::test::read_text(place.at("job.toml"));
  const int cores = static_cast<int>(sortie::cpu::allowed_cpus().size());
  const std::string one = "threads = 1\n";
  REQUIRE(has(config, one));
  config.replace(config.find(one), one.size(), "threads = " + std::to_string(cores + 1) + "\n");
  sortie::test::write_text(place.at("crowded.toml"), config);
  const Finished crowded = train({"train", place.at("crowded.toml")});
  CHECK_MESSAGE(
      has(crowded.output, ": " + std::to_string(cores + 1) + " compute threads on " +
                              std::to_string(cores) + " core" + (cores == 1 ? "" : "s") +
                              "; set trainer.threads lower, or give these hosts fewer slots"),
      crowded.output);
}

TEST_CASE("output that can not be written is an error") {
  const Trained place;
  const auto full = [](const std::string& what) {
    return sortie::test::shell(std::string(SORTIE_TRAIN_BINARY) + " " + what + " > /dev/full");
  };
  const std::string checkpoint = place.at("checkpoints"), tokens = place.at("tokens");
  for (const std::string& what : std::vector<std::string>{
           "generate " + checkpoint + " --prompt line --max-tokens 4",
           "eval --samples 2 --data " + tokens + " " + checkpoint, "checkpoint ls " + checkpoint,
           "checkpoint model " + checkpoint, "data inspect " + tokens, "devices",
           "plan " + place.at("job.toml"), "--help", "eval --help"}) {
    CAPTURE(what);
    const Finished result = full(what);
    CHECK(result.code == 9);
    CHECK(result.output.ends_with("sortie-train: write to stdout: No space left on device\n"));
  }
  CHECK(full("checkpoint ls --no-such").code == 2);  // the first error stays
}

TEST_CASE("inspect decodes with no tokenizer but the one of the token files") {
  const Trained place;
  const Finished own = train({"data", "inspect", place.at("tokens"), "--tokens", "4"});
  CHECK_MESSAGE(own.code == 0, own.output);
  CHECK(has(own.output, "as text: \"line"));
  fs::copy_file(place.at("two.json"), place.at("one.json"), fs::copy_options::overwrite_existing);
  const Finished changed = train({"data", "inspect", place.at("tokens")});
  CHECK(changed.code == 9);
  CHECK(has(changed.output, "has another vocabulary"));
}

TEST_CASE("a tokenizer is trained on plain text alone") {
  const sortie::test::ScopedTempDir dir;
  for (const auto& [name, reason] :
       {std::pair("a.txt.gz", "compressed; unpack it first"),
        {"a.jsonl", "JSON lines; write their texts to a file first"}}) {
    CAPTURE(name);
    sortie::test::write_text(dir / name, "{\"text\": \"a b c\"}\n");
    const Finished refused =
        train({"data", "train-tokenizer", "-o", dir.str("out"), dir.str(name)});
    CHECK(refused.code == 2);
    CHECK(has(refused.output, dir.str(name) + ": " + reason));
    CHECK_FALSE(fs::exists(dir / "out"));
  }
}

TEST_CASE("options of bpe are refused for a sentencepiece model, and make the marks of ChatML") {
  const sortie::test::ScopedTempDir dir;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i) + " of the text\n";
  sortie::test::write_text(dir / "text", text);
  const auto make = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"data", "train-tokenizer", "--vocab-size", "290",
                                          "-o",   dir.str("out"),    dir.str("text")};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return train(arguments);
  };
  for (const auto& [option, value] : {std::pair("--special-token", "<|im_start|>"),
                                      {"--pattern", "gpt2"},
                                      {"--min-count", "3"}}) {
    CAPTURE(option);
    for (const bool named : {false, true}) {
      const Finished refused =
          named ? make({option, value, "--type", "sentencepiece"}) : make({option, value});
      CHECK(refused.code == 2);
      CHECK(has(refused.output, std::string("train-tokenizer: ") + option + ": "));
      CHECK(has(refused.output, "give --type bpe"));
    }
    CHECK_FALSE(fs::exists(dir / "out"));
  }
  // As the warning about marks that a tokenizer splits advises.
  const Finished made = make({"--type", "bpe", "--special-token", "<|endoftext|>",
                              "--special-token", "<|im_start|>", "--special-token", "<|im_end|>"});
  REQUIRE_MESSAGE(made.code == 0, made.output);
  const std::string written = sortie::test::read_text(dir / "out");
  const Finished again = make({"--type", "bpe"});
  CHECK(again.code == 2);
  CHECK(has(again.output, "out: exists; choose another --output or give --overwrite"));
  CHECK(sortie::test::read_text(dir / "out") == written);
  const auto json = nlohmann::json::parse(written);
  std::vector<std::string> added;
  for (const auto& token : json["added_tokens"]) added.push_back(token["content"]);
  CHECK(added == std::vector<std::string>{"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  CHECK(make({"--type", "bpe", "--overwrite"}).code == 0);
  CHECK(sortie::test::read_text(dir / "out") != written);
}

TEST_CASE("a rank without a config says that runner.program gives it none") {
  ::unsetenv("SORTIE_CONFIG");
  const Finished done = train({"train"});
  CHECK(done.code == 2);
  CHECK(has(done.output, "without runner.program"));
}

TEST_CASE("a tokenizer that is not there stops training before the first step") {
  const Trained place;
  fs::remove(place.at("one.json"));
  fs::remove_all(place.at("checkpoints"));
  const Finished stopped = train({"train", "--config", place.at("job.toml")});
  CHECK(stopped.code == 9);
  CHECK(has(stopped.output, "was built with hf:" + place.at("one.json")));
  CHECK_FALSE(has(stopped.output, "training llama with"));
}

TEST_CASE("validation sets that are never used need not be long enough") {
  const Trained place;
  sortie::test::write_text(place.at("short.txt"), "a");
  const Finished built = train({"data", "build", "--tokenizer", "hf:" + place.at("one.json"), "-o",
                                place.at("short"), place.at("short.txt")});
  REQUIRE_MESSAGE(built.code == 0, built.output);
  place.change("second = \"" + place.at("tokens"), "second = \"" + place.at("short"));
  place.change("train_iterations = 3", "train_iterations = 4");
  const Finished refused = train({"train", "--config", place.at("job.toml")});
  CHECK(refused.code == 9);
  CHECK(has(refused.output, place.at("short")));
  place.change("eval_interval = 3", "eval_interval = 0");
  const Finished trained = train({"train", "--config", place.at("job.toml")});
  CHECK_MESSAGE(trained.code == 0, trained.output);
}

TEST_CASE("validation sets have names and losses in the log; a finished run tells its last loss") {
  const Trained place;
  /// Returns the text after the last occurrence of `words`, up to a space, comma, parenthesis or
  /// newline.
  const auto value_behind = [](const std::string& output, const std::string& words) -> std::string {
    const std::size_t found = output.rfind(words);
    REQUIRE_MESSAGE(found != std::string::npos, output);
    const std::size_t begin = found + words.size();
    return output.substr(begin, output.find_first_of(" ,)\n", begin) - begin);
  };
  const std::string loss = value_behind(place.log, "step      3  validation loss ");
  CHECK(std::stod(loss) > 0);
  CHECK(value_behind(place.log, "(first ") == loss);
  CHECK(value_behind(place.log, ", second ") == loss);
  const std::string last = value_behind(place.log, ", loss ");
  CHECK(std::stod(last) > 0);
  const Finished again = train({"train", "--config", place.at("job.toml")});
  CHECK_MESSAGE(again.code == 0, again.output);
  CHECK(has(again.output, "training is complete: step 3 of 3"));
  CHECK(value_behind(again.output, ", loss ") == last);
}

TEST_CASE("checkpoint ls finds the best of those that were validated on the same data") {
  const Trained place;
  place.change("train_iterations = 3", "train_iterations = 6");
  place.change("eval_samples = 2", "eval_samples = 1");
  place.change("[model]", "[learning_rate_scheduler]\nlearning_rate = 10\n[model]");
  const Finished worse = train({"train", "--config", place.at("job.toml")});
  REQUIRE_MESSAGE(worse.code == 0, worse.output);
  const Finished listed = train({"checkpoint", "ls", "--json", place.at("checkpoints")});
  std::map<std::int64_t, double> losses;
  std::vector<std::int64_t> best;
  for (const auto& row : nlohmann::json::parse(listed.output)) {
    losses[row["step"]] = row["validation_loss"];
    if (row["best"] == true) best.push_back(row["step"]);
  }
  CHECK(losses.at(3) < losses.at(6));
  CHECK(best == std::vector<std::int64_t>{6});
  const Finished table = train({"checkpoint", "ls", place.at("checkpoints")});
  CHECK_MESSAGE(has(table.output, "have losses of other validation data than the newest one has"),
                table.output);
}

TEST_CASE("an invalid SORTIE_COMM_TIMEOUT is an error of the config") {
  const Trained place;
  const sortie::test::ScopedVariable limit("SORTIE_COMM_TIMEOUT", "30m");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"train", place.at("job.toml")},
        {"generate", place.at("checkpoints")}}) {
    const Finished refused = train(arguments);
    CHECK(refused.code == 2);
    CHECK_MESSAGE(has(refused.output, "environment: SORTIE_COMM_TIMEOUT='30m': a number of "),
                  refused.output);
  }
}

TEST_CASE("a resume past the last step of the config, and an empty prompt, say what they are") {
  const Trained place;
  place.change("train_iterations = 3", "train_iterations = 2");
  const Finished past = train({"train", place.at("job.toml")});
  CHECK(past.code == 0);
  CHECK_MESSAGE(has(past.output, "already past step 2: at step 3"), past.output);
  CHECK_FALSE(has(past.output, "trained to step"));
  // This tokenizer puts no token before a text.
  const Finished empty = train({"generate", place.at("checkpoints"), "--prompt", ""});
  CHECK(empty.code == 2);
  CHECK_MESSAGE(has(empty.output, "--prompt: the text is empty, and the tokenizer puts no special"),
                empty.output);
}
