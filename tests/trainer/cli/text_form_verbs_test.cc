// The verbs on models that were trained with and without special tokens around texts, and on
// conversations.
#include <doctest/doctest.h>

#include "tests/support/child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace {

using sortie::test::has;
using sortie::testing::Finished;

/// Runs a verb; the arguments are words.
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

}  // namespace

TEST_CASE("training on conversations reports once what is cut") {
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
  // No answer begins in 16 bytes.
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
}
