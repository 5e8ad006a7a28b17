// File transfers to and from a real runner: which pieces are sent, and what remains after a crash.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>

#include "common/files/entry_path.h"
#include "common/files/manifest.h"
#include "common/files/piece.h"
#include "common/files/tree_scan.h"
#include "tests/runner/file_runner.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

TEST_CASE("push: a folder with modes, then the one file that was changed") {
  const ScopedTempDir dir;
  write_text(dir / "tree/run", "#!/bin/sh\n");
  fs::permissions(dir / "tree/run", static_cast<fs::perms>(0751));
  write_text(dir / "tree/data/one", incompressible(3u << 20, 1));
  write_text(dir / "tree/data/two", incompressible(100, 2));
  fs::create_symlink("data/one", dir / "tree/link");
  CHECK(push(dir / "home", scan_tree(dir / "tree", "tree").value(), "~/a/b") == 5);
  CHECK(read_text(dir / "home/a/b/tree/data/one") == read_text(dir / "tree/data/one"));
  CHECK(mode_of(dir / "home/a/b/tree/run") == 0751);
  CHECK(fs::read_symlink(dir / "home/a/b/tree/link") == "data/one");
  write_text(dir / "tree/data/two", "other");
  CHECK(push(dir / "home", scan_tree(dir / "tree", "tree").value(), "a/b") == 1);
  CHECK(read_text(dir / "home/a/b/tree/data/two") == "other");
  CHECK(push(dir / "home", scan_tree(dir / "tree", "tree").value(), dir.str("home/a/b")) == 0);
}

TEST_CASE("push: a runner killed in mid-transfer leaves the old file, and the next one goes on") {
  const ScopedTempDir dir;
  write_text(dir / "file", incompressible(6u << 20, 3));
  write_text(dir / "home/file", "old");
  const ScannedTree tree = scan_tree(dir / "file", "file").value();
  {
    FileRunner runner(dir / "home");
    runner.open(wire::FilesPurpose::put, "~");
    runner.list(tree);
    CHECK(runner.feed(tree, runner.wanted(), 4) == 4);
    runner.client.signal(SIGKILL);
    REQUIRE(runner.client.wait_exit());
  }
  CHECK(read_text(dir / "home/file") == "old");
  CHECK(push(dir / "home", tree, "~") == 2);
  CHECK(read_text(dir / "home/file") == read_text(dir / "file"));
  CHECK(std::distance(fs::directory_iterator(dir / "home"), {}) == 1);
}

TEST_CASE("push: a launcher that goes away ends the runner; a wrong piece ends the transfer") {
  const ScopedTempDir dir;
  write_text(dir / "file", incompressible(2u << 20, 4));
  const ScannedTree tree = scan_tree(dir / "file", "file").value();
  {
    FileRunner runner(dir / "home");
    runner.open(wire::FilesPurpose::put, "~");
    runner.list(tree);
    runner.wanted();
    runner.client.close_input();
    REQUIRE(runner.client.wait_exit());
  }
  FileRunner runner(dir / "home");
  runner.open(wire::FilesPurpose::put, "~");
  runner.list(tree);
  runner.wanted();
  runner.client.send(wire::FilePiece{0, 0, incompressible(1u << 20, 99)});
  CHECK(runner.refused().find("does not match the announced hash") != std::string::npos);
  CHECK(runner.client.wait_exit()->code == 1);
  CHECK_FALSE(fs::exists(dir / "home/file"));
}

TEST_CASE("what a launcher must not ask for") {
  const ScopedTempDir dir;
  FileRunner runner(dir / "home");
  SUBCASE("a name that leaves the folder") {
    runner.open(wire::FilesPurpose::put, "~/in");
    runner.client.send(wire::FilesManifest{{{"../out", wire::FileKind::file, 0644, 0, "", ""}}, 1});
    CHECK(runner.refused().find("'..'") != std::string::npos);
  }
  SUBCASE("pieces before the list") {
    runner.open(wire::FilesPurpose::put, "~/in");
    runner.client.send(wire::FilePiece{0, 0, "x"});
    CHECK(runner.refused().find("unexpected message in a transfer") != std::string::npos);
  }
  SUBCASE("two transfers") {
    runner.open(wire::FilesPurpose::put, "~/in");
    runner.open(wire::FilesPurpose::put, "~/in");
    CHECK(runner.refused().find("unexpected start of a transfer") != std::string::npos);
  }
  SUBCASE("a stage key that is a path") {
    runner.open(wire::FilesPurpose::stage, "", "", "../../" + std::string(58, 'a'));
    CHECK(runner.refused().find("hash") != std::string::npos);
  }
  SUBCASE("credit that was not used") {
    wire::FilesOpen order;
    order.purpose = wire::FilesPurpose::get;
    write_text(dir / "home/file", "x");
    order.paths = {"file"};
    runner.client.send(order);
    REQUIRE(runner.client.expect<wire::FilesManifest>());
    runner.client.send(wire::FilesCredit{1});
    CHECK(runner.refused().find("credit") != std::string::npos);
  }
  CHECK_FALSE(fs::exists(dir / "home/out"));
  CHECK_FALSE(fs::exists(dir / "out"));
}

TEST_CASE("pull: pieces within the credit, no more") {
  const ScopedTempDir dir;
  write_text(dir / "home/out/file", incompressible(7u << 20, 5));
  FileRunner runner(dir / "home");
  wire::FilesOpen order;
  order.purpose = wire::FilesPurpose::get;
  order.paths = {"out/", dir.str("home/out/file")};
  runner.client.send(order);
  const auto list = runner.client.expect<wire::FilesManifest>();
  REQUIRE(list);
  REQUIRE(list->entries.size() == 3);
  CHECK(list->entries[1].path == "out");
  CHECK(list->entries[2].path == "out/file");
  runner.client.send(wire::FilesWanted{{{2, 0, 7}}, 1, 0, ""});
  constexpr int kInWindow = static_cast<int>(wire::kFileWindow / wire::kPieceBytes);
  int pieces = 0;
  while (pieces < kInWindow && runner.client.expect<wire::FilePiece>()) ++pieces;
  CHECK(pieces == kInWindow);
  CHECK_FALSE(runner.client.expect<wire::FilePiece>(milliseconds(500)));
  runner.client.send(wire::FilesCredit{wire::kFileWindow});
  for (; pieces < 7; ++pieces) {
    const auto piece = runner.client.expect<wire::FilePiece>();
    REQUIRE(piece);
    CHECK(files::hash_bytes(piece->bytes) == files::piece_hash(list->entries[2], piece->piece));
  }
  runner.goodbye();
}

TEST_CASE(
    "pull: a file that goes or becomes shorter after it was listed does not keep the others") {
  const ScopedTempDir dir;
  for (const char* name : {"a", "b", "c"})
    write_text(dir / "home/out" / name, incompressible(3u << 20, 5));
  FileRunner runner(dir / "home");
  wire::FilesOpen order;
  order.purpose = wire::FilesPurpose::get;
  order.paths = {"out"};
  runner.client.send(order);
  const auto list = runner.client.expect<wire::FilesManifest>();
  REQUIRE(list);
  REQUIRE(list->entries.size() == 4);
  fs::rename(dir / "home/out/a", dir / "home/out/renamed");
  fs::resize_file(dir / "home/out/b", 10);
  runner.client.send(wire::FilesWanted{{{1, 0, 1}, {1, 2, 1}, {2, 0, 3}, {3, 2, 1}}, 1, 0, ""});
  const auto first = runner.client.expect<wire::FilePiece>();
  REQUIRE(first);
  CHECK(first->entry == 1);
  CHECK(first->bytes.empty());
  CHECK(first->lost.find("out/a: No such file or directory") != std::string::npos);
  const auto second = runner.client.expect<wire::FilePiece>();
  REQUIRE(second);
  CHECK(second->entry == 2);
  CHECK(second->lost.find("became shorter") != std::string::npos);
  const auto third = runner.client.expect<wire::FilePiece>();
  REQUIRE(third);
  CHECK(third->entry == 3);
  CHECK(third->lost.empty());
  CHECK(files::hash_bytes(third->bytes) == files::piece_hash(list->entries[3], 2));
  runner.goodbye();
}

namespace {

/// Result of a pull of `paths`: the names listed, and the errors about paths that match nothing.
struct Pulled {
  std::vector<std::string> names, missing;
  std::vector<std::string> codes;  // of those that are missing
  std::string refused;
};
Pulled pull(const ScopedTempDir& dir, std::vector<std::string> paths) {
  FileRunner runner(dir / "home");
  wire::FilesOpen order;
  order.purpose = wire::FilesPurpose::get;
  order.paths = std::move(paths);
  runner.client.send(order);
  Pulled out;
  for (;;) {
    const auto message = runner.client.next();
    REQUIRE(message);
    if (const auto* error = std::get_if<wire::RunnerError>(&*message)) {
      if (!error->code.starts_with(files::kMissingPath)) {
        out.refused = error->message;
        return out;
      }
      out.missing.push_back(error->message);
      out.codes.push_back(error->code.substr(files::kMissingPath.size()));
    } else if (const auto* list = std::get_if<wire::FilesManifest>(&*message)) {
      for (const wire::FileEntry& entry : list->entries) out.names.push_back(entry.path);
      if (list->last != 0) break;
    }
  }
  runner.goodbye();
  return out;
}

}  // namespace

TEST_CASE("pull: what is not there is named, and what is there comes all the same") {
  const ScopedTempDir dir;
  write_text(dir / "home/there", "x");
  const Pulled some = pull(dir, {"nothing", "there", "no/*"});
  CHECK(some.names == std::vector<std::string>{"there"});
  REQUIRE(some.missing.size() == 2);
  CHECK(some.missing[0].find("home/nothing: No such file or directory") != std::string::npos);
  CHECK(some.missing[1] == "no/*: nothing matches");
  CHECK(some.codes == std::vector<std::string>{"not_found", "not_found"});
  const Pulled none = pull(dir, {"nothing"});
  CHECK(none.names.empty());
  CHECK(none.missing.size() == 1);
}

TEST_CASE("pull: what can not be sent is named, and everything else comes") {
  const ScopedTempDir dir;
  const fs::path home = dir / "home";
  for (const char* file : {"logs/a", "logs/b", "logs/inner/c"}) write_text(home / file, "x");
  REQUIRE(::mkfifo((home / "logs/pipe").c_str(), 0600) == 0);
  fs::create_symlink("/nowhere", home / "dangling");  // a root is followed
  const Pulled some = pull(dir, {"logs", "dangling"});
  CHECK(some.refused == "");
  CHECK(some.names ==
        std::vector<std::string>{"logs", "logs/a", "logs/b", "logs/inner", "logs/inner/c"});
  REQUIRE(some.missing.size() == 2);
  CHECK(some.missing[0].find("dangling: No such file or directory") != std::string::npos);
  CHECK(some.missing[1].find("logs/pipe: neither a file, a folder nor a symlink") !=
        std::string::npos);
  // Of many only some are named.
  for (int i = 0; i < 120; ++i)
    REQUIRE(::mkfifo((home / fmt::format("logs/inner/{}", i)).c_str(), 0600) == 0);
  const Pulled many = pull(dir, {"logs"});
  CHECK(many.names.size() == 5);
  REQUIRE(many.missing.size() == 101);
  CHECK(many.missing.back() == "21 more files and folders can not be sent");
}

TEST_CASE("pull: patterns match on the host and keep their folders from the first wildcard on") {
  const ScopedTempDir dir;
  for (const char* file : {"run/a/loss", "run/a/other", "run/b/loss", "run/.hidden/loss", "run/c/x",
                           "log1", "log2", "odd*name", "whole/sub/f"})
    write_text(dir / "home" / file, "x");
  using Names = std::vector<std::string>;
  CHECK(pull(dir, {"run/*/loss"}).names == Names{"a", "a/loss", "b", "b/loss"});
  CHECK(pull(dir, {"log?", "~/run/[ab]/*"}).names ==
        Names{"a", "a/loss", "a/other", "b", "b/loss", "log1", "log2"});
  CHECK(pull(dir, {dir.str("home/who*")}).names == Names{"whole", "whole/sub", "whole/sub/f"});
  // An existing name is not treated as a pattern.
  CHECK(pull(dir, {"odd*name"}).names == Names{"odd*name"});
  // Entries are listed once, even if several patterns match them or a folder that is pulled as a
  // whole contains them.
  CHECK(pull(dir, {"run/[a]", "run/*/loss", "run/a*"}).names ==
        Names{"a", "a/loss", "a/other", "b", "b/loss"});
  CHECK(
      pull(dir, {"run/a/loss", "run/b/loss"}).refused.find("two of the paths are called 'loss'") !=
      std::string::npos);
}

TEST_CASE("relay: a host passes on what it has, to who knows the key and nobody else") {
  const ScopedTempDir dir;
  write_text(dir / "file", incompressible(5u << 20, 6));
  const ScannedTree tree = scan_tree(dir / "file", "file").value();
  FileRunner first(dir / "one"), second(dir / "two");
  first.open(wire::FilesPurpose::put, "~", "127.0.0.1");
  first.list(tree);
  const auto lacking = first.wanted();
  REQUIRE(first.relay_port != 0);
  second.open(wire::FilesPurpose::put, "~", "127.0.0.1");
  second.list(tree);
  second.wanted();
  const std::string key(32, 'k');
  first.client.send(wire::FilesServe{7, key});
  wire::FilesFetch fetch{7, key, "127.0.0.1", first.relay_port};
  SUBCASE("all of it") {
    second.client.send(fetch);
    CHECK(first.feed(tree, lacking) == 5);
    const auto done = second.client.expect<wire::FilesDone>();
    REQUIRE(done);
    CHECK(done->bytes_from_hosts == 5u << 20);
    CHECK(done->bytes_from_launcher == 0);
    CHECK(read_text(dir / "two/file") == read_text(dir / "file"));
  }
  SUBCASE("another key") {
    fetch.key[0] = 'x';
    second.client.send(fetch);
    CHECK(second.wanted().size() == 1);
    CHECK_FALSE(second.reason.empty());
    CHECK(second.feed(tree, {{0, 0, 5}}) == 5);
    CHECK(second.client.expect<wire::FilesDone>());
  }
  SUBCASE("a link that the other host does not know") {
    fetch.link = 8;
    second.client.send(fetch);
    CHECK(second.wanted().size() == 1);
  }
  SUBCASE("a port where nobody listens") {
    fetch.port = 1;
    second.client.send(fetch);
    CHECK(second.wanted().size() == 1);
    CHECK(second.reason.find("refused") != std::string::npos);
  }
  SUBCASE("the other host dies in the middle") {
    second.client.send(fetch);
    CHECK(first.feed(tree, lacking, 2) == 2);
    second.client.pump(milliseconds(300));
    first.client.signal(SIGKILL);
    const auto rest = second.wanted();
    REQUIRE(rest.size() == 1);
    CHECK(second.feed(tree, rest) <= 5);
    CHECK(second.client.expect<wire::FilesDone>());
    CHECK(read_text(dir / "two/file") == read_text(dir / "file"));
  }
  SUBCASE("the other host freezes") {
    second.client.send(fetch);
    CHECK(first.feed(tree, lacking, 2) == 2);
    first.client.signal(SIGSTOP);
    second.client.pump(milliseconds(4000));
    CHECK_FALSE(second.wanted().empty());  // after the silence limit of 5 s
    first.client.signal(SIGCONT);
  }
}

TEST_CASE("relay: a host that gets only other pieces for seconds is not silent to the next host") {
  const ScopedTempDir dir;
  write_text(dir / "file", incompressible(10u << 20, 16));
  const ScannedTree tree = scan_tree(dir / "file", "file").value();
  FileRunner first(dir / "one"), second(dir / "two");
  for (FileRunner* runner : {&first, &second}) {
    runner->open(wire::FilesPurpose::put, "~", "127.0.0.1");
    runner->list(tree);
    CHECK(runner->wanted().size() == 1);
  }
  const std::string key(32, 'k');
  first.client.send(wire::FilesServe{7, key});
  second.client.send(wire::FilesFetch{7, key, "127.0.0.1", first.relay_port});
  for (std::uint32_t piece = 1; piece < 10; ++piece) {  // the next host waits for the first piece
    CHECK(first.feed(tree, {{0, piece, 1}}) == 1);
    second.client.pump(milliseconds(700));  // all pauses together exceed the silence limit of 5 s
  }
  CHECK(first.feed(tree, {{0, 0, 1}}) == 1);
  const auto done = second.client.expect<wire::FilesDone>();
  REQUIRE(done);
  CHECK(done->bytes_from_hosts == 10u << 20);
}

TEST_CASE(
    "push: folders on the way to the target have the user's umask, those for images are private") {
  const ScopedTempDir dir;
  write_text(dir / "file", "x");
  const ScannedTree tree = scan_tree(dir / "file", "file").value();
  const mode_t before = ::umask(027);
  {
    FileRunner runner(dir / "home");
    runner.open(wire::FilesPurpose::put, "~/new/sub");
    runner.list(tree);
    runner.feed(tree, runner.wanted());
    CHECK(runner.client.expect<wire::FilesDone>());
  }
  FileRunner runner(dir / "home");
  wire::FilesOpen order;
  order.folder = "images";
  order.private_folder = 1;
  runner.client.send(order);
  runner.list(tree);
  runner.feed(tree, runner.wanted());
  CHECK(runner.client.expect<wire::FilesDone>());
  ::umask(before);
  CHECK(mode_of(dir / "home/new") == 0750);
  CHECK(mode_of(dir / "home/new/sub") == 0750);
  CHECK(mode_of(dir / "home/images") == 0700);
}
