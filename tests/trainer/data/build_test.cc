// Tests of `data build`: order, split, manifest, interruption, inspection.
#include "trainer/data/build.h"

#include <doctest/doctest.h>

#include <fmt/core.h>

#include <set>
#include <string>

#include "tests/support/temp_dir.h"
#include "tests/support/without_call.h"
#include "trainer/data/build_manifest.h"
#include "trainer/data/inspect.h"
#include "trainer/data/output_file.h"
#include "trainer/data/token_file.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

std::string document_text(const TokenFile& file, std::uint64_t document) {
  std::vector<std::int32_t> ids(file.index().document_tokens(document));
  REQUIRE(file.read(file.index().document_begin(document), 257, ids).has_value());
  return make_byte_tokenizer()->decode(ids);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

struct Tree {
  Tree() {
    test::write_text(root / "b.txt", "bee");
    test::write_text(root / "a/z.txt", "zed");
    test::write_text(root / "a/y.h", "why");
    test::write_text(root / "a.txt", "ay");
    test::write_text(root / "empty.txt", "");
    test::write_text(root / ".hidden", "no");
    test::write_text(root / ".git/config", "no");
    fs::create_symlink(root / "b.txt", root / "link.txt");
  }
  test::ScopedTempDir dir;
  fs::path root = dir.path() / "in";
};

}  // namespace

TEST_CASE("output on a file system without locks is written all the same") {
  const test::ScopedTempDir dir;
  test::without_call(SYS_flock, [&] {
    auto file = OutputFile::create(dir / "out.bin");
    REQUIRE_MESSAGE(file, (file ? "" : file.error().message));
    REQUIRE(file->sync());
    CHECK(file->publish());
  });
}

TEST_CASE("a folder gives its files by bytewise path, without empty, hidden and linked ones") {
  const Tree tree;
  const auto corpus = list_corpus({.inputs = {tree.root}});
  REQUIRE(corpus.has_value());
  CHECK(corpus->files == std::vector<fs::path>{tree.root / "a.txt", tree.root / "a/y.h",
                                               tree.root / "a/z.txt", tree.root / "b.txt"});
  CHECK(corpus->bytes == 11);
  CHECK(corpus->skipped_empty == 1);
  CHECK(corpus->skipped_hidden == 2);
  CHECK(corpus->skipped_links == 1);
}

TEST_CASE("inputs keep their order, repeated files count once, patterns select") {
  const Tree tree;
  const auto corpus = list_corpus({.inputs = {tree.root / "b.txt", tree.root}});
  REQUIRE(corpus.has_value());
  CHECK(corpus->files.front() == tree.root / "b.txt");
  CHECK(corpus->files.size() == 4);
  CHECK(corpus->skipped_repeated == 1);
  const auto headers = list_corpus({.inputs = {tree.root}, .include = {"*.h", "*.hpp"}});
  REQUIRE(headers.has_value());
  CHECK(headers->files == std::vector<fs::path>{tree.root / "a/y.h"});
  CHECK(list_corpus({.inputs = {tree.root}, .include = {"*.none"}}).error().code ==
        ErrorCode::data);
  CHECK(list_corpus({.inputs = {tree.root / "absent"}}).error().code == ErrorCode::not_found);
  CHECK(list_corpus({.inputs = {"/dev/null"}}).error().code == ErrorCode::data);
}

TEST_CASE("a build holds the text, and the same inputs give the same bytes") {
  const Tree tree;
  const auto tokenizer = make_byte_tokenizer();
  BuildOptions options{.corpus = {.inputs = {tree.root}}, .output = tree.dir.str("out/one")};
  const auto result = build_token_files(options, *tokenizer);
  REQUIRE(result.has_value());
  CHECK(result->type == TokenType::u8);
  const auto file = TokenFile::open(options.output);
  REQUIRE(file.has_value());
  REQUIRE(file->num_documents() == 4);
  CHECK(document_text(*file, 0) == "ay");
  CHECK(document_text(*file, 3) == "bee");
  CHECK(names_in(tree.dir.path() / "out") ==
        std::set<std::string>{"one.bin", "one.idx", "one.json"});

  options.output = tree.dir.str("again/one");
  REQUIRE(build_token_files(options, *tokenizer).has_value());
  for (const char* name : {"one.bin", "one.idx", "one.json"})
    CHECK(test::read_text(tree.dir.path() / "out" / name) ==
          test::read_text(tree.dir.path() / "again" / name));
}

TEST_CASE("an end-of-document id ends each document and needs two bytes per token") {
  const Tree tree;
  BuildOptions options{
      .corpus = {.inputs = {tree.root}}, .output = tree.dir.str("eod"), .append_eod = true};
  const auto result = build_token_files(options, *make_byte_tokenizer());
  REQUIRE(result.has_value());
  CHECK(result->type == TokenType::u16);
  const auto file = TokenFile::open(options.output);
  REQUIRE(file.has_value());
  CHECK(file->num_tokens() == 11 + 4);
  std::vector<std::int32_t> ids(3);
  REQUIRE(file->read(0, 257, ids).has_value());
  CHECK(ids == std::vector<std::int32_t>{'a', 'y', 256});
}

TEST_CASE("a split puts every hundredth document into validation") {
  test::ScopedTempDir dir;
  for (int i = 0; i < 250; ++i)
    test::write_text(dir.path() / "in" / fmt::format("{:03}", i), fmt::format("text {}", i));
  BuildOptions options{.corpus = {.inputs = {dir.path() / "in"}}, .output = dir.str("s")};
  options.split = *parse_split("99,1");
  REQUIRE(build_token_files(options, *make_byte_tokenizer()).has_value());
  const auto train = TokenFile::open(dir.str("s-train"));
  const auto validation = TokenFile::open(dir.str("s-validation"));
  REQUIRE(train.has_value());
  REQUIRE(validation.has_value());
  CHECK(train->num_documents() == 248);
  REQUIRE(validation->num_documents() == 2);
  CHECK(document_text(*validation, 0) == "text 99");
  CHECK(document_text(*validation, 1) == "text 199");
  CHECK(document_text(*train, 99) == "text 100");
}

TEST_CASE("a split that leaves a part empty is refused and leaves no file") {
  const Tree tree;
  BuildOptions options{.corpus = {.inputs = {tree.root}}, .output = tree.dir.str("out/s")};
  options.split = *parse_split("99,1");
  const auto result = build_token_files(options, *make_byte_tokenizer());
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().message.find("4 documents are too few for --split 99,1") !=
        std::string::npos);
  CHECK(names_in(tree.dir.path() / "out").empty());
}

TEST_CASE("one large file can be cut into documents at newlines") {
  test::ScopedTempDir dir;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += fmt::format("line {}\n", i);
  test::write_text(dir.path() / "big", text);
  BuildOptions options{.corpus = {.inputs = {dir.path() / "big"}}, .output = dir.str("cut")};
  options.split = *parse_split("9,1");
  options.documents.document_bytes = 100;
  REQUIRE(build_token_files(options, *make_byte_tokenizer()).has_value());
  const auto train = TokenFile::open(dir.str("cut-train"));
  const auto validation = TokenFile::open(dir.str("cut-validation"));
  REQUIRE(train.has_value());
  REQUIRE(validation.has_value());
  CHECK(train->num_tokens() + validation->num_tokens() == text.size());
  for (std::uint64_t i = 0; i < train->num_documents(); ++i) {
    const std::string document = document_text(*train, i);
    CHECK(document.back() == '\n');
    CHECK(document.starts_with("line "));
  }
}

TEST_CASE("bad splits are refused") {
  for (const char* text : {"", "99", "99,", ",1", "99,1,", "99,0", "0,1", "-1,1", "1.5,1", "99;1",
                           "99, 1", "99,10000000", "99999999999999999999,1"})
    CHECK_MESSAGE(parse_split(text).error().code == ErrorCode::usage, text);
  CHECK(*parse_split("99,1") == std::pair<std::uint64_t, std::uint64_t>(99, 1));
}

TEST_CASE("a folder is no prefix: its files would be hidden") {
  const Tree tree;
  for (const char* output : {"out/", "out/.", "out/.."}) {
    BuildOptions options{.corpus = {.inputs = {tree.root}}, .output = tree.dir.str(output)};
    const auto refused = build_token_files(options, *make_byte_tokenizer());
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == ErrorCode::usage);
    CHECK(refused.error().message.starts_with("--output " + options.output + ": a folder, "));
  }
  CHECK_FALSE(fs::exists(tree.dir / "out"));
}

TEST_CASE("a prefix is not the name of a token file, which no config accepts") {
  const Tree tree;
  for (const char* ending : {".bin", ".idx"}) {
    BuildOptions options{.corpus = {.inputs = {tree.root}},
                         .output = tree.dir.str("out/b") + ending};
    const auto refused = build_token_files(options, *make_byte_tokenizer());
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == ErrorCode::usage);
    CHECK(refused.error().message.starts_with("--output " + options.output +
                                              ": a prefix is expected"));
    CHECK(refused.error().message.ends_with("; write " + tree.dir.str("out/b")));
  }
  CHECK_FALSE(fs::exists(tree.dir / "out"));
}

TEST_CASE("a build replaces the manifest of another build only if it is told to") {
  const Tree tree;
  BuildOptions options{.corpus = {.inputs = {tree.root}}, .output = tree.dir.str("y")};
  options.split = *parse_split("1,1");
  REQUIRE(build_token_files(options, *make_byte_tokenizer()).has_value());
  options.split.reset();
  const auto refused = build_token_files(options, *make_byte_tokenizer());
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == ErrorCode::usage);
  CHECK(refused.error().message ==
        tree.dir.str("y.json") + ": exists; choose another --output or give --overwrite");
  CHECK(inspect_token_file(tree.dir.str("y-train"), 5)->manifest.has_value());
  CHECK_FALSE(fs::exists(tree.dir / "y.bin"));
  options.overwrite = true;
  CHECK(build_token_files(options, *make_byte_tokenizer()).has_value());
}

TEST_CASE("a build that fails between its files leaves no manifest of the old ones") {
  const Tree tree;
  BuildOptions options{
      .corpus = {.inputs = {tree.root}}, .output = tree.dir.str("s"), .overwrite = true};
  options.split = *parse_split("1,1");
  REQUIRE(build_token_files(options, *make_byte_tokenizer()).has_value());
  fs::remove(tree.dir / "s-validation.bin");
  fs::create_directories(tree.dir / "s-validation.bin");  // no file can replace it
  test::write_text(tree.root / "a.txt", "another text");
  const std::string old = test::read_text(tree.dir / "s-train.bin");
  CHECK_FALSE(build_token_files(options, *make_byte_tokenizer()).has_value());
  CHECK(test::read_text(tree.dir / "s-train.bin") != old);
  CHECK_FALSE(fs::exists(tree.dir / "s.json"));
  const auto inspection = inspect_token_file(tree.dir.str("s-train"), 5);
  REQUIRE(inspection.has_value());
  CHECK_FALSE(inspection->manifest.has_value());
}

TEST_CASE("a build never replaces an input") {
  for (const char* ending : {".json", ".bin", ".idx"}) {
    CAPTURE(ending);
    const test::ScopedTempDir dir;
    const std::string line = "{\"text\": \"good\"}\n", name = std::string("train") + ending;
    test::write_text(dir / "text", line);
    fs::create_hard_link(dir / "text", dir / name);
    BuildOptions options{.corpus = {.inputs = {dir / "text"}}, .output = dir.str("train")};
    options.documents.json_key = "text";
    for (const bool overwrite : {false, true}) {
      options.overwrite = overwrite;
      const auto refused = build_token_files(options, *make_byte_tokenizer());
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().code == ErrorCode::data);
      CHECK(refused.error().message == dir.str(name) + ": is the input " + dir.str("text") +
                                           ", which the build would replace; choose another "
                                           "--output");
    }
    CHECK(test::read_text(dir / name) == line);
    CHECK(names_in(dir.path()) == std::set<std::string>{"text", name});
  }
}

TEST_CASE("an interrupted build leaves nothing") {
  const Tree tree;
  int asked = 0;
  BuildOptions options{.corpus = {.inputs = {tree.root}}, .output = tree.dir.str("out/i")};
  options.interrupted = [&] { return ++asked == 2; };
  const auto result = build_token_files(options, *make_byte_tokenizer());
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().code == ErrorCode::interrupted);
  CHECK(names_in(tree.dir.path() / "out").empty());
}

TEST_CASE("progress ends at the whole corpus") {
  const Tree tree;
  BuildProgress last;
  BuildOptions options{.corpus = {.inputs = {tree.root}}, .output = tree.dir.str("p")};
  options.progress = [&](const BuildProgress& progress) { last = progress; };
  REQUIRE(build_token_files(options, *make_byte_tokenizer()).has_value());
  CHECK(last.files == 4);
  CHECK(last.bytes == 11);
  CHECK(last.total_bytes == 11);
  CHECK(last.tokens == 11);
}

TEST_CASE("inspection counts, and finds a file that was changed") {
  const Tree tree;
  BuildOptions options{.corpus = {.inputs = {tree.root}}, .output = tree.dir.str("x")};
  REQUIRE(build_token_files(options, *make_byte_tokenizer()).has_value());
  const auto inspection = inspect_token_file(tree.dir.str("x"), 5);
  REQUIRE(inspection.has_value());
  CHECK(inspection->documents == 4);
  CHECK(inspection->tokens == 11);
  CHECK(inspection->shortest == 2);
  CHECK(inspection->longest == 3);
  CHECK(inspection->lengths[2] == 4);  // documents of two or three tokens
  CHECK(inspection->min_id == 'a');
  CHECK(inspection->max_id == 'z');
  CHECK(inspection->first_tokens == std::vector<std::int32_t>{'a', 'y', 'w', 'h', 'y'});
  REQUIRE(inspection->manifest.has_value());
  CHECK(inspection->manifest->tokenizer == "byte");

  std::string bin = test::read_text(tree.dir.path() / "x.bin");
  bin[4] ^= 1;
  test::write_text(tree.dir.path() / "x.bin", bin);
  const auto changed = inspect_token_file(tree.dir.str("x"), 5);
  REQUIRE_FALSE(changed.has_value());
  CHECK(changed.error().message.find("SHA-256 of the .bin") != std::string::npos);
  fs::remove(tree.dir.path() / "x.json");
  CHECK(inspect_token_file(tree.dir.str("x"), 5).has_value());
}

TEST_CASE("a part of a split finds the manifest of the whole") {
  const Tree tree;
  BuildOptions options{.corpus = {.inputs = {tree.root}}, .output = tree.dir.str("s")};
  options.split = *parse_split("1,1");
  REQUIRE(build_token_files(options, *make_byte_tokenizer()).has_value());
  const auto train = inspect_token_file(tree.dir.str("s-train"), 5);
  REQUIRE(train->manifest.has_value());
  CHECK(part_of(*train->manifest, tree.dir.str("s-train"))->max_id == train->max_id);
  CHECK(part_of(*train->manifest, tree.dir.str("s")) == nullptr);
  CHECK(inspect_token_file(tree.dir.str("s-validation"), 5)->manifest.has_value());
}

TEST_CASE("token files that were renamed with their manifest are checked against it") {
  const Tree tree;
  const auto rename = [&](const std::string& from, const std::string& to,
                          std::initializer_list<const char*> ends) {
    for (const std::string end : ends)
      fs::rename(tree.dir.path() / (from + end), tree.dir.path() / (to + end));
  };
  const auto damage = [&](const std::string& file) {
    std::string bin = test::read_text(tree.dir.path() / file);
    bin[4] ^= 1;
    test::write_text(tree.dir.path() / file, bin);
  };
  BuildOptions options{.corpus = {.inputs = {tree.root}}, .output = tree.dir.str("one")};
  REQUIRE(build_token_files(options, *make_byte_tokenizer()).has_value());
  rename("one", "new", {".bin", ".idx", ".json"});
  const auto whole = inspect_token_file(tree.dir.str("new"), 5);
  REQUIRE_MESSAGE(whole, (whole ? "" : whole.error().message));
  REQUIRE(whole->manifest);
  CHECK(part_of(*whole->manifest, tree.dir.str("new"))->max_id == whole->max_id);
  damage("new.bin");
  const auto changed = inspect_token_file(tree.dir.str("new"), 5);
  REQUIRE_FALSE(changed);
  CHECK(changed.error().message.find("SHA-256 of the .bin") != std::string::npos);

  options.output = tree.dir.str("two");
  options.split = *parse_split("1,1");
  REQUIRE(build_token_files(options, *make_byte_tokenizer()).has_value());
  rename("two", "both",
         {"-train.bin", "-train.idx", "-validation.bin", "-validation.idx", ".json"});
  CHECK(inspect_token_file(tree.dir.str("both-train"), 5)->manifest);
  damage("both-validation.bin");
  CHECK_FALSE(inspect_token_file(tree.dir.str("both-validation"), 5));
  // Which of two parts a file was is not known.
  rename("both-train", "both", {".bin", ".idx"});
  const auto which = inspect_token_file(tree.dir.str("both"), 5);
  REQUIRE_FALSE(which);
  CHECK_MESSAGE(which.error().message ==
                    tree.dir.str("both.json") +
                        ": it is the manifest of two-train, two-validation, and not of both; name "
                        "one of these, or build the token files again",
                which.error().message);
}

TEST_CASE("a manifest goes out and comes back, a broken one is an error") {
  BuildManifest manifest{.tokenizer = "sentencepiece:/m \"x\".model",
                         .tokenizer_sha256 = "00",
                         .vocab_size = 1000,
                         .eod_id = 1,
                         .append_eod = true,
                         .token_type = "u16",
                         .text_bytes = 12,
                         .files = 3,
                         .parts = {{"p-train", 2, 9, "aa", "bb", 700}}};
  const std::string text = to_json(manifest);
  const auto parsed = parse_build_manifest(text, "m.json");
  REQUIRE(parsed.has_value());
  CHECK(to_json(*parsed) == text);
  for (const std::string& broken :
       {std::string("{"), std::string("[]"), std::string("{\"format\":\"sortie-data\"}"),
        std::string("{\"format\":3,\"version\":1}"), text.substr(0, text.size() / 2)}) {
    const auto refused = parse_build_manifest(broken, "m.json");
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == ErrorCode::data);
    CHECK(refused.error().message.starts_with("m.json: "));
    CHECK(refused.error().message.find("json.exception") == std::string::npos);
  }
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string broken = text;
    const std::size_t at = broken.find(from);
    REQUIRE(at != std::string::npos);
    return parse_build_manifest(broken.replace(at, from.size(), to), "m.json").error().message;
  };
  // A message has the place, what is wrong there, and what to do.
  const std::string advice =
      "; build the token files again with `sortie-train data build`, or move this file away";
  CHECK(message("\"text_bytes\": 12", "\"text_bytes\": \"x\"") ==
        "m.json: not a data manifest: \"text_bytes\": a string, where a number is expected" +
            advice);
  CHECK(message("\"bin_sha256\"", "\"b\"") ==
        "m.json: not a data manifest: no \"bin_sha256\"" + advice);
  CHECK(message("\"version\": 1,", "\"version\": 1 1,")
            .starts_with("m.json: not a data manifest: line 3, column 16: not valid JSON"));
}

}  // namespace sortie::trainer
