// Tests of TokenFile, TokenIndex and TokenFileWriter: golden bytes, and every way in which an .idx
// file can be wrong.
#include "trainer/data/token_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "tests/support/temp_dir.h"
#include "trainer/data/token_writer.h"

namespace sortie::trainer {
namespace {

using Document = std::vector<std::int32_t>;

std::string unhex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

// Documents [11 12 13] [21 22] [31 32 33 34] as u16, byte for byte as Megatron writes them.
const std::string kGoldenBin = unhex("0b000c000d00150016001f00200021002200");
const std::string kGoldenIdx = unhex(
    "4d4d494449445800000100000000000000080300000000000000040000000000000003000000020000000400000000"
    "0000000000000006000000000000000a00000000000000000000000000000001000000000000000200000000000000"
    "0300000000000000");
const std::vector<Document> kGoldenDocuments = {{11, 12, 13}, {21, 22}, {31, 32, 33, 34}};

void write_documents(const std::string& prefix, TokenType type,
                     const std::vector<Document>& documents) {
  auto writer = TokenFileWriter::create(prefix, type, false);
  REQUIRE(writer.has_value());
  for (const Document& document : documents) {
    REQUIRE(writer->append(document).has_value());
    REQUIRE(writer->end_document().has_value());
  }
  REQUIRE(writer->finish().has_value());
}

struct Golden {
  Golden() {
    test::write_text(prefix + ".bin", kGoldenBin);
    test::write_text(prefix + ".idx", kGoldenIdx);
  }
  /// Opens the changed files and returns the error message.
  std::string error() const {
    auto file = TokenFile::open(prefix);
    REQUIRE_FALSE(file.has_value());
    CHECK(file.error().code == ErrorCode::data);
    CHECK(file.error().message.find(prefix) != std::string::npos);
    return file.error().message;
  }
  template <class T>
  void patch(std::size_t at, T value) const {
    std::string bytes = kGoldenIdx;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    test::write_text(prefix + ".idx", bytes);
  }

  test::ScopedTempDir dir;
  std::string prefix = dir.str("corpus");
};

bool contains(const std::string& text, std::string_view part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("the writer produces Megatron's bytes") {
  test::ScopedTempDir dir;
  write_documents(dir.str("corpus"), TokenType::u16, kGoldenDocuments);
  CHECK(test::read_text(dir.path() / "corpus.bin") == kGoldenBin);
  CHECK(test::read_text(dir.path() / "corpus.idx") == kGoldenIdx);
}

TEST_CASE("the reader gives the documents of Megatron's bytes") {
  const Golden golden;
  const auto file = TokenFile::open(golden.prefix);
  REQUIRE(file.has_value());
  CHECK(file->num_documents() == 3);
  CHECK(file->num_tokens() == 9);
  for (std::size_t i = 0; i < kGoldenDocuments.size(); ++i) {
    Document read(file->index().document_tokens(i));
    REQUIRE(file->read(file->index().document_begin(i), 100, read).has_value());
    CHECK(read == kGoldenDocuments[i]);
  }
  CHECK(file->index().document_of(0) == 0);
  CHECK(file->index().document_of(2) == 0);
  CHECK(file->index().document_of(3) == 1);
  CHECK(file->index().document_of(8) == 2);
}

TEST_CASE("every token type goes out and comes back") {
  for (const TokenType type : {TokenType::u8, TokenType::i8, TokenType::i16, TokenType::u16,
                               TokenType::i32, TokenType::i64}) {
    CAPTURE(token_type_name(type));
    test::ScopedTempDir dir;
    Document ids(128);
    std::iota(ids.begin(), ids.end(), 0);
    if (token_bytes(type) > 1) ids.push_back(32767);
    if (token_bytes(type) > 2) ids.push_back(2147483646);
    write_documents(dir.str("t"), type, {ids, {}, {5}});
    const auto file = TokenFile::open(dir.str("t"));
    REQUIRE(file.has_value());
    CHECK(file->index().type() == type);
    CHECK(file->num_documents() == 3);
    Document read(ids.size());
    REQUIRE(file->read(0, 2147483647, read).has_value());
    CHECK(read == ids);
    CHECK(file->index().document_tokens(1) == 0);
    CHECK(file->index().document_of(ids.size()) == 2);
  }
}

TEST_CASE("an id outside the vocabulary names file, document, token and id") {
  const Golden golden;
  const auto file = TokenFile::open(golden.prefix);
  REQUIRE(file.has_value());
  Document out(9);
  CHECK(file->read(0, 35, out).has_value());
  const auto read = file->read(0, 33, out);
  REQUIRE_FALSE(read.has_value());
  CHECK(read.error().code == ErrorCode::data);
  CHECK(contains(read.error().message,
                 "corpus.bin: document 2, token 2: id 33 is outside the vocabulary of 33"));

  test::ScopedTempDir dir;
  write_documents(dir.str("n"), TokenType::i32, {{1, -7}});
  const auto negative = TokenFile::open(dir.str("n"));
  REQUIRE(negative.has_value());
  Document two(2);
  CHECK(contains(negative->read(0, 100, two).error().message, "document 0, token 1: id -7"));
}

TEST_CASE("a 64-bit id is not wrapped into the vocabulary") {
  test::ScopedTempDir dir;
  write_documents(dir.str("w"), TokenType::i64, {{1, 2}});
  std::string bin = test::read_text(dir.path() / "w.bin");
  const std::int64_t huge = (std::int64_t{1} << 32) + 5;
  std::memcpy(bin.data() + 8, &huge, 8);
  test::write_text(dir.path() / "w.bin", bin);
  const auto file = TokenFile::open(dir.str("w"));
  REQUIRE(file.has_value());
  Document out(2);
  CHECK(contains(file->read(0, 100, out).error().message, "id 4294967301"));
}

TEST_CASE("each truncation of an .idx is refused") {
  const Golden golden;
  for (std::size_t size = 0; size < kGoldenIdx.size(); ++size) {
    CAPTURE(size);
    test::write_text(golden.prefix + ".idx", kGoldenIdx.substr(0, size));
    CHECK(contains(golden.error(), "truncated"));
  }
}

TEST_CASE("an inconsistent .idx is refused with the numbers that disagree") {
  const Golden golden;
  SUBCASE("magic") {
    golden.patch<char>(0, 'X');
    CHECK(contains(golden.error(), "wrong magic"));
  }
  SUBCASE("version") {
    golden.patch<std::uint64_t>(9, 2);
    CHECK(contains(golden.error(), "version 2"));
  }
  SUBCASE("floating-point type") {
    golden.patch<std::uint8_t>(17, 7);
    CHECK(contains(golden.error(), "element type 7"));
  }
  SUBCASE("unknown type") {
    golden.patch<std::uint8_t>(17, 9);
    CHECK(contains(golden.error(), "element type 9"));
  }
  SUBCASE("more sequences than bytes") {
    golden.patch<std::uint64_t>(18, 4);
    CHECK(contains(golden.error(), "102 bytes, but 4 sequences and 4 document bounds need 114"));
  }
  SUBCASE("counts that overflow") {
    golden.patch<std::uint64_t>(18, ~std::uint64_t{0} / 12 + 2);
    CHECK(contains(golden.error(), "truncated"));
  }
  SUBCASE("fewer sequences than bytes") {
    golden.patch<std::uint64_t>(18, 2);
    CHECK(contains(golden.error(), "102 bytes, but 2 sequences and 4 document bounds need 90"));
  }
  SUBCASE("multimodal modes at the end") {
    test::write_text(golden.prefix + ".idx", kGoldenIdx + std::string(3, '\0'));
    CHECK(contains(golden.error(), "multimodal"));
  }
  SUBCASE("negative length") {
    golden.patch<std::int32_t>(38, -1);
    CHECK(contains(golden.error(), "sequence 1 has length -1"));
  }
  SUBCASE("pointer beyond the .bin") {
    golden.patch<std::uint64_t>(46 + 16, 1000);
    CHECK(contains(golden.error(), "has 18 bytes"));
    CHECK(contains(golden.error(), "sequence 2 (8 bytes) at byte 1000"));
  }
  SUBCASE("pointer that would overflow") {
    golden.patch<std::uint64_t>(46 + 16, ~std::uint64_t{0} - 3);
    CHECK(contains(golden.error(), "has 18 bytes"));
  }
  SUBCASE("sequences that overlap") {
    golden.patch<std::uint64_t>(46 + 16, 8);
    CHECK(contains(golden.error(),
                   "sequence 2 starts at byte 8, but the sequences before it end at byte 10"));
  }
  SUBCASE("lengths that do not fill the .bin") {
    golden.patch<std::int32_t>(42, 3);
    CHECK(contains(golden.error(), "has 18 bytes, but the lengths"));
    CHECK(contains(golden.error(), "add up to 16"));
  }
  SUBCASE("document bounds that fall") {
    golden.patch<std::uint64_t>(70 + 8, 3);
    CHECK(contains(golden.error(), "document bounds fall from 3 to 2 at document 2"));
  }
  SUBCASE("document bounds that do not start at 0") {
    golden.patch<std::uint64_t>(70, 1);
    CHECK(contains(golden.error(), "start at 1, not 0"));
  }
  SUBCASE("document bounds that end elsewhere") {
    golden.patch<std::uint64_t>(70 + 24, 9);
    CHECK(contains(golden.error(), "end at sequence 9, but there are 3"));
  }
  SUBCASE("no document bounds") {
    std::string idx = kGoldenIdx.substr(0, 70);
    idx[26] = 0;
    test::write_text(golden.prefix + ".idx", idx);
    CHECK(contains(golden.error(), "no document bounds"));
  }
  SUBCASE("truncated .bin") {
    test::write_text(golden.prefix + ".bin", kGoldenBin.substr(0, 17));
    CHECK(contains(golden.error(), "corpus.bin: has 17 bytes"));
  }
  SUBCASE("longer .bin") {
    test::write_text(golden.prefix + ".bin", kGoldenBin + "x");
    CHECK(contains(golden.error(), "corpus.bin: has 19 bytes, but the lengths"));
  }
  SUBCASE("missing .bin") {
    std::filesystem::remove(golden.prefix + ".bin");
    CHECK(contains(golden.error(), "No such file"));
  }
  SUBCASE("missing .idx") {
    std::filesystem::remove(golden.prefix + ".idx");
    CHECK(contains(golden.error(), "corpus.idx: No such file"));
  }
  SUBCASE("a folder in its place") {
    std::filesystem::remove(golden.prefix + ".bin");
    std::filesystem::create_directory(golden.prefix + ".bin");
    CHECK(contains(golden.error(), "not a regular file"));
  }
}

TEST_CASE("no single changed byte of an .idx crashes the reader or reads beyond the .bin") {
  const Golden golden;
  for (std::size_t at = 0; at < kGoldenIdx.size(); ++at)
    for (const int change : {0x01, 0x80, 0xff}) {
      golden.patch<std::uint8_t>(
          at, static_cast<std::uint8_t>(static_cast<unsigned char>(kGoldenIdx[at]) ^ change));
      const auto file = TokenFile::open(golden.prefix);
      if (!file) continue;
      Document out(file->num_tokens());
      CHECK(file->num_tokens() * token_bytes(file->index().type()) == kGoldenBin.size());
      CHECK(file->read(0, 2147483647, out).has_value());
    }
}

TEST_CASE("an unfinished writer leaves nothing, and an old file stays as it was") {
  test::ScopedTempDir dir;
  write_documents(dir.str("corpus"), TokenType::u16, kGoldenDocuments);
  {
    auto writer = TokenFileWriter::create(dir.str("corpus"), TokenType::u8, true);
    REQUIRE(writer.has_value());
    REQUIRE(writer->append_raw(std::as_bytes(std::span("half a file", 11))).has_value());
  }
  CHECK(test::read_text(dir.path() / "corpus.bin") == kGoldenBin);
  CHECK(test::read_text(dir.path() / "corpus.idx") == kGoldenIdx);
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.path()))
    ++files;
  CHECK(files == 2);
}

TEST_CASE("an existing output is refused unless it may be overwritten") {
  test::ScopedTempDir dir;
  write_documents(dir.str("corpus"), TokenType::u16, kGoldenDocuments);
  const auto refused = TokenFileWriter::create(dir.str("corpus"), TokenType::u8, false);
  REQUIRE_FALSE(refused.has_value());
  CHECK(contains(refused.error().message, "--overwrite"));
  auto writer = TokenFileWriter::create(dir.str("corpus"), TokenType::u8, true);
  REQUIRE(writer.has_value());
  REQUIRE(writer->append_raw(std::as_bytes(std::span("abc", 3))).has_value());
  REQUIRE(writer->end_document().has_value());
  REQUIRE(writer->finish().has_value());
  CHECK(TokenFile::open(dir.str("corpus"))->num_tokens() == 3);
}

TEST_CASE("two writers of one output exclude each other") {
  test::ScopedTempDir dir;
  const auto first = TokenFileWriter::create(dir.str("corpus"), TokenType::u8, false);
  REQUIRE(first.has_value());
  const auto second = TokenFileWriter::create(dir.str("corpus"), TokenType::u8, false);
  REQUIRE_FALSE(second.has_value());
  CHECK(contains(second.error().message, "another build is writing it"));
}

TEST_CASE("a temporary file that a killed build left is taken over") {
  test::ScopedTempDir dir;
  test::write_text(dir.path() / "corpus.bin.tmp", std::string(100, 'x'));
  write_documents(dir.str("corpus"), TokenType::u16, kGoldenDocuments);
  CHECK(test::read_text(dir.path() / "corpus.bin") == kGoldenBin);
}

TEST_CASE("the fingerprint changes with the tokens and with the documents") {
  test::ScopedTempDir dir;
  write_documents(dir.str("a"), TokenType::u8, {{1, 2}, {3}});
  write_documents(dir.str("b"), TokenType::u8, {{1, 2}, {4}});
  write_documents(dir.str("c"), TokenType::u8, {{1}, {2, 3}});
  write_documents(dir.str("d"), TokenType::u8, {{1, 2}, {3}});
  const std::string a = TokenFile::open(dir.str("a"))->fingerprint();
  CHECK(a.size() == 32);
  CHECK(a != TokenFile::open(dir.str("b"))->fingerprint());
  CHECK(a != TokenFile::open(dir.str("c"))->fingerprint());
  CHECK(a == TokenFile::open(dir.str("d"))->fingerprint());
}

}  // namespace sortie::trainer
