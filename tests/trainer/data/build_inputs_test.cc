// Tests of the inputs of `data build`: JSON lines, gzip, patterns, long documents and threads.
// Token files must have the bytes of Megatron's builder.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/mixed_text.h"
#include "tests/support/temp_dir.h"
#include "trainer/data/build.h"
#include "trainer/data/json_line.h"
#include "trainer/data/token_file.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
const std::string kFolder = SORTIE_TEST_DATA "/tokenizer";

std::string gzip(std::string_view text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  std::string in(text);
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// The documents contain NUL characters, so they are built with keep_non_text.
const std::vector<std::string>& documents() {
  static const std::vector<std::string> texts = [] {
    const test::MixedText mixed(kFolder);
    std::vector<std::string> made;
    for (std::uint64_t i = 0; i < 64; ++i) {
      std::string repaired;
      made.emplace_back(repair_utf8(mixed.make(1000 + i, 16000), repaired));
    }
    return made;
  }();
  return texts;
}

std::string json_lines() {
  std::string lines;
  for (std::size_t i = 0; i < documents().size(); ++i) {
    Json line = {{"id", i}, {"meta", {{"text", "no"}, {"list", {1, "]", true}}}}};
    line["text"] = documents()[i];
    lines += line.dump(-1, ' ', i % 2 == 0) + "\n";  // with and without escapes
  }
  return lines;
}

std::unique_ptr<Tokenizer> qwen() {
  auto loaded = make_tokenizer("hf:" + kFolder + "/qwen2.json");
  REQUIRE(loaded.has_value());
  return std::move(*loaded);
}

std::vector<std::string> hashes(const BuildOptions& options) {
  const auto built = build_token_files(options, *qwen());
  INFO((built ? std::string("ok") : built.error().message));
  REQUIRE(built.has_value());
  return {built->parts[0].summary.bin_sha256, built->parts[0].summary.idx_sha256};
}

}  // namespace

TEST_CASE("JSON lines, plain and as gzip, give the bytes of Megatron's builder with any threads") {
  const Json expected = Json::parse(test::read_text(kFolder + "/megatron.json"));
  test::ScopedTempDir dir;
  const std::string lines = json_lines();
  test::write_text(dir.path() / "a.jsonl", lines);
  // Two gzip members whose boundary is inside a line, and an empty line.
  test::write_text(dir.path() / "b.jsonl.gz",
                   gzip("\n" + lines.substr(0, 300'001)) + gzip(lines.substr(300'001)));
  const std::string marked = "\xEF\xBB\xBF" + lines;  // as some editors on Windows begin a file
  test::write_text(dir.path() / "marked.jsonl", marked);
  test::write_text(dir.path() / "marked.jsonl.gz", gzip(marked));
  for (const char* name : {"a.jsonl", "b.jsonl.gz", "marked.jsonl", "marked.jsonl.gz"}) {
    for (const int threads : {1, 3}) {
      CAPTURE(name);
      BuildOptions options{.corpus = {.inputs = {dir.path() / name}},
                           .output = dir.str("out"),
                           .overwrite = true,
                           .documents = {.json_key = "text", .keep_non_text = true},
                           .threads = threads};
      CHECK(Json(hashes(options)) == expected.at("plain"));
      options.append_eod = true;
      CHECK(Json(hashes(options)) == expected.at("with_end"));
    }
  }
}

TEST_CASE("files of a folder, of a pattern and of gzip give what JSON lines give") {
  const Json expected = Json::parse(test::read_text(kFolder + "/megatron.json"));
  test::ScopedTempDir dir;
  for (std::size_t i = 0; i < documents().size(); ++i)
    test::write_text(dir.path() / "in" / fmt::format("{:02}.txt", i),
                     i % 3 == 0 ? gzip(documents()[i]) : documents()[i]);
  BuildOptions options{.corpus = {.inputs = {dir.path() / "in"}},
                       .output = dir.str("out"),
                       .overwrite = true,
                       .documents = {.keep_non_text = true},
                       .threads = 2};
  CHECK(Json(hashes(options)) == expected.at("plain"));
  options.corpus.inputs = {dir.path() / "in" / "[01]?.txt", dir.path() / "in" / "[2-6]*"};
  CHECK(Json(hashes(options)) == expected.at("plain"));
  options.corpus.inputs = {dir.path() / "in" / "*.none"};
  const auto none = build_token_files(options, *qwen());
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().message.find("matches nothing") != std::string::npos);
}

TEST_CASE("a chunk of many small files needs no mapping for each") {
  constexpr std::size_t kFiles = 500;
  test::ScopedTempDir dir;
  for (std::size_t i = 0; i < kFiles; ++i)
    test::write_text(dir.path() / "in" / fmt::format("{:03}", i), fmt::format("text {:03}", i));
  const Corpus corpus = list_corpus({.inputs = {dir.path() / "in"}}).value();
  const auto tokenizer = make_byte_tokenizer();
  DocumentReader reader(corpus, {}, *tokenizer);
  const auto chunk = reader.next().value();
  REQUIRE(chunk.has_value());
  REQUIRE(chunk->pieces.size() == kFiles);
  CHECK(chunk->pieces[0].text == "text 000");
  CHECK(chunk->pieces[kFiles - 1].text == "text 499");
  CHECK(chunk->input_bytes == kFiles * 8);
  const std::string maps = test::read_text("/proc/self/maps");
  CHECK(maps.find(dir.path().string()) == std::string::npos);
}

TEST_CASE("special tokens are put around every document, also around one that is cut") {
  test::ScopedTempDir dir;
  std::string text;
  while (text.size() < (3u << 20))
    for (const std::string& document : documents()) text += document + "\nx\n";
  test::write_text(dir.path() / "in" / "1.txt", text);
  test::write_text(dir.path() / "in" / "2.txt", "short");
  const auto load = [](const char* name) {
    return make_tokenizer("hf:" + kFolder + "/" + name + ".json").value();
  };
  const auto tokenizer = load("o200k");
  BuildOptions options{.corpus = {.inputs = {dir.path() / "in"}},
                       .output = dir.str("out"),
                       .add_special_tokens = true,
                       .overwrite = true,
                       .documents = {.keep_non_text = true},
                       .threads = 2};
  REQUIRE(build_token_files(options, *tokenizer));
  const auto file = TokenFile::open(options.output).value();
  REQUIRE(file.num_documents() == 2);
  std::vector<std::int32_t> expected, stored(static_cast<std::size_t>(file.num_tokens()));
  REQUIRE(encode_with_special_tokens(*tokenizer, text, expected));
  REQUIRE(encode_with_special_tokens(*tokenizer, "short", expected));
  REQUIRE(file.read(0, tokenizer->vocab_size(), stored));
  CHECK(stored == expected);
  CHECK(test::read_text(dir.path() / "out.json").find("\"add_special_tokens\": true") !=
        std::string::npos);

  const auto refused = [&](const Tokenizer& other) {
    const auto built = build_token_files(options, other);
    return built ? "built" : built.error().message;
  };
  CHECK(refused(*load("gpt2")).find("puts none around a text; leave it out") != std::string::npos);
  options.append_eod = true;
  const auto llama = load("llama2");
  CHECK(refused(*llama).find("ends a document with that id already") != std::string::npos);
  // A token that begins a document is compatible with one that ends it.
  options.corpus.inputs = {dir.path() / "in" / "2.txt"};
  const auto begin = load("llama3");
  REQUIRE(build_token_files(options, *begin));
  const auto small = TokenFile::open(options.output).value();
  stored.resize(static_cast<std::size_t>(small.num_tokens()));
  REQUIRE(small.read(0, begin->vocab_size(), stored));
  CHECK(stored.front() == begin->special_tokens().before.at(0));
  CHECK(stored.back() == *begin->eod_id());
}

TEST_CASE("a long document is cut for the threads and keeps its tokens") {
  test::ScopedTempDir dir;
  std::string text;
  while (text.size() < (6u << 20))
    for (const std::string& document : documents()) text += document + "\nx\n";
  test::write_text(dir.path() / "long.txt", text);
  test::write_text(dir.path() / "long.gz", gzip(text));
  std::vector<std::int32_t> ids;
  REQUIRE(qwen()->encode(text, ids).has_value());
  for (const char* name : {"long.txt", "long.gz"}) {
    const BuildOptions options{.corpus = {.inputs = {dir.path() / name}},
                               .output = dir.str("out"),
                               .overwrite = true,
                               .documents = {.keep_non_text = true},
                               .threads = 3};
    REQUIRE(build_token_files(options, *qwen()).has_value());
    const auto file = TokenFile::open(dir.str("out"));
    REQUIRE(file.has_value());
    CHECK(file->num_documents() == 1);
    REQUIRE(file->num_tokens() == ids.size());
    std::vector<std::int32_t> tokens(ids.size());
    REQUIRE(file->read(0, 1 << 20, tokens).has_value());
    CHECK(tokens == ids);
  }
}

TEST_CASE("a pattern whose folder does not exist matches nothing") {
  const test::ScopedTempDir dir;
  for (const char* pattern : {"none/*.txt", "*.txt", "none/*/a"}) {
    const auto corpus = list_corpus({.inputs = {dir / pattern}});
    REQUIRE_FALSE(corpus);
    CHECK(corpus.error().message.ends_with("matches nothing"));
    CHECK(corpus.error().code == ErrorCode::not_found);
  }
}

TEST_CASE("inputs that are wrong are named by file and line, and leave nothing") {
  test::ScopedTempDir dir;
  BuildOptions options{.output = dir.str("out/x"), .documents = {.json_key = "text"}, .threads = 2};
  const auto message = [&](const std::string& content) {
    test::write_text(dir.path() / "in", content);
    options.corpus.inputs = {dir.path() / "in"};
    const auto built = build_token_files(options, *make_byte_tokenizer());
    CHECK(fs::is_empty(dir.path() / "out"));
    return built ? std::string("built") : built.error().message;
  };
  const std::string good = "{\"text\": \"a\"}\n";
  CHECK(message(good + good + "{\"txt\": \"a\"}\n").find("in:3: no \"text\"") != std::string::npos);
  // If a key appears twice, the last one counts.
  CHECK(message(good + "{\"text\": \"a\", \"text\": 3}").find("in:2: \"text\" is not a string") !=
        std::string::npos);
  CHECK(message(good + "{\"text\": 3}").find("in:2: \"text\" is not a string") !=
        std::string::npos);
  for (const char* value : {"null", "true", "[\"a\"]", "{\"text\": \"a\"}"})
    CHECK(message(good + "{\"text\": " + value + "}").find("in:2: \"text\" is not a string") !=
          std::string::npos);
  CHECK(message("{\"text\": \"a\"").find("in:1: not a JSON object") != std::string::npos);
  CHECK(message("{\"text\": \"\"}\n").find("no input has text") != std::string::npos);
  const std::string packed = gzip(good);
  CHECK(message(packed.substr(0, packed.size() - 9)).find("ends inside") != std::string::npos);
  std::string flipped = packed;
  flipped[packed.size() - 6] = static_cast<char>(flipped[packed.size() - 6] ^ 1);  // the checksum
  CHECK(message(flipped).find("broken gzip file") != std::string::npos);
  CHECK(message(packed + "rest").find("invalid data after") != std::string::npos);
  options.documents.json_key.clear();
  test::write_text(dir.path() / "x.jsonl", good);
  options.corpus.inputs = {dir.path() / "x.jsonl"};
  const auto refused = build_token_files(options, *make_byte_tokenizer());
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message.find("--json-key") != std::string::npos);
}

TEST_CASE("documents that are no text are left out and counted, or kept when that is asked for") {
  test::ScopedTempDir dir;
  const std::string latin(200, '\xe4');
  const std::string nearly = std::string(300, 'a') + "\xe4" + std::string(300, 'b');  // below 1 %
  test::write_text(dir.path() / "in/a.txt", "text");
  test::write_text(dir.path() / "in/b.png", std::string("\x89PNG\0\0", 6));
  test::write_text(dir.path() / "in/c.txt", latin);
  test::write_text(dir.path() / "in/d.txt", nearly);
  test::write_text(dir.path() / "in/e.gz", gzip(std::string("\0 packed", 8)));
  BuildOptions options{.corpus = {.inputs = {dir.path() / "in"}}, .output = dir.str("out")};
  const auto built = build_token_files(options, *make_byte_tokenizer());
  REQUIRE_MESSAGE(built, (built ? "" : built.error().message));
  CHECK(built->left_out.with_nul == 2);
  CHECK(built->left_out.invalid_utf8 == 1);
  CHECK(built->left_out.bytes == 6 + 200 + 8);
  CHECK(built->left_out.examples ==
        std::vector<std::string>{dir.str("in/b.png"), dir.str("in/c.txt"), dir.str("in/e.gz")});
  CHECK(built->left_out.summary("document")
            .starts_with("3 documents that are no text (0.0 MB): 2 with NUL bytes, 1 not UTF-8 ("));
  CHECK(test::read_text(dir.path() / "out.bin") == "text" + nearly);
  const auto manifest = Json::parse(test::read_text(dir.path() / "out.json"));
  CHECK(manifest["left_out_documents"] == 3);
  CHECK(manifest["left_out_bytes"] == 214);
  options.documents.keep_non_text = true;
  options.overwrite = true;
  REQUIRE(build_token_files(options, *make_byte_tokenizer()));
  CHECK(test::read_text(dir.path() / "out.bin") ==
        "text" + std::string("\x89PNG\0\0", 6) + latin + nearly + std::string("\0 packed", 8));
}

TEST_CASE("each part of a cut file, and each JSON line, is judged by itself") {
  test::ScopedTempDir dir;
  std::string text;
  for (int i = 0; i < 9; ++i)
    text += std::string(99, static_cast<char>('a' + i)) + (i == 4 ? std::string("\0\n", 2) : "\n");
  test::write_text(dir.path() / "long", text);
  BuildOptions options{.corpus = {.inputs = {dir.path() / "long"}}, .output = dir.str("out")};
  options.documents.document_bytes = 50;
  const auto built = build_token_files(options, *make_byte_tokenizer()).value();
  CHECK(built.left_out.with_nul == 1);
  CHECK(built.parts[0].summary.documents == 8);
  test::write_text(dir.path() / "x.jsonl",
                   "{\"text\": \"good\"}\n{\"text\": \"a\\u0000b\"}\n{\"text\": \"\xff\"}\n");
  options = {.corpus = {.inputs = {dir.path() / "x.jsonl"}}, .output = dir.str("json")};
  options.documents.json_key = "text";
  const auto lines = build_token_files(options, *make_byte_tokenizer()).value();
  CHECK(lines.left_out.with_nul == 1);
  CHECK(lines.left_out.invalid_utf8 == 1);
  CHECK(lines.left_out.examples ==
        std::vector<std::string>{dir.str("x.jsonl:2"), dir.str("x.jsonl:3")});
  CHECK(test::read_text(dir.path() / "json.bin") == "good");
}

TEST_CASE("nothing but files that are no text is an error that says so") {
  test::ScopedTempDir dir;
  for (int i = 0; i < 200; ++i)
    test::write_text(dir.path() / "in" / fmt::format("{:03}.png", i), std::string("\0x", 2));
  const auto refused =
      build_token_files({.corpus = {.inputs = {dir.path() / "in"}}, .output = dir.str("out")},
                        *make_byte_tokenizer());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find(
            "no input has text; left out: 200 documents that are no text") != std::string::npos);
  CHECK(refused.error().message.find("--keep-non-text") != std::string::npos);
}

TEST_CASE("the string of a JSON line is what a JSON library reads") {
  std::string buffer;
  const auto read = [&](std::string_view line) {
    const auto text = json_line_string(line, "text", buffer);
    return text ? std::string(*text) : "error: " + text.error().message;
  };
  for (const char* line :
       {R"({"text":"plain"})", R"( { "a" : [1, {"text": "x"}, "}"], "text" : "later" } )",
        R"({"text":"\"\\\/\b\f\n\r\t\u00e9\u4e2d\ud83d\ude00"})", R"({"te\u0078t":"key"})",
        R"({"n":-1.5e+3,"t":true,"f":false,"z":null,"e":{},"l":[],"text":"scalars"})",
        R"({"text":"first","text":"last"})"})
    CHECK(read(line) == Json::parse(line).at("text").get<std::string>());
  CHECK(read(R"({"text":"\ud83d \ude00"})") == "\xef\xbf\xbd \xef\xbf\xbd");
  for (const char* line : {"", "[]", "{", "{}", R"({"text")", R"({"text":)", R"({"text":"a)",
                           R"({"text":"a"} x)", R"({"text":"a",})", R"({"text":"\q"})",
                           R"({"text":"\u12"})", R"({"text":"\)", R"({"a":[1,2,"text":"b"})",
                           R"({"a":,"text":"b"})", R"({"text":null})", "{\"text\":\"\n\"}"}) {
    CAPTURE(line);
    CHECK(read(line).starts_with("error: "));
  }
}

}  // namespace sortie::trainer
