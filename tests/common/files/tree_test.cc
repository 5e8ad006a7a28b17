// Folder trees on disk: scanning, writing, and what the writer rejects.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "common/files/entry_path.h"
#include "common/files/manifest.h"
#include "common/files/piece.h"
#include "common/files/tree_file.h"
#include "common/files/tree_scan.h"
#include "common/files/tree_write.h"
#include "tests/support/scanned_tree.h"
#include "tests/support/temp_dir.h"
#include "tests/support/without_call.h"

using namespace sortie;
using namespace sortie::files;
using test::mode_of;
using test::read_text;
using test::scan_tree;
using test::ScannedTree;
using test::ScopedTempDir;
using test::write_text;
namespace fs = std::filesystem;

namespace {

TreeWriter writer(const fs::path& folder, const ScannedTree& tree) {
  auto opened = Folder::open(folder.string());
  REQUIRE(opened);
  return {std::move(*opened), tree.entries};
}

Result<> inspect(TreeWriter& tree) {
  for (;;) {
    SORTIE_ASSIGN_OR_RETURN(const bool done, tree.inspect());
    if (done) return {};
  }
}

Result<> settle(TreeWriter& tree) {
  for (;;) {
    SORTIE_ASSIGN_OR_RETURN(const bool done, tree.settle());
    if (done) return {};
  }
}

/// Writes all missing pieces from `source`; returns their number.
Result<int> fill(TreeWriter& tree, const ScannedTree& source) {
  PieceReader reader;
  int pieces = 0;
  for (const wire::PieceRange& range : tree.missing())
    for (std::uint32_t piece = range.first; piece < range.first + range.count; ++piece) {
      SORTIE_ASSIGN_OR_RETURN(
          const std::string bytes,
          reader.read(source.paths[range.entry], source.entries[range.entry].size, piece));
      SORTIE_ASSIGN_OR_RETURN(const auto taken, tree.put(range.entry, piece, bytes));
      if (taken != TreeWriter::Taken::wrote) return fail(ErrorCode::internal, "not written");
      ++pieces;
    }
  return pieces;
}

Result<int> copy(const fs::path& from, const std::string& name, const fs::path& to) {
  SORTIE_ASSIGN_OR_RETURN(const ScannedTree source, scan_tree(from, name));
  TreeWriter tree = writer(to, source);
  SORTIE_TRY(inspect(tree));
  SORTIE_ASSIGN_OR_RETURN(const int pieces, fill(tree, source));
  SORTIE_TRY(settle(tree));
  return pieces;
}

std::string big(std::size_t bytes, char seed) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i)
    text[i] = static_cast<char>(seed + static_cast<char>(i * 7 / 1000));
  return text;
}

bool has_parts(const fs::path& folder) {
  for (const auto& file : fs::recursive_directory_iterator(folder))
    if (file.path().filename().string().starts_with(kPartPrefix)) return true;
  return false;
}

/// While one lives, this process acts as user nobody: root could open any file.
struct AsNobody {
  static constexpr uid_t kNobody = 65534;
  AsNobody() {
    if (::seteuid(kNobody) != 0) std::abort();
  }
  ~AsNobody() {
    if (::seteuid(0) != 0) std::abort();
  }
};

}  // namespace

TEST_CASE(
    "a file that can not be written completely names its part, where the next copy continues") {
  const ScopedTempDir from, to;
  write_text(from / "sub/f", big(3 * wire::kPieceBytes, 'a'));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const auto source = scan_tree(from / "sub", "sub");
  REQUIRE(source);
  TreeWriter tree = writer(to.path(), *source);
  REQUIRE(inspect(tree));  // gives the part its final size
  const rlimit one_piece{wire::kPieceBytes, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &one_piece) == 0);
  const auto failed = fill(tree, *source);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  REQUIRE_FALSE(failed);
  const std::string part = to.str("sub/" + part_name("f"));
  CHECK(failed.error().message == to.str("sub/f") +
                                      ": write: File too large; what was copied stays "
                                      "in " +
                                      part +
                                      ": the same command continues there, or remove that file");
  CHECK(fs::exists(part));
}

TEST_CASE("a folder that may not be made is named with the refusal, not as a missing one" *
          doctest::skip(::geteuid() != 0)) {
  const ScopedTempDir dir;
  fs::create_directories(dir / "taken/there");
  for (const fs::path& folder : {dir.path(), dir / "taken"})
    fs::permissions(folder, static_cast<fs::perms>(0755));
  const AsNobody nobody;
  for (const char* below : {"taken/new", "taken/new/", "taken/new/deeper"}) {
    CAPTURE(below);
    const auto folder = Folder::open((dir / below).string());
    REQUIRE_FALSE(folder);
    CHECK(folder.error().message ==
          (dir / "taken/new").string() + ": make this folder: Permission denied");
  }
  CHECK(Folder::open((dir / "taken/there").string()));  // it exists: no need to make it
}

TEST_CASE("a tree arrives with modes, symlinks and empty files; then only what differs") {
  const ScopedTempDir dir;
  const fs::path from = dir / "from", to = dir / "to";
  write_text(from / "run.sh", "#!/bin/sh\n");
  fs::permissions(from / "run.sh", static_cast<fs::perms>(0750));
  write_text(from / "deep/er/file", big((3u << 20) + 17, 'a'));
  write_text(from / "empty", "");
  write_text(from / "deep.txt", "sorts between\n");
  fs::create_symlink("../run.sh", from / "deep/link");
  fs::create_directory(from / "closed");
  write_text(from / "closed/inside", "x");
  fs::permissions(from / "closed", static_cast<fs::perms>(0555));

  auto pieces = copy(from, "tree", to);
  REQUIRE(pieces);
  CHECK(*pieces == 4 + 3);
  CHECK(read_text(to / "tree/deep/er/file") == read_text(from / "deep/er/file"));
  CHECK(mode_of(to / "tree/run.sh") == 0750);
  CHECK(mode_of(to / "tree/closed") == 0555);
  CHECK(fs::read_symlink(to / "tree/deep/link") == "../run.sh");
  CHECK(fs::file_size(to / "tree/empty") == 0);
  CHECK_FALSE(has_parts(to));

  SUBCASE("the same again sends nothing") {
    CHECK(*copy(from, "tree", to) == 0);
  }
  SUBCASE("a byte of a large file is one piece") {
    std::string text = read_text(from / "deep/er/file");
    text[(1u << 20) + 5] ^= 1;
    write_text(from / "deep/er/file", text);
    CHECK(*copy(from, "tree", to) == 1);
    CHECK(read_text(to / "tree/deep/er/file") == text);
  }
  SUBCASE("what was appended, and what became shorter") {
    write_text(from / "deep/er/file", read_text(from / "deep/er/file") + big(1u << 20, 'q'));
    CHECK(*copy(from, "tree", to) == 2);
    CHECK(read_text(to / "tree/deep/er/file") == read_text(from / "deep/er/file"));
    write_text(from / "deep/er/file", big(1u << 20, 'a'));
    CHECK(*copy(from, "tree", to) == 0);
    CHECK(fs::file_size(to / "tree/deep/er/file") == 1u << 20);
  }
  SUBCASE("a mode alone") {
    fs::permissions(from / "deep.txt", static_cast<fs::perms>(0600));
    CHECK(*copy(from, "tree", to) == 0);
    CHECK(mode_of(to / "tree/deep.txt") == 0600);
  }
  fs::permissions(from / "closed", static_cast<fs::perms>(0755));
  fs::permissions(to / "tree/closed", static_cast<fs::perms>(0755));
}

TEST_CASE("an interrupted transfer goes on where it was, and leaves the old file until the end") {
  const ScopedTempDir dir;
  const std::string text = big(8u << 20, 'n');
  write_text(dir / "source", text);
  write_text(dir / "to/file", "old");
  const auto source = scan_tree(dir / "source", "file");
  REQUIRE(source);
  {
    TreeWriter tree = writer(dir / "to", *source);
    REQUIRE(inspect(tree));
    for (const std::uint32_t piece : {0u, 3u, 4u})
      CHECK(tree.put(0, piece, text.substr(piece << 20, 1u << 20)));
  }
  CHECK(read_text(dir / "to/file") == "old");
  CHECK(has_parts(dir / "to"));
  TreeWriter tree = writer(dir / "to", *source);
  REQUIRE(inspect(tree));
  CHECK(tree.missing_bytes() == 5u << 20);
  CHECK(tree.missing().size() == 2);
  CHECK(*fill(tree, *source) == 5);
  REQUIRE(settle(tree));
  CHECK(read_text(dir / "to/file") == text);
  CHECK_FALSE(has_parts(dir / "to"));
}

TEST_CASE("zeros take no room, whatever was there before") {
  const ScopedTempDir dir;
  // Data in the middle of a piece, a hole over several pieces, and zeros at an end that is not
  // block-aligned.
  std::string text((16u << 20) + 100, '\0');
  text.replace(5u << 20, 4096, big(4096, 'a'));
  text.replace((9u << 20) + 5000, 3, "end");
  write_text(dir / "source", text);
  fs::create_directories(dir / "to");
  const fs::path part = dir / "to" / part_name("file");
  SUBCASE("nothing") {}
  SUBCASE("the part of another transfer, longer") {
    write_text(part, std::string(20u << 20, 'x'));
  }
  SUBCASE("the part of another transfer, shorter") {
    write_text(part, std::string(7u << 20, 'x'));
  }
  SUBCASE("another file, with some of the data") {
    write_text(dir / "to/file", text.substr(0, 6u << 20) + std::string(12u << 20, 'x'));
  }
  SUBCASE("both") {
    write_text(dir / "to/file", std::string(17u << 20, 'y'));
    write_text(part, std::string(17u << 20, 'x'));
  }
  if (fs::exists(part)) fs::permissions(part, static_cast<fs::perms>(0600));
  REQUIRE(copy(dir / "source", "file", dir / "to"));
  CHECK((read_text(dir / "to/file") == text));
  struct stat info {};
  REQUIRE(::stat((dir / "to/file").c_str(), &info) == 0);
  CHECK(info.st_blocks * 512 <= 64 << 10);
  CHECK(*copy(dir / "source", "file", dir / "to") == 0);
}

TEST_CASE("two transfers at once on a file system without locks: none of them mixes a file") {
  const ScopedTempDir dir;
  write_text(dir / "one", big(2u << 20, 'a'));
  write_text(dir / "two", big(2u << 20, 'k'));
  test::without_call(SYS_flock, [&] {
    const auto one = scan_tree(dir / "one", "file"), two = scan_tree(dir / "two", "file");
    TreeWriter first = writer(dir / "to", *one), second = writer(dir / "to", *two);
    REQUIRE(inspect(first));
    REQUIRE(inspect(second));
    REQUIRE(fill(first, *one));
    REQUIRE(fill(second, *two));
    const auto mixed = settle(first);
    REQUIRE_FALSE(mixed);
    CHECK(mixed.error().message.find("another transfer has changed it") != std::string::npos);
    REQUIRE(settle(second));
    CHECK((read_text(dir / "to/file") == read_text(dir / "two")));
  });
}

TEST_CASE("a part that another transfer completes meanwhile is not taken for the own part") {
  const ScopedTempDir dir;
  write_text(dir / "source", big(3u << 20, 'p'));
  const auto source = scan_tree(dir / "source", "file");
  TreeWriter first = writer(dir / "to", *source), second = writer(dir / "to", *source);
  REQUIRE(inspect(first));
  REQUIRE(fill(first, *source));
  for (int piece = 0; piece < 2; ++piece) CHECK_FALSE(*second.inspect());
  REQUIRE(settle(first));  // renames the part
  REQUIRE(inspect(second));
  REQUIRE(fill(second, *source));
  REQUIRE(settle(second));
  CHECK((read_text(dir / "to/file") == read_text(dir / "source")));
}

TEST_CASE("a part that already has its final mode is used again" *
          doctest::skip(::geteuid() != 0)) {
  const ScopedTempDir dir;
  write_text(dir / "source", big(2u << 20, 'm'));
  REQUIRE(::chmod((dir / "source").c_str(), 0644) == 0);
  write_text(dir / "to/other", "");
  for (const fs::path& path : {dir.path(), dir / "to"})
    REQUIRE(::chown(path.c_str(), AsNobody::kNobody, AsNobody::kNobody) == 0);
  {
    const AsNobody nobody;
    const auto source = scan_tree(dir / "source", "file");
    {
      TreeWriter ended = writer(dir / "to", *source);
      REQUIRE(inspect(ended));
      REQUIRE(fill(ended, *source));
      REQUIRE(::chmod((dir / "to" / part_name("file")).c_str(), 0444) == 0);
    }
    const Result<int> pieces = copy(dir / "source", "file", dir / "to");
    REQUIRE_MESSAGE(pieces, (pieces ? "" : pieces.error().message));
    CHECK(*pieces == 0);
  }
  CHECK((read_text(dir / "to/file") == read_text(dir / "source")));
}

TEST_CASE("a piece that is not what was announced is not written") {
  const ScopedTempDir dir;
  write_text(dir / "source", big(2u << 20, 'n'));
  const auto source = scan_tree(dir / "source", "file");
  TreeWriter tree = writer(dir / "to", *source);
  REQUIRE(inspect(tree));
  const std::string wrong = big(1u << 20, 'z');
  CHECK(*tree.put(0, 0, wrong) == TreeWriter::Taken::wrong);
  CHECK(*tree.put(0, 0, "short") == TreeWriter::Taken::wrong);
  CHECK(*tree.put(0, 0, "") == TreeWriter::Taken::wrong);
  CHECK(tree.missing_bytes() == 2u << 20);
  CHECK_FALSE(tree.put(0, 2, wrong));
  CHECK_FALSE(tree.put(7, 0, wrong));
  REQUIRE(fill(tree, *source));
  CHECK(*tree.put(0, 0, wrong) == TreeWriter::Taken::had);
}

TEST_CASE("a symlink that is planted in the folder is never followed") {
  const ScopedTempDir dir;
  fs::create_directories(dir / "outside");
  write_text(dir / "outside/secret", "keep");
  write_text(dir / "from/sub/secret", "evil");
  SUBCASE("in place of a folder") {
    fs::create_directories(dir / "to/tree");
    fs::create_symlink(dir / "outside", dir / "to/tree/sub");
    const auto copied = copy(dir / "from", "tree", dir / "to");
    REQUIRE_FALSE(copied);
    CHECK(copied.error().message.find("folder is needed") != std::string::npos);
  }
  SUBCASE("in place of a file: the link is replaced, not what it points to") {
    fs::create_directories(dir / "to/tree/sub");
    fs::create_symlink(dir / "outside/secret", dir / "to/tree/sub/secret");
    REQUIRE(copy(dir / "from", "tree", dir / "to"));
    CHECK(fs::is_regular_file(fs::symlink_status(dir / "to/tree/sub/secret")));
    CHECK(read_text(dir / "to/tree/sub/secret") == "evil");
  }
  SUBCASE("in place of the part") {
    fs::create_directories(dir / "to/tree/sub");
    fs::create_symlink(dir / "outside/secret", dir / "to/tree/sub" / part_name("secret"));
    CHECK_FALSE(copy(dir / "from", "tree", dir / "to"));
  }
  SUBCASE("while the transfer runs") {
    const auto source = scan_tree(dir / "from", "tree");
    TreeWriter tree = writer(dir / "to", *source);
    REQUIRE(inspect(tree));
    // The part file is open in the folder that was checked, so the planted link has no effect.
    fs::rename(dir / "to/tree/sub", dir / "to/tree/moved");
    fs::create_symlink(dir / "outside", dir / "to/tree/sub");
    (void)fill(tree, *source);
    (void)settle(tree);
  }
  CHECK(read_text(dir / "outside/secret") == "keep");
  CHECK(std::distance(fs::directory_iterator(dir / "outside"), {}) == 1);
}

TEST_CASE("a file does not replace a folder, and two transfers do not mix") {
  const ScopedTempDir dir;
  write_text(dir / "source", "text");
  fs::create_directories(dir / "to/file");
  CHECK_FALSE(copy(dir / "source", "file", dir / "to"));
  const auto source = scan_tree(dir / "source", "other");
  TreeWriter first = writer(dir / "to", *source);
  REQUIRE(inspect(first));
  TreeWriter second = writer(dir / "to", *source);
  const auto refused = inspect(second);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("another transfer") != std::string::npos);
}

TEST_CASE("what can not be sent is named") {
  const ScopedTempDir dir;
  fs::create_directories(dir / "from");
  REQUIRE(::mkfifo((dir / "from/pipe").c_str(), 0600) == 0);
  const auto scanned = scan_tree(dir / "from", "tree");
  REQUIRE_FALSE(scanned);
  CHECK(scanned.error().message.find("from/pipe: neither a file") != std::string::npos);
  CHECK(scan_tree(dir / "nothing", "x").error().code == ErrorCode::not_found);
  const auto made_up = scan_tree("/proc/version", "x");
  REQUIRE_FALSE(made_up);
  CHECK(made_up.error().code == ErrorCode::io);
  CHECK(made_up.error().message.find("/proc/version: has content but no size") == 0);
  write_text(dir / "empty", "");
  CHECK(scan_tree(dir / "empty", "x").value().entries.at(0).size == 0);
}

TEST_CASE("more files than may be open at a time") {
  const ScopedTempDir dir;
  for (int i = 0; i < 100; ++i)
    write_text(dir / "from" / ("f" + std::to_string(i)), std::to_string(i));
  CHECK(*copy(dir / "from", "tree", dir / "to") == 100);
  for (int i = 0; i < 100; ++i)
    CHECK(read_text(dir / "to/tree" / ("f" + std::to_string(i))) == std::to_string(i));
  CHECK_FALSE(has_parts(dir / "to"));
}

TEST_CASE(
    "many files are synced together: not one by one, and an error of that is one of the transfer") {
  const ScopedTempDir dir;
  for (int i = 0; i < 100; ++i)
    write_text(dir / "from" / ("d" + std::to_string(i % 3)) / ("f" + std::to_string(i)), "new");
  const auto source = scan_tree(dir / "from", "tree");
  REQUIRE(source);
  TreeWriter tree = writer(dir / "to", *source);
  tree.sync().set_limit(std::chrono::nanoseconds(0));
  REQUIRE(inspect(tree));
  REQUIRE(fill(tree, *source));
  if (!TreeSync::replaces_fsync(tree.folder().fd())) {
    test::without_call(
        SYS_fsync, [&] { CHECK_FALSE(settle(tree)); }, EIO);
    REQUIRE(settle(tree));
    return;
  }
  test::without_call(
      SYS_syncfs,
      [&] {
        const auto settled = settle(tree);
        REQUIRE_FALSE(settled);
        CHECK(settled.error().message.find("syncfs: Input/output error") != std::string::npos);
        CHECK_FALSE(fs::exists(dir / "to/tree/d0/f0"));
      },
      EIO);
  test::without_call(
      SYS_fsync, [&] { REQUIRE(settle(tree)); }, EIO);
  for (int i = 0; i < 100; ++i)
    CHECK(read_text(dir / "to/tree" / ("d" + std::to_string(i % 3)) / ("f" + std::to_string(i))) ==
          "new");
  CHECK_FALSE(has_parts(dir / "to"));
}
