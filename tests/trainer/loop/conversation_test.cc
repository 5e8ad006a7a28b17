// Tests of which tokens of a conversation are targets, with many tokenizers.
#include "trainer/samples/conversation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/base/check.h"
#include "tests/support/mixed_text.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/samples/chat_source.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kAnyVocabulary = std::int64_t{1} << 30;

struct Message {
  std::string role, content;
};

Json json_of(const std::vector<Message>& messages) {
  Json all = Json::array();
  for (const Message& message : messages)
    all.push_back({{"role", message.role}, {"content", message.content}});
  return {{"messages", all}};
}

Ids encode(const Tokenizer& tokenizer, const std::string& text) {
  Ids ids;
  const auto done = tokenizer.encode(text, ids);
  SORTIE_CHECK(done.has_value(), "{}", done ? "" : done.error().message);
  return ids;
}

/// Follows the definition: the tokens are those of the whole text. The tokens of a part are those
/// that the text up to its end has in common with the whole text, beyond those of earlier parts.
Conversation by_prefixes(const std::vector<Message>& messages, const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string, bool>> parts;
  for (const Message& message : messages) {
    parts.emplace_back("<|im_start|>" + message.role + "\n", false);
    parts.emplace_back(message.content + "<|im_end|>", message.role == "assistant");
    parts.emplace_back("\n", false);
  }
  std::string text;
  for (const auto& [part, counts] : parts) text += part;
  Conversation conversation{.ids = encode(tokenizer, text)};
  std::string before;
  for (const auto& [part, counts] : parts) {
    before += part;
    const Ids ids = encode(tokenizer, before);
    const auto common = std::ranges::mismatch(ids, conversation.ids);
    const auto end = static_cast<std::size_t>(common.in1 - ids.begin());
    if (end > conversation.counts.size()) conversation.counts.resize(end, counts);
  }
  conversation.counts.resize(conversation.ids.size());
  return conversation;
}

std::unique_ptr<Tokenizer> load(const std::string& name) {
  return make_tokenizer("hf:" SORTIE_TEST_DATA "/tokenizer/" + name + ".json").value();
}

/// Returns the CPU time of this thread, which other processes do not affect.
double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

TEST_CASE("the tokens of a conversation, and its targets, are those of the whole text") {
  const sortie::test::MixedText mixed(SORTIE_TEST_DATA "/tokenizer");
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  for (const char* name : {"qwen2", "qwen35", "gpt2", "llama2", "llama3", "metaspace", "neox",
                           "o200k", "prefix", "tekken", "deepseek-v3"})
    tokenizers.push_back(load(name));
  tokenizers.push_back(make_byte_tokenizer());
  const char* roles[] = {"user", "assistant", "tool"};
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<Message> messages = {{"system", ""}};
    for (std::uint64_t i = 0; i < 1 + seed; ++i) {
      const std::string text = mixed.make(seed * 100 + i, seed == 1 ? 1 : 60);
      messages.push_back({roles[(seed + i) % 3], text});
    }
    // Only texts that a file can contain: JSON has no bytes that are not UTF-8.
    const std::string line = json_of(messages).dump(-1, ' ', false, Json::error_handler_t::replace);
    const Json read = Json::parse(line);
    for (std::size_t i = 0; i < messages.size(); ++i)
      messages[i].content = read["messages"][i]["content"].get<std::string>();
    for (const auto& tokenizer : tokenizers) {
      CAPTURE(tokenizer->name());
      CAPTURE(seed);
      const Conversation expected = by_prefixes(messages, *tokenizer);
      const auto conversation = read_conversation(line, *tokenizer, kAnyVocabulary);
      REQUIRE_MESSAGE(conversation, (conversation ? "" : conversation.error().message));
      CHECK(conversation->chatml);
      CHECK(conversation->ids == expected.ids);
      CHECK(conversation->counts == expected.counts);
    }
  }
}

TEST_CASE("a conversation of many messages takes time that grows with its text") {
  const auto tokenizer = load("qwen2");
  const auto seconds = [&](int count) {
    std::vector<Message> messages;
    for (int i = 0; i < count; ++i)
      messages.push_back({i % 2 == 0 ? "user" : "assistant",
                          "Message number " + std::to_string(i) + " of this conversation.\nYes."});
    const std::string line = json_of(messages).dump();
    double fastest = 1e9;
    for (int i = 0; i < 3; ++i) {
      const double begin = cpu_seconds();
      REQUIRE(read_conversation(line, *tokenizer, kAnyVocabulary));
      fastest = std::min(fastest, cpu_seconds() - begin);
    }
    return fastest;
  };
  // 20 times as many messages. Tokenizing each message with all before it would take 400 times as
  // long.
  CHECK(seconds(2000) < 100 * seconds(100));
}

TEST_CASE(
    "many threads read the conversations of a file as one does, and name the first bad line") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = trainer::test::tiny_job();
  job.model.vocab_size = 257;
  job.model.sequence_length = 64;
  const auto tokenizer = make_byte_tokenizer();
  std::string lines;
  for (int i = 0; i < 8000; ++i)
    lines += json_of({{"user", std::to_string(i)}, {"assistant", std::to_string(i * i)}}).dump() +
             (i % 7 == 0 ? "\r\n\n" : "\n");
  sortie::test::write_text(dir / "chat.jsonl", lines);
  const auto read = [&](int threads) {
    return ChatSource::open(job, {dir.str("chat.jsonl")}, *tokenizer, true, threads);
  };
  const auto one = read(1).value(), many = read(5).value();
  CHECK(one->count().conversations == 8000);
  CHECK(many->fingerprint() == one->fingerprint());
  REQUIRE(many->samples_per_epoch() == one->samples_per_epoch());
  Ids tokens(64), targets(64), others(64), wanted(64);
  for (std::int64_t i = 0; i < one->samples_per_epoch(); ++i) {
    REQUIRE(one->sample(i, tokens, targets));
    REQUIRE(many->sample(i, others, wanted));
    REQUIRE(others == tokens);
    REQUIRE(wanted == targets);
  }
  const auto spoil = [&](std::size_t line) {
    std::size_t at = 0;
    for (std::size_t i = 1; i < line; ++i) at = lines.find('\n', at) + 1;
    std::string spoiled = lines;
    spoiled.insert(at, "x");
    return spoiled;
  };
  const auto whole = std::ranges::count(lines, '\n');
  for (const std::size_t line : {std::size_t{5000}, static_cast<std::size_t>(whole)}) {
    sortie::test::write_text(dir / "chat.jsonl", spoil(line) + "y\n");
    const auto bad = read(5);
    REQUIRE_FALSE(bad);
    CHECK(bad.error().message.starts_with(
        dir.str("chat.jsonl:" + std::to_string(line) + ": not JSON")));
  }
}
