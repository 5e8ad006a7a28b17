// Tests that token files, config and checkpoint agree on the meaning of token ids, and that a
// checkpoint contains its tokenizer.
#include "trainer/samples/tokenizer_agreement.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/find.h"
#include "trainer/data/build.h"
#include "trainer/hf/import.h"
#include "trainer/state/model_loader.h"
#include "trainer/tokenizer/train_bpe.h"
#include "trainer/tokenizer/train_sentencepiece.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
namespace fs = std::filesystem;

namespace {

using sortie::test::has;

constexpr std::int64_t kVocabulary = 300;

std::string text_about(const std::string& thing) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += "the " + thing + " number " + std::to_string(i) + " is a " + thing + "\n";
  return text;
}

/// Two tokenizers with different vocabularies, and token files of each.
struct Workplace {
  sortie::test::ScopedTempDir dir;

  Workplace() {
    for (const std::string name : {"cats", "dogs"}) {
      sortie::test::write_text(dir.path() / (name + ".txt"), text_about(name));
      fs::create_directories(dir.path() / name);
      REQUIRE(train_bpe({.files = {dir.path() / (name + ".txt")},
                         .vocab_size = kVocabulary,
                         .output = dir.path() / name / "tokenizer.json"}));
      build(name, tokenizer(name));
    }
  }
  std::string tokenizer(const std::string& name) const {
    return "hf:" + dir.str(name + "/tokenizer.json");
  }
  void build(const std::string& prefix, const std::string& with) const {
    const auto loaded = make_tokenizer(with).value();
    const auto built = build_token_files({.corpus = {.inputs = {dir.path() / "cats.txt"}},
                                          .output = dir.str("data-" + prefix),
                                          .overwrite = true},
                                         *loaded);
    REQUIRE_MESSAGE(built, (built ? "" : built.error().message));
  }
  /// Moves the token files, and the manifest with them.
  void rename(const std::string& from, const std::string& to) const {
    for (const std::string end : {".bin", ".idx", ".json"})
      fs::rename(dir.path() / ("data-" + from + end), dir.path() / ("data-" + to + end));
  }
  config::JobConfig job(const std::string& prefix, const std::string& with) const {
    config::JobConfig job = tiny_job();
    job.model.vocab_size = kVocabulary;
    job.data.data_prefixes = {dir.str("data-" + prefix)};
    job.data.tokenizer = with;
    job.trainer.train_iterations = 2;
    return job;
  }
  /// Trains two steps with a checkpoint at the end. Returns its folder.
  fs::path checkpoint(const config::JobConfig& job, const std::string& name) const {
    config::JobConfig saving = job;
    saving.trainer.save_dir = dir.str(name);
    const auto communicator = make_single_communicator();
    TinyTraining training(saving, *communicator);
    training.trainer->set_tokenizer(find_run_tokenizer(saving).value());
    REQUIRE(training.trainer->run());
    return find_latest(dir.path() / name)->entry->folder;
  }
};

std::string error_of(const config::JobConfig& job) {
  const auto found = find_run_tokenizer(job);
  return found ? "none" : found.error().message;
}

}  // namespace

TEST_CASE("without data.tokenizer the run has the tokenizer of its token files") {
  const Workplace place;
  const auto run = find_run_tokenizer(place.job("cats", "")).value();
  REQUIRE(run.files);
  CHECK(run.files->id.name == place.tokenizer("cats"));
  CHECK(run.files->contents.at("tokenizer.json") ==
        sortie::test::read_text(place.dir.path() / "cats/tokenizer.json"));
  // Without the manifest of the token files, the tokenizer is unknown.
  fs::remove(place.dir.path() / "data-cats.json");
  const auto unknown = find_run_tokenizer(place.job("cats", "")).value();
  CHECK_FALSE(unknown.files);
  CHECK(unknown.claims.empty());
}

TEST_CASE("a tokenizer that is missing or has changed is an error before training") {
  const Workplace place;
  const fs::path file = place.dir.path() / "cats/tokenizer.json";
  CHECK(has(error_of(place.job("cats", "hf:/absent/tokenizer.json")), "data.tokenizer: "));
  const std::string content = sortie::test::read_text(file);
  fs::remove(file);
  const std::string missing = error_of(place.job("cats", ""));
  CHECK(has(missing, "data-cats of data.data_prefixes: was built with hf:" + file.string()));
  CHECK(has(missing, "set data.tokenizer to where it is"));
  // It is also found next to the token files.
  sortie::test::write_text(place.dir.path() / "tokenizer.json", content);
  CHECK(error_of(place.job("cats", "")) == "none");
  fs::remove(place.dir.path() / "tokenizer.json");
  fs::copy_file(place.dir.path() / "dogs/tokenizer.json", file);
  CHECK(has(error_of(place.job("cats", "")), "has changed since then"));
}

TEST_CASE("token files and config of different tokenizers are refused, each named") {
  const Workplace place;
  for (const std::string& other : {std::string("byte"), place.tokenizer("dogs")}) {
    const std::string error = error_of(place.job("cats", other));
    CHECK(has(error, "data.tokenizer: " + other));
    CHECK(has(error, "data-cats of data.data_prefixes: " + place.tokenizer("cats")));
  }
  // Validation sets are checked, too.
  config::JobConfig job = place.job("cats", "");
  job.data.validation_sets = {{"dogs", place.dir.str("data-dogs")}};
  CHECK(has(error_of(job), "data-dogs of data.validation_sets.dogs: " + place.tokenizer("dogs")));
  // Files that were renamed with their manifest are those of their tokenizer still.
  place.rename("cats", "pets");
  CHECK(error_of(place.job("pets", "")) == "none");
  CHECK(has(error_of(place.job("pets", "byte")),
            "data-pets of data.data_prefixes: " + place.tokenizer("cats")));
}

TEST_CASE("another file with the same vocabulary is the same tokenizer") {
  const Workplace place;
  const std::string text = sortie::test::read_text(place.dir.path() / "cats/tokenizer.json");
  const auto json = nlohmann::ordered_json::parse(text);
  sortie::test::write_text(place.dir.path() / "again.json", json.dump());
  REQUIRE(json.dump() != text);
  CHECK(error_of(place.job("cats", "hf:" + place.dir.str("again.json"))) == "none");
  // The byte tokenizer and the tokenizer.json that is made from it.
  sortie::test::write_text(place.dir.path() / "bytes.json", byte_tokenizer_json());
  const auto bytes = make_tokenizer("hf:" + place.dir.str("bytes.json")).value();
  CHECK(same_vocabulary(id_of(*bytes), id_of(*make_byte_tokenizer())));
  std::string all;
  for (int i = 1; i < 128; ++i) all += static_cast<char>(i);
  all += "gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\x80";
  std::vector<std::int32_t> ours, theirs;
  REQUIRE(make_byte_tokenizer()->encode(all, ours));
  REQUIRE(bytes->encode(all, theirs));
  CHECK(ours == theirs);
  CHECK(bytes->eod_id() == 256);
}

TEST_CASE("a checkpoint of another tokenizer is not trained on, and all three are named") {
  const Workplace place;
  const fs::path checkpoint = place.checkpoint(place.job("cats", ""), "run");
  config::JobConfig other = place.job("dogs", place.tokenizer("dogs"));
  for (std::string* key : {&other.trainer.load_dir, &other.trainer.load_weights_from}) {
    *key = place.dir.str("run");
    const auto started = start_trainer(other, find_run_tokenizer(other).value());
    REQUIRE_FALSE(started);
    CHECK(started.error().code == ErrorCode::data);
    CHECK(has(started.error().message, "data.tokenizer: " + place.tokenizer("dogs")));
    CHECK(has(started.error().message, "data-dogs of data.data_prefixes: "));
    CHECK(has(started.error().message, "checkpoint " + checkpoint.string() + ": hf:"));
    *key = "";
  }
}

TEST_CASE("the tokenizer lies in the checkpoint, goes into exports and is found by import") {
  const Workplace place;
  const std::string template_text = "{{ messages }}";
  sortie::test::write_text(place.dir.path() / "cats/chat_template.jinja", template_text);
  const fs::path checkpoint = place.checkpoint(place.job("cats", ""), "run");
  fs::remove_all(place.dir.path() / "cats");  // nothing depends on the original
  const std::string question = "the cats number 17<|endoftext|>";
  const auto expect = [&](const fs::path& folder) {
    const auto model = load_model(folder, 1, "f32").value();
    const auto tokenizer = model->tokenizer();
    REQUIRE_MESSAGE(tokenizer, (tokenizer ? "" : tokenizer.error().message));
    CHECK((*tokenizer)->vocab_size() == kVocabulary);
    std::vector<std::int32_t> ids;
    REQUIRE((*tokenizer)->encode(question, ids));
    CHECK(ids.size() < 20);
    CHECK(ids.back() == 0);
    CHECK(model->stop_tokens(**tokenizer).value() == std::vector<std::int32_t>{0});
    // Another tokenizer is refused.
    const auto refused = model->tokenizer(place.tokenizer("dogs"));
    REQUIRE_FALSE(refused);
    CHECK(has(refused.error().message, "--tokenizer: " + place.tokenizer("dogs")));
    CHECK(has(refused.error().message, "checkpoint " + model->folder.string()));
  };
  expect(checkpoint);
  const auto exported = export_hf(checkpoint, place.dir.path() / "out", {});
  REQUIRE_MESSAGE(exported, (exported ? "" : exported.error().message));
  const auto json = [&](const char* name) {
    return nlohmann::json::parse(sortie::test::read_text(place.dir.path() / "out" / name));
  };
  CHECK(sortie::test::read_text(place.dir.path() / "out/chat_template.jinja") == template_text);
  CHECK(json("tokenizer_config.json")["eos_token"] == "<|endoftext|>");
  CHECK(json("special_tokens_map.json")["eos_token"] == "<|endoftext|>");
  CHECK(json("generation_config.json")["eos_token_id"] == 0);
  CHECK(json("config.json")["eos_token_id"] == 0);
  CHECK(json("config.json")["bos_token_id"].is_null());
  REQUIRE(import_hf(place.dir.path() / "out", place.dir.path() / "imported"));
  expect(place.dir.path() / "imported");
  // Training that starts from the import stores its tokenizer in its own checkpoints.
  place.build("again", "hf:" + place.dir.str("out/tokenizer.json"));
  config::JobConfig job = place.job("again", "");
  job.trainer.load_dir = place.dir.str("imported");
  expect(place.checkpoint(job, "second"));
}

TEST_CASE("what a checkpoint holds is carried on by a run whose token files say nothing") {
  const Workplace place;
  place.checkpoint(place.job("cats", ""), "run");
  fs::remove(place.dir.path() / "data-cats.json");
  config::JobConfig job = place.job("cats", "");
  job.trainer.load_dir = place.dir.str("run");
  job.trainer.train_iterations = 4;
  const fs::path second = place.checkpoint(job, "second");
  CHECK(find_stored_tokenizer(second).value()->name ==
        "hf:" + (second / "tokenizer/tokenizer.json").string());
}

TEST_CASE("the byte tokenizer is exported as a tokenizer.json") {
  const Workplace place;
  place.build("bytes", "byte");
  // The end of a text is token 256, which a model of 256 bytes does not have.
  for (const std::int64_t vocabulary : {256, 300}) {
    CAPTURE(vocabulary);
    const std::string size = std::to_string(vocabulary);
    config::JobConfig job = place.job("bytes", "");
    job.model.vocab_size = vocabulary;
    const fs::path checkpoint = place.checkpoint(job, "run" + size);
    CHECK(load_model(checkpoint, 1, "f32").value()->tokenizer().value()->name() == "byte");
    const fs::path out = place.dir.path() / ("out" + size);
    REQUIRE(export_hf(checkpoint, out, {}));
    CHECK(sortie::test::read_text(out / "tokenizer.json") == byte_tokenizer_json());
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
      CHECK(nlohmann::json::parse(sortie::test::read_text(out / name)).contains("eos_token") ==
            (vocabulary > 256));
    REQUIRE(import_hf(out, place.dir.path() / ("imported" + size)));
    job.data.tokenizer = "byte";
    job.trainer.load_dir = place.dir.str("imported" + size);
    place.checkpoint(job, "second" + size);  // the import and the byte tokenizer agree
  }
}

TEST_CASE("a sentencepiece model lies in the checkpoint") {
  const Workplace place;
  REQUIRE(train_sentencepiece({.files = {place.dir.path() / "cats.txt"},
                               .vocab_size = kVocabulary,
                               .output = place.dir.path() / "cats.model"}));
  place.build("pieces", "sentencepiece:" + place.dir.str("cats.model"));
  const fs::path checkpoint = place.checkpoint(place.job("pieces", ""), "run");
  fs::remove(place.dir.path() / "cats.model");
  const auto tokenizer = load_model(checkpoint, 1, "f32").value()->tokenizer().value();
  CHECK(tokenizer->name() ==
        "sentencepiece:" + (checkpoint / "tokenizer/tokenizer.model").string());
  REQUIRE(export_hf(checkpoint, place.dir.path() / "out", {}));
  CHECK(sortie::test::read_text(place.dir.path() / "out/tokenizer.model") ==
        sortie::test::read_text(checkpoint / "tokenizer/tokenizer.model"));
  const auto json = [&](const char* name) {
    return nlohmann::json::parse(sortie::test::read_text(place.dir.path() / "out" / name));
  };
  CHECK(json("generation_config.json")["eos_token_id"] == 1);
  // What transformers reads: the same vocabulary and ids, and the class that reads the file.
  CHECK(json("tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast");
  CHECK(json("tokenizer_config.json")["eos_token"] == "</s>");
  const auto converted = make_tokenizer("hf:" + place.dir.str("out/tokenizer.json")).value();
  CHECK(same_vocabulary(id_of(*converted), id_of(*tokenizer)));
  CHECK(converted->eod_id() == 1);
  const std::string text = " the cats number 17,\n\tthe   cats \xc3\xa4\xf0\x9f\x9a\x80 ";
  std::vector<std::int32_t> ours, theirs;
  REQUIRE(tokenizer->encode(text, ours));
  REQUIRE(converted->encode(text, theirs));
  CHECK(theirs == ours);
  CHECK(converted->decode(theirs) == text);
  // Training on token files of this model can start from the import.
  REQUIRE(import_hf(place.dir.path() / "out", place.dir.path() / "imported"));
  config::JobConfig job = place.job("pieces", "");
  fs::copy_file(place.dir.path() / "out/tokenizer.model", place.dir.path() / "cats.model");
  job.trainer.load_dir = place.dir.str("imported");
  place.checkpoint(job, "second");
}

TEST_CASE("a checkpoint without a tokenizer asks for one") {
  const Workplace place;
  fs::remove(place.dir.path() / "data-cats.json");
  const auto model = load_model(place.checkpoint(place.job("cats", ""), "run"), 1, "f32").value();
  const auto none = model->tokenizer();
  REQUIRE_FALSE(none);
  CHECK(has(none.error().message, "the checkpoint holds no tokenizer"));
  CHECK(has(none.error().message, "--tokenizer hf:FILE"));
  CHECK(model->tokenizer(place.tokenizer("cats")).has_value());
}
