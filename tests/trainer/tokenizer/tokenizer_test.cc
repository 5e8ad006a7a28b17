// Tests of the byte and sentencepiece tokenizers. The latter are trained here, on text that the
// test makes up.
#include "trainer/tokenizer/tokenizer.h"

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "trainer/tokenizer/train_sentencepiece.h"

namespace sortie::trainer {
namespace {

using Ids = std::vector<std::int32_t>;

Ids ids_of_text(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  REQUIRE(tokenizer.encode(text, ids).has_value());
  return ids;
}

std::string code_like_text() {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text +=
        fmt::format("  if (value_{} == {}) return compute(value_{});\t// case\n", i % 7, i, i % 11);
  return text;
}

struct Trained {
  Trained() {
    test::write_text(dir.path() / "text", code_like_text());
    const auto trained = train_sentencepiece(
        {.files = {dir.path() / "text"}, .vocab_size = 320, .output = dir.path() / "t.model"});
    INFO((trained ? std::string("ok") : trained.error().message));
    REQUIRE(trained.has_value());
    auto loaded = make_tokenizer("sentencepiece:" + dir.str("t.model"));
    REQUIRE(loaded.has_value());
    tokenizer = std::move(*loaded);
  }
  test::ScopedTempDir dir;
  std::unique_ptr<Tokenizer> tokenizer;
};

}  // namespace

TEST_CASE("bytes are their own ids") {
  const auto tokenizer = make_byte_tokenizer();
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const Ids ids = ids_of_text(*tokenizer, all);
  for (int i = 0; i < 256; ++i) CHECK(ids[static_cast<std::size_t>(i)] == i);
  CHECK(tokenizer->decode(ids) == all);
  CHECK(tokenizer->vocab_size() == 257);
  CHECK(tokenizer->eod_id() == 256);
  CHECK(tokenizer->decode(Ids{'a', 256, 'b', 999, -1}) == "ab\xef\xbf\xbd\xef\xbf\xbd");
}

TEST_CASE("encoding appends") {
  const auto tokenizer = make_byte_tokenizer();
  Ids ids = {7};
  REQUIRE(tokenizer->encode("ab", ids).has_value());
  CHECK(ids == Ids{7, 'a', 'b'});
}

TEST_CASE("names of tokenizers") {
  CHECK((*make_tokenizer("byte"))->name() == "byte");
  for (const char* name : {"", "bytes", "sentencepiece", "sentencepiece:", "BYTE"})
    CHECK_MESSAGE(make_tokenizer(name).error().code == ErrorCode::usage, name);
  CHECK(make_tokenizer("sentencepiece:/absent.model").error().code == ErrorCode::not_found);
  test::ScopedTempDir dir;
  for (const std::string& content :
       {std::string(), std::string("hello"), std::string(100, '\xff')}) {
    test::write_text(dir.path() / "bad.model", content);
    const auto refused = make_tokenizer("sentencepiece:" + dir.str("bad.model"));
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == ErrorCode::data);
    CHECK(refused.error().message.find("bad.model: not a sentencepiece model") !=
          std::string::npos);
  }
}

TEST_CASE("a trained model loses nothing of any UTF-8 text") {
  const Trained trained;
  const Tokenizer& tokenizer = *trained.tokenizer;
  CHECK(tokenizer.vocab_size() == 320);
  CHECK(tokenizer.eod_id() == 1);
  CHECK(tokenizer.model_hash().size() == 64);
  for (const std::string& text :
       {std::string("  if (x)\n\n\treturn 1;  \n"), std::string("no dummy prefix"),
        std::string(" lead"), std::string("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x9a\x80"),
        std::string("a  b   c"), std::string("\r\n"), code_like_text()}) {
    const Ids ids = ids_of_text(tokenizer, text);
    CHECK(tokenizer.decode(ids) == text);
    for (const std::int32_t id : ids) CHECK((id >= 0 && id < 320));
  }
  CHECK(ids_of_text(tokenizer, code_like_text()).size() < code_like_text().size() / 2);
  CHECK(ids_of_text(tokenizer, "").empty());
}

TEST_CASE("a long text is encoded in parts that lose nothing") {
  const Trained trained;
  std::string text;
  while (text.size() < (3u << 20)) text += code_like_text();
  CHECK(trained.tokenizer->decode(ids_of_text(*trained.tokenizer, text)) == text);
  std::string one_line;  // no newline to cut at: multi-byte characters must stay whole
  while (one_line.size() < (5u << 19)) one_line += "\xe2\x82\xac";
  CHECK(trained.tokenizer->decode(ids_of_text(*trained.tokenizer, one_line)) == one_line);
}

TEST_CASE("decoding is total") {
  const Trained trained;
  CHECK(trained.tokenizer->decode(Ids{1, 1}) == "");
  CHECK(trained.tokenizer->decode(Ids{320, -5}) == "\xef\xbf\xbd\xef\xbf\xbd");
  Ids every(320);
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::int32_t>(i);
  CHECK_FALSE(trained.tokenizer->decode(every).empty());
}

TEST_CASE("training the same text twice gives the same model") {
  const Trained a;
  const Trained b;
  CHECK(a.tokenizer->model_hash() == b.tokenizer->model_hash());
}

TEST_CASE("training leaves out what is no text, unless it is to be kept") {
  test::ScopedTempDir dir;
  test::write_text(dir.path() / "text", code_like_text());
  test::write_text(dir.path() / "noise", std::string(4000, '\xff') + code_like_text());
  SentencepieceTraining training{.files = {dir.path() / "text", dir.path() / "noise"},
                                 .vocab_size = 320,
                                 .output = dir.path() / "t.model"};
  const auto some = train_sentencepiece(training);
  REQUIRE(some.has_value());
  CHECK(some->invalid_utf8 == 1);
  training.keep_non_text = true;
  const auto all = train_sentencepiece(training);
  REQUIRE(all.has_value());
  CHECK(all->count() == 0);
}

TEST_CASE("training reports the bytes that it reads and the pieces that it learns, with totals") {
  test::ScopedTempDir dir;
  std::string text;
  while (text.size() < (5u << 20)) text += code_like_text();
  test::write_text(dir.path() / "noise", std::string(1u << 20, '\xff'));
  test::write_text(dir.path() / "text", text);
  const auto reports_of = [&](std::uint64_t max_bytes) {
    std::vector<WorkProgress> reports;
    const auto trained = train_sentencepiece(
        {.files = {dir.path() / "noise", dir.path() / "text"},
         .vocab_size = 320,
         .output = dir.path() / "t.model",
         .max_bytes = max_bytes,
         .progress = [&](const WorkProgress& work) { reports.push_back(work); }});
    REQUIRE(trained.has_value());
    return reports;
  };
  for (const std::uint64_t max_bytes : {std::uint64_t{1} << 30, std::uint64_t{3} << 20}) {
    CAPTURE(max_bytes);
    const auto reports = reports_of(max_bytes);
    const std::uint64_t total = std::min<std::uint64_t>(text.size(), max_bytes);
    std::vector<std::string_view> stages;
    std::uint64_t read = 0, learned = 0, pieces = 0;
    for (const WorkProgress& work : reports) {
      if (stages.empty() || stages.back() != work.stage) stages.push_back(work.stage);
      if (work.stage == "reading text") {
        CHECK(work.total == total);  // without the file that is left out
        CHECK(work.done > read);
        read = work.done;
      }
      if (work.stage == "learning merges") {
        CHECK(work.unit == "pieces");
        CHECK(work.done > learned);
        learned = work.done;
        pieces = work.total;
      }
    }
    CHECK(stages ==
          std::vector<std::string_view>{"reading text", "counting words", "learning merges"});
    CHECK(read + (1u << 20) > total);
    // The pieces that are learned are those that are neither marks, bytes nor single characters.
    CHECK(learned <= pieces);
    CHECK(learned + 20 > pieces);
  }
}

TEST_CASE(
    "training shows nothing of the library's log but errors, and leaves std::cerr as it was") {
  test::ScopedTempDir dir;
  test::write_text(dir.path() / "text", code_like_text());
  std::ostringstream shown;
  std::streambuf* const before = std::cerr.rdbuf(shown.rdbuf());
  const auto trained = train_sentencepiece(
      {.files = {dir.path() / "text"}, .vocab_size = 320, .output = dir.path() / "t.model"});
  const bool same = std::cerr.rdbuf() == shown.rdbuf();
  std::cerr.rdbuf(before);
  CHECK(trained.has_value());
  CHECK(same);
  CHECK(shown.str() == "");
}

TEST_CASE("training that can not work says why") {
  test::ScopedTempDir dir;
  test::write_text(dir.path() / "tiny", "abc\n");
  const auto refused = train_sentencepiece(
      {.files = {dir.path() / "tiny"}, .vocab_size = 5000, .output = dir.path() / "t.model"});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == ErrorCode::data);
  CHECK(refused.error().message.starts_with(
      "sentencepiece refused 1 file with a vocabulary of 5000: Vocabulary size "));
  CHECK_FALSE(std::filesystem::exists(dir.path() / "t.model"));
  const auto absent = train_sentencepiece(
      {.files = {dir.path() / "absent"}, .vocab_size = 300, .output = dir.path() / "t.model"});
  REQUIRE_FALSE(absent.has_value());
  CHECK(absent.error().message.find("absent") != std::string::npos);
  test::write_text(dir.path() / "noise", std::string(4000, '\xff'));
  const auto nothing = train_sentencepiece(
      {.files = {dir.path() / "noise"}, .vocab_size = 300, .output = dir.path() / "t.model"});
  REQUIRE_FALSE(nothing.has_value());
  CHECK(nothing.error().message.starts_with("no text in the files; left out: 1 file that is no"));
}

}  // namespace sortie::trainer
