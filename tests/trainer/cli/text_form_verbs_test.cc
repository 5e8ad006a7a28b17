// Tests of the verbs with models that were trained with and without special tokens around texts,
// and on conversations.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace {

using sortie::test::has;
using sortie::testing::Finished;

constexpr const char* kBegins = "hf:" SORTIE_TEST_DATA "/tokenizer/llama3.json";

/// Runs a verb of sortie-train; `arguments` begin with the verb.
Finished verb(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SORTIE_TRAIN_BINARY);
  return sortie::testing::run(arguments);
}

std::string job_text(const sortie::test::ScopedTempDir& dir, const std::string& model,
                     const std::string& data) {
  return "[topology]\nglobal_batch_size = 2\n[trainer]\ntrain_iterations = 1\nthreads = 1\n"
         "save_dir = \"" +
         dir.str("checkpoints") +
         "\"\n[model]\nvocab_size = 1503\nhidden_size = 16\nnum_layers = 1\n"
         "num_attention_heads = 2\nsequence_length = 16\nprecision = \"f32\"\n" +
         model + "[data]\n" + data;
}

Finished train_job(const sortie::test::ScopedTempDir& dir, const std::string& model,
                   const std::string& data) {
  sortie::test::write_text(dir / "job.toml", job_text(dir, model, data));
  return verb({"train", dir.str("job.toml")});
}

void build_tokens(const sortie::test::ScopedTempDir& dir, const std::vector<std::string>& options) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "line " + std::to_string(i) + " of the text\n";
  sortie::test::write_text(dir / "text", text);
  std::vector<std::string> arguments = {"data",  "build", "--overwrite",    "--tokenizer",
                                        kBegins, "-o",    dir.str("tokens")};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.push_back(dir.str("text"));
  const Finished built = verb(arguments);
  REQUIRE_MESSAGE(built.code == 0, built.output);
}

}  // namespace

TEST_CASE("generate and multiple choice begin a text as the token files did") {
  const sortie::test::ScopedTempDir dir;
  const std::string data = "data_prefixes = [\"" + dir.str("tokens") + "\"]\n";
  sortie::test::write_text(dir / "items.jsonl",
                           R"({"context": "line", "choices": ["a", "b"], "answer": 0})");
  sortie::test::write_text(dir / "empty.jsonl",
                           R"({"context": "", "choices": ["a", "b"], "answer": 0})");
  const auto eval = [&dir](const char* items) {
    return verb({"eval", dir.str("checkpoints"), "--multiple-choice", dir.str(items)});
  };
  // Token 1500 begins a text. A model that was trained without it, and whose vocabulary lacks it,
  // gets prompts without it.
  build_tokens(dir, {});
  std::string text = job_text(dir, "", data);
  text.replace(text.find("vocab_size = 1503"), 17, "vocab_size = 1500");
  sortie::test::write_text(dir / "job.toml", text);
  const Finished trained = verb({"train", dir.str("job.toml")});
  REQUIRE_MESSAGE(trained.code == 0, trained.output);
  const std::vector<std::string> generate = {"generate", dir.str("checkpoints"), "--prompt",
                                             "line 7",   "--max-tokens",         "2"};
  const Finished generated = verb(generate);
  CHECK_MESSAGE(generated.code == 0, generated.output);
  CHECK_MESSAGE(eval("items.jsonl").code == 0, eval("items.jsonl").output);
  CHECK(has(eval("empty.jsonl").output, "the context is empty"));

  build_tokens(dir, {"--add-special-tokens"});
  std::filesystem::remove_all(dir / "checkpoints");
  const Finished with = train_job(dir, "", data);
  REQUIRE_MESSAGE(with.code == 0, with.output);
  CHECK(verb(generate).code == 0);
  const Finished from_nothing =
      verb({"generate", dir.str("checkpoints"), "--prompt", "", "--max-tokens", "2"});
  CHECK_MESSAGE(from_nothing.code == 0, from_nothing.output);
  CHECK_MESSAGE(eval("empty.jsonl").code == 0, eval("empty.jsonl").output);
}

TEST_CASE("training reports documents that model.document_end_token does not separate") {
  const sortie::test::ScopedTempDir dir;
  const std::string data = "data_prefixes = [\"" + dir.str("tokens") + "\"]\n";
  build_tokens(dir, {});
  const Finished open = train_job(dir, "document_end_token = 1501\n", data);
  CHECK_MESSAGE(open.code == 0, open.output);
  CHECK(has(open.output,
            "warning: model.document_end_token = 1501: the documents of " + dir.str("tokens")));
  build_tokens(dir, {"--append-eod"});
  const Finished other = train_job(dir, "document_end_token = 5\n", data);
  CHECK(other.code == 2);
  CHECK(has(other.output, "model.document_end_token: it is 5"));
  std::filesystem::remove_all(dir / "checkpoints");
  const Finished right = train_job(dir, "document_end_token = 1501\n", data);
  CHECK_MESSAGE(right.code == 0, right.output);
  CHECK_FALSE(has(right.output, "document_end_token"));
}

TEST_CASE("training on conversations reports once what is cut, and marks that are split") {
  const sortie::test::ScopedTempDir dir;
  const auto line = [](const std::string& answer) {
    return R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ")" +
           answer + "\"}]}\n";
  };
  sortie::test::write_text(dir / "chat.jsonl", line("b") + line(std::string(60, 'c')));
  const std::string data =
      "chat_files = [\"" + dir.str("chat.jsonl") + "\"]\ntokenizer = \"byte\"\n";
  const auto times = [](const std::string& text, std::string_view words) {
    int count = 0;
    for (std::size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++count;
    return count;
  };
  const Finished cut = train_job(dir, "document_end_token = -1\n", data);
  // No answer begins within the 16 bytes of a sequence.
  CHECK_MESSAGE(cut.code == 9, cut.output);
  std::string text = job_text(dir, "", data);
  text.replace(text.find("sequence_length = 16"), 20, "sequence_length = 64");
  sortie::test::write_text(dir / "job.toml", text);
  const Finished some = verb({"train", dir.str("job.toml")});
  CHECK_MESSAGE(some.code == 0, some.output);
  CHECK_MESSAGE(times(some.output,
                      "data.chat_files: of 2 conversations 1 are cut to model.sequence_length = 64 "
                      "tokens and 0 are left out, which have no answer in them; 56 of 81 answer "
                      "tokens are lost") == 1,
                some.output);
  CHECK(times(some.output,
              "warning: data.tokenizer: byte does not have <|im_start|> and "
              "<|im_end|> as single tokens") == 1);
}

TEST_CASE("eval of conversations has the loss of validation on them") {
  const sortie::test::ScopedTempDir dir;
  std::string lines;
  for (const char* answer : {"b", "cd", "efg"})
    lines += std::string(R"({"prompt": "a", "completion": ")") + answer + "\"}\n";
  sortie::test::write_text(dir / "chat.jsonl", lines);
  const std::string file = dir.str("chat.jsonl");
  std::string text = job_text(dir, "",
                              "chat_files = [\"" + file + "\"]\nvalidation_chat_files = [\"" +
                                  file + "\"]\ntokenizer = \"byte\"\n");
  text.replace(text.find("threads = 1"), 11, "threads = 1\neval_interval = 1");
  sortie::test::write_text(dir / "job.toml", text);
  const Finished trained = verb({"train", dir.str("job.toml")});
  REQUIRE_MESSAGE(trained.code == 0, trained.output);
  const std::string_view words = "validation loss ";
  const std::size_t at = trained.output.find(words);
  REQUIRE(at != std::string::npos);
  const std::string loss = trained.output.substr(at + words.size(), 6);
  const Finished score =
      verb({"eval", dir.str("checkpoints"), "--chat", file, "--precision", "f32"});
  CHECK_MESSAGE(score.code == 0, score.output);
  CHECK_MESSAGE(std::abs(std::stod(score.output.substr(5)) - std::stod(loss)) <= 1e-4, score.output,
                trained.output);
  // Each answer counts with its end-of-document token: 2, 3 and 4 tokens.
  CHECK(has(score.output, "(9 tokens, 6 bytes)"));
  const Finished both = verb({"eval", dir.str("checkpoints"), "--chat", file, "--data", file});
  CHECK(both.code == 2);
  CHECK_MESSAGE(has(both.output, "--data and --chat exclude each other"), both.output);
}

TEST_CASE("training and eval say that the ends of completions are not in the vocabulary") {
  const sortie::test::ScopedTempDir dir;
  sortie::test::write_text(dir / "chat.jsonl", R"({"prompt": "a", "completion": "bc"})");
  const std::string file = dir.str("chat.jsonl");
  for (const bool learned : {false, true}) {
    CAPTURE(learned);
    std::string text = job_text(dir, "", "chat_files = [\"" + file + "\"]\ntokenizer = \"byte\"\n");
    text.replace(text.find("1503"), 4, learned ? "257" : "256");
    sortie::test::write_text(dir / "job.toml", text);
    std::filesystem::remove_all(dir / "checkpoints");
    const Finished trained = verb({"train", dir.str("job.toml")});
    CHECK_MESSAGE(trained.code == 0, trained.output);
    const Finished score = verb({"eval", dir.str("checkpoints"), "--chat", file});
    CHECK_MESSAGE(score.code == 0, score.output);
    CHECK_MESSAGE(has(score.output, learned ? "(3 tokens, 2 bytes)" : "(2 tokens, 2 bytes)"),
                  score.output);
    const std::string words =
        "1 of 1 conversations are a prompt and a completion, and these get no end, so that the "
        "model does not learn to stop: the end of a completion is token 256, and model.vocab_size "
        "is 256; train with 257 or more";
    CHECK_MESSAGE(has(trained.output, "data.chat_files: " + words) == !learned, trained.output);
    CHECK_MESSAGE(has(score.output, "warning: --chat: " + words) == !learned, score.output);
  }
}

TEST_CASE("training a mixture on conversations reports padding that its balance counts") {
  const sortie::test::ScopedTempDir dir;
  sortie::test::write_text(dir / "chat.jsonl", R"({"prompt": "ab", "completion": "cd"})");
  const std::string data =
      "chat_files = [\"" + dir.str("chat.jsonl") + "\"]\ntokenizer = \"byte\"\n";
  const auto output_with = [&](const std::string& balance) {
    std::filesystem::remove_all(dir / "checkpoints");
    const Finished trained = train_job(
        dir, "architecture = \"mixtral\"\n[model.moe]\nnum_experts = 4\ntopk = 2\n" + balance,
        data);
    CHECK_MESSAGE(trained.code == 0, trained.output);
    return trained.output;
  };
  // Four bytes and the end-of-document token fill 5 of 16 positions.
  CHECK(has(output_with("aux_loss_coeff = 0.01\n"),
            "data.chat_files: 69 % of the positions are padding"));
  const std::string unbalanced = output_with("aux_loss_coeff = 0.0\n");
  CHECK_FALSE(has(unbalanced, "which counts when the experts are balanced"));
  CHECK(has(unbalanced,
            "data.chat_files: 1 conversations in 1 sequences of 16 tokens; 69 % of these are "
            "padding"));
}
