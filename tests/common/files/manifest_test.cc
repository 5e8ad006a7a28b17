// File lists from a hostile peer.
#include "common/files/manifest.h"

#include <doctest/doctest.h>

#include "common/files/piece.h"

using namespace sortie;
using namespace sortie::files;
using wire::FileEntry;
using wire::FileKind;

namespace {

FileEntry folder(const char* path) {
  return {path, FileKind::folder, 0755, 0, "", ""};
}
FileEntry file(const char* path, std::uint64_t size) {
  return {path, FileKind::file, 0644, size, std::string(piece_count(size) * 32, 'h'), ""};
}
FileEntry link_entry(const char* path, const char* target) {
  return {path, FileKind::symlink, 0777, 0, "", target};
}
Result<> read(std::vector<FileEntry> entries) {
  ManifestReader reader;
  return reader.add({std::move(entries), 1});
}

}  // namespace

TEST_CASE("a tree in order is taken") {
  ManifestReader reader;
  CHECK(reader.add({{folder("a"), file("a/b", 3), folder("a/c"), link_entry("a/c/l", "../b")}, 0}));
  CHECK_FALSE(reader.complete());
  CHECK(reader.add({{file("a/d", 5u << 20), file("z", 0)}, 1}));
  CHECK(reader.complete());
  CHECK(reader.entries().size() == 6);
  CHECK_FALSE(reader.add({{file("zz", 0)}, 1}));
}

TEST_CASE("names twice, out of order or without their folder are refused") {
  CHECK_FALSE(read({file("a", 1), file("a", 1)}));
  CHECK_FALSE(read({file("b", 1), file("a", 1)}));
  CHECK_FALSE(read({file("a/b", 1)}));
  CHECK_FALSE(read({file("a", 1), file("a/b", 1)}));                  // below a file
  CHECK_FALSE(read({link_entry("a", "/etc"), file("a/passwd", 1)}));  // through a symlink
  CHECK_FALSE(read({folder("a"), folder("b"), file("b/c/d", 1)}));
  CHECK_FALSE(read({folder("a"), file("../x", 1)}));
  CHECK_FALSE(read({file("/etc/x", 1)}));
}

TEST_CASE("sizes and hashes must fit") {
  FileEntry entry = file("a", 1);
  entry.size = UINT64_MAX;
  CHECK_FALSE(read({entry}));
  entry.size = (1u << 20) + 1;
  CHECK_FALSE(read({entry}));
  entry = file("a", 10);
  entry.hashes.pop_back();
  CHECK_FALSE(read({entry}));
  entry = file("a", 0);
  entry.hashes = std::string(32, 'h');
  CHECK_FALSE(read({entry}));
  entry = folder("a");
  entry.size = 1;
  CHECK_FALSE(read({entry}));
  entry = file("a", 1);
  entry.mode = 04755;
  CHECK_FALSE(read({entry}));
  entry = file("a", 1);
  entry.link_target = "x";
  CHECK_FALSE(read({entry}));
  CHECK_FALSE(read({link_entry("a", "")}));
  CHECK_FALSE(read({link_entry("a", std::string(5000, 'x').c_str())}));
}

TEST_CASE("what a list may take of memory is bounded") {
  ManifestReader reader(64u << 10);
  Result<> added;
  for (int i = 0; i < 10'000 && added; ++i) {
    const std::string name = "f" + std::to_string(100'000 + i);
    added = reader.add({{file(name.c_str(), 1)}, 0});
  }
  REQUIRE_FALSE(added);
  CHECK(reader.entries().size() < 1000);
}

TEST_CASE("pieces that no file has can not be asked for") {
  const std::vector<FileEntry> entries = {folder("a"), file("a/b", (2u << 20) + 1)};
  const auto ask = [&](wire::PieceRange range) {
    WantedReader reader;
    return reader.add({{range}, 1, 0, ""}, entries).has_value();
  };
  CHECK(ask({1, 0, 3}));
  CHECK(ask({1, 2, 1}));
  CHECK_FALSE(ask({1, 0, 4}));
  CHECK_FALSE(ask({1, 3, 1}));
  CHECK_FALSE(ask({1, 0, 0}));
  CHECK_FALSE(ask({0, 0, 1}));
  CHECK_FALSE(ask({2, 0, 1}));
  CHECK_FALSE(ask({1, UINT32_MAX, UINT32_MAX}));
}

TEST_CASE("pieces of as many files as a manifest may have can be asked for") {
  const std::vector<FileEntry> entries = {file("a", 1)};
  const std::vector<wire::PieceRange> many(100'000, wire::PieceRange{0, 0, 1});
  WantedReader reader;
  std::size_t asked = 0;
  for (; asked < ManifestReader::kMaxEntries; asked += many.size())
    REQUIRE(reader.add({many, 0, 0, ""}, entries));
  for (; asked <= WantedReader::kMaxRanges; asked += many.size())
    if (!reader.add({many, 0, 0, ""}, entries)) break;
  CHECK(asked >= ManifestReader::kMaxEntries);
  CHECK(asked <= WantedReader::kMaxRanges);
}

TEST_CASE("pieces of a file") {
  CHECK(piece_count(0) == 0);
  CHECK(piece_count(1) == 1);
  CHECK(piece_count(1u << 20) == 1);
  CHECK(piece_count((1u << 20) + 1) == 2);
  CHECK(piece_count(UINT64_MAX) == (1ull << 44));
  CHECK(piece_length((1u << 20) + 5, 0) == 1u << 20);
  CHECK(piece_length((1u << 20) + 5, 1) == 5);
  std::vector<wire::PieceRange> ranges;
  for (const std::uint32_t piece : {0u, 1u, 2u, 5u}) add_piece(ranges, 0, piece);
  add_piece(ranges, 1, 6);
  REQUIRE(ranges.size() == 3);
  CHECK(ranges[0].count == 3);
  // The digest of "abc" from FIPS 180-2.
  CHECK(hash_bytes("abc").substr(0, 4) == "\xba\x78\x16\xbf");
}

TEST_CASE("the hash of a tree is that of all it says") {
  const std::string one = tree_hash({file("a", 1)});
  CHECK(one.size() == 64);
  CHECK(one == tree_hash({file("a", 1)}));
  CHECK(one != tree_hash({file("b", 1)}));
  CHECK(one != tree_hash({file("a", 2)}));
  CHECK(one != tree_hash({file("a", 1), file("b", 1)}));
  CHECK(tree_hash({folder("a")}) != tree_hash({link_entry("a", "x")}));
}
