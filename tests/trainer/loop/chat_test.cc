// Conversations: what of them is trained on.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/samples/chat_source.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

using Json = nlohmann::json;

constexpr const char* kConversation =
    R"({"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "bc"}]})";

config::JobConfig chat_job(const std::string& tokenizer) {
  config::JobConfig job = tiny_job();
  job.model.vocab_size = 1504;
  job.model.sequence_length = 64;
  job.data.tokenizer = tokenizer;
  job.data.chat_files = {"chat.jsonl"};
  job.trainer.train_iterations = 2;
  return job;
}

}  // namespace

TEST_CASE("keys that would change what is trained are errors that name file, line and key") {
  const sortie::test::ScopedTempDir dir;
  const auto tokenizer = make_byte_tokenizer();
  config::JobConfig job = chat_job("byte");
  const auto error_of_line = [&](const Json& line) -> std::string {
    sortie::test::write_text(dir / "chat.jsonl", std::string(kConversation) + "\n" + line.dump());
    const auto source = ChatSource::open(job, {dir.str("chat.jsonl")}, *tokenizer, false);
    if (!source) CHECK(source.error().code == ErrorCode::data);
    return source ? "none" : source.error().message;
  };
  const Json plain = Json::parse(kConversation);
  const Json calls = Json::array({{{"id", "1"}, {"type", "function"}}});
  const std::pair<const char*, Json> keys[] = {
      {"tool_calls", calls}, {"function_call", {{"name", "f"}}},
      {"weight", 0},         {"weight", 1},
      {"weight", 0.5},       {"train", false},
      {"train", true},       {"tools", calls},
      {"functions", calls}};
  for (const auto& [key, value] : keys) {
    CAPTURE(key);
    Json line = plain;
    line["messages"][1][key] = value;
    const std::string at = dir.str("chat.jsonl:2: ");
    CHECK(error_of_line(line).starts_with(at + "message 2: \"" + key + "\" is not supported: "));
    line = plain;
    line[key] = value;
    CHECK(error_of_line(line).starts_with(at + "\"" + key + "\" is not supported: "));
    CHECK(error_of_line({{"prompt", "a"}, {"completion", "b"}, {key, value}})
              .starts_with(at + "\"" + key + "\" is not supported: "));
    // Files that were written from tables have every column in every line.
    for (const Json& empty : {Json(), Json::array(), Json::object()}) {
      line = plain;
      line["messages"][0][key] = line[key] = empty;
      CHECK(error_of_line(line) == "none");
    }
  }
  Json other = plain;
  other["source"] = "school";
  other["messages"][0]["name"] = "Ada";
  CHECK(error_of_line(other) == "none");
}

TEST_CASE("what is cut of conversations is counted") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = chat_job("byte");
  job.model.vocab_size = 257;
  job.model.sequence_length = 10;
  const auto count_of = [&](const std::string& lines) {
    sortie::test::write_text(dir / "chat.jsonl", lines);
    const auto tokenizer = make_byte_tokenizer();
    const auto source = ChatSource::open(job, {dir.str("chat.jsonl")}, *tokenizer, false);
    REQUIRE_MESSAGE(source, (source ? "" : source.error().message));
    return (*source)->count();
  };
  const auto line = [](std::size_t prompt, std::size_t completion) {
    return Json{{"prompt", std::string(prompt, 'p')}, {"completion", std::string(completion, 'c')}}
               .dump() +
           "\n";
  };
  // 11 tokens, the last of them the end of the document, are 10 to predict.
  const ChatSource::Count whole = count_of(line(4, 6));
  CHECK(whole.conversations == 1);
  CHECK(whole.answer_tokens == 7);
  CHECK(whole.cut == 0);
  CHECK(whole.lost_tokens == 0);
  const ChatSource::Count some = count_of(line(4, 6) + line(4, 9) + line(11, 5) + line(20, 1));
  CHECK(some.conversations == 4);
  CHECK(some.left_out == 2);
  CHECK(some.cut == 1);
  CHECK(some.answer_tokens == 7 + 10 + 6 + 2);
  CHECK(some.lost_tokens == 3 + 6 + 2);
}
