// Tests of what a checkpoint records about the texts that it was trained on: special tokens around
// them, and the token that ends documents.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/find.h"
#include "trainer/data/build.h"
#include "trainer/hf/import.h"
#include "trainer/samples/document_ends.h"
#include "trainer/state/model_loader.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
namespace fs = std::filesystem;

namespace {

using OrderedJson = nlohmann::ordered_json;
using sortie::test::has;

constexpr const char* kLlama3 = "hf:" SORTIE_TEST_DATA "/tokenizer/llama3.json";
constexpr const char* kPrefixed = "hf:" SORTIE_TEST_DATA "/tokenizer/prefix.json";
constexpr std::int32_t kBeginOfText = 1500, kEndOfText = 1501;

struct BuiltFiles {
  sortie::test::ScopedTempDir dir;

  std::string build(const std::string& name, bool special_tokens, bool append_eod = false,
                    const char* tokenizer = kLlama3) const {
    sortie::test::write_text(dir / "text", "some text of no matter, ten words and a few more");
    const auto built = build_token_files({.corpus = {.inputs = {dir / "text"}},
                                          .output = dir.str(name),
                                          .append_eod = append_eod,
                                          .add_special_tokens = special_tokens,
                                          .overwrite = true},
                                         *make_tokenizer(tokenizer).value());
    REQUIRE_MESSAGE(built, (built ? "" : built.error().message));
    return dir.str(name);
  }
  config::JobConfig job(std::vector<std::string> prefixes, const char* tokenizer = kLlama3) const {
    config::JobConfig job = tiny_job();
    job.model.vocab_size = 1503;
    job.data.data_prefixes = std::move(prefixes);
    job.data.tokenizer = tokenizer;
    job.trainer.train_iterations = 1;
    return job;
  }
  fs::path train(config::JobConfig job, const std::string& name) const {
    job.trainer.save_dir = dir.str(name);
    const auto communicator = make_single_communicator();
    TinyTraining training(job, *communicator);
    training.trainer->set_tokenizer(find_run_tokenizer(job).value());
    REQUIRE(training.trainer->run());
    return find_latest(dir / name)->entry->folder;
  }
};

/// Returns whether a prompt begins with the token that begins texts. Checks that the contexts of
/// choices begin in the same way.
bool begins_texts(const fs::path& checkpoint) {
  const auto model = load_model(checkpoint, 1, "f32").value();
  const auto tokenizer = model->tokenizer().value();
  std::vector<std::int32_t> ids;
  REQUIRE(model->encode_prompt(*tokenizer, "text", ids));
  REQUIRE_FALSE(ids.empty());
  const bool begins = ids[0] == kBeginOfText;
  CHECK(model->tokens_before_prompt(*tokenizer).value() ==
        (begins ? std::vector<std::int32_t>{kBeginOfText} : std::vector<std::int32_t>{}));
  return begins;
}

}  // namespace

TEST_CASE("prompts begin as the texts of the training did") {
  const BuiltFiles files;
  const std::string with = files.build("with", true), without = files.build("without", false);
  CHECK(begins_texts(files.train(files.job({with}), "a")));
  CHECK_FALSE(begins_texts(files.train(files.job({without}), "b")));
  CHECK(begins_texts(files.train(files.job({without, with}), "c")));
  // A run that starts from other weights has the form of its own data.
  config::JobConfig next = files.job({without});
  next.trainer.load_weights_from = files.dir.str("a");
  CHECK_FALSE(begins_texts(files.train(next, "d")));
  // Conversations have only what their format writes.
  config::JobConfig chat = files.job({});
  chat.data.chat_files = {"chat.jsonl"};
  CHECK_FALSE(begins_texts(files.train(chat, "e")));
  // Token files of other tools do not record it: texts begin as the tokenizer does by default.
  fs::remove(without + ".json");
  const fs::path unknown = files.train(files.job({without}), "f");
  CHECK(begins_texts(unknown));
  CHECK(
      OrderedJson::parse(read_file(unknown / "tokenizer/about.json").value())["add_special_tokens"]
          .is_null());
  // A run without a tokenizer keeps the form of the checkpoint that it starts from.
  next.trainer.load_weights_from = files.dir.str("b");
  next.data.tokenizer = "";
  CHECK_FALSE(begins_texts(files.train(next, "g")));
}

TEST_CASE("a prompt has no token that ends a text") {
  const BuiltFiles files;
  const std::string prefix = files.build("both", true, false, kPrefixed);
  const auto model = load_model(files.train(files.job({prefix}, kPrefixed), "a"), 1, "f32").value();
  const auto tokenizer = model->tokenizer().value();
  REQUIRE(tokenizer->special_tokens().after == std::vector<std::int32_t>{600});
  std::vector<std::int32_t> ids, expected = {601};
  REQUIRE(model->encode_prompt(*tokenizer, "text", ids));
  REQUIRE(tokenizer->encode("text", expected));
  CHECK(ids == expected);
}

TEST_CASE("checkpoints of older versions and imported ones begin prompts as their tokenizer does") {
  const BuiltFiles files;
  const fs::path trained = files.train(files.job({files.build("without", false)}), "run");
  REQUIRE(export_hf(trained, files.dir / "out", {}));
  REQUIRE(import_hf(files.dir / "out", files.dir / "imported"));
  CHECK(begins_texts(find_latest(files.dir / "imported")->entry->folder));

  const fs::path about = trained / "tokenizer/about.json";
  OrderedJson json = OrderedJson::parse(read_file(about).value());
  CHECK(json["add_special_tokens"] == false);
  CHECK(json["conversations"].is_null());
  json.erase("add_special_tokens");
  json.erase("conversations");
  REQUIRE(write_file_atomic(about, json.dump()));
  CHECK(begins_texts(trained));
  for (const char* key : {"add_special_tokens", "conversations"}) {
    OrderedJson damaged = json;
    damaged[key] = 3;
    REQUIRE(write_file_atomic(about, damaged.dump()));
    const auto form = find_text_form(trained);
    REQUIRE_FALSE(form);
    CHECK(form.error().code == ErrorCode::checkpoint);
    CHECK(has(form.error().message, about.string() + ": damaged: \"" + key + "\" is 3"));
  }
}

TEST_CASE("model.document_end_token is the token that ends the documents of the token files") {
  const BuiltFiles files;
  const auto outcome = [&](const std::string& prefix, std::int64_t token, bool validation = false,
                           const char* tokenizer = kLlama3) -> std::string {
    config::JobConfig job = files.job({prefix}, tokenizer);
    if (validation) {
      job.data.data_prefixes = {files.dir.str("other")};
      job.data.validation_sets = {{"set", prefix}};
    }
    job.model.document_end_token = token;
    const auto notes = check_document_ends(job, find_run_tokenizer(job).value());
    if (!notes) CHECK(notes.error().code == ErrorCode::config);
    if (!notes) return "error: " + notes.error().message;
    return notes->empty() ? "none" : notes->front();
  };
  const std::string ended = files.build("ended", false, true), open = files.build("open", false),
                    begun = files.build("begun", true),  // Llama 3 puts nothing after a text
      both = files.build("both", true, false, kPrefixed);
  files.build("other", false, true);
  CHECK(outcome(ended, kEndOfText) == "none");
  CHECK(outcome(ended, -1) == "none");
  for (const std::string& prefix : {open, begun})
    for (const std::int64_t token : {kEndOfText, kBeginOfText}) {
      CHECK(has(outcome(prefix, token), "warning: model.document_end_token = "));
      CHECK(has(outcome(prefix, token), "the documents of " + prefix + " (data.data_prefixes)"));
      CHECK(has(outcome(prefix, token), "build them again with --append-eod"));
    }
  CHECK(outcome(open, -1) == "none");
  CHECK(has(outcome(ended, 7),
            "error: model.document_end_token: it is 7, but the documents of " + ended +
                " (data.data_prefixes) end with token 1501, as their manifest says; set it to "
                "1501, or to -1"));
  // The token that the tokenizer itself puts after a text.
  CHECK(outcome(both, 600, false, kPrefixed) == "none");
  CHECK(has(outcome(both, 601, false, kPrefixed), "end with token 600"));
  // Validation sets are named by their key. Files without a manifest are not checked.
  CHECK(has(outcome(open, kEndOfText, true), open + " (data.validation_sets.set)"));
  fs::remove(ended + ".json");
  CHECK(outcome(ended, 7) == "none");
}
