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
#include "tests/support/runner_client.h"
#include "tests/support/scanned_tree.h"
#include "tests/support/temp_dir.h"
#include "tests/support/without_flock.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

namespace {

std::string numbers(std::size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>((seed = seed * 1664525u + 1013904223u) >> 24);
  return text;
}

/// A runner with its own home folder, after the Hello exchange.
struct FileRunner {
  explicit FileRunner(const fs::path& home)
      : client(SORTIE_RUNNER_BINARY, {"HOME=" + home.string(), "PATH=/usr/bin:/bin"}) {
    fs::create_directories(home);
    client.send(wire::Hello{wire::kProtocolVersion, "build"});
    REQUIRE(client.expect<wire::Hello>());
  }

  void open(wire::FilesPurpose purpose, const std::string& folder, const std::string& relay = "",
            const std::string& key = "", std::uint64_t cache = 1u << 30) {
    wire::FilesOpen order;
    order.purpose = purpose;
    order.folder = folder;
    order.key = key;
    order.cache_bytes = cache;
    order.heartbeat_interval_ms = 200;
    order.heartbeat_timeout_ms = 20000;
    order.relay_address = relay;
    client.send(order);
  }
  void list(const ScannedTree& tree) {
    files::send_manifest(tree.entries, [&](wire::FilesManifest part) { client.send(part); });
  }
  std::vector<wire::PieceRange> wanted() {
    std::vector<wire::PieceRange> ranges;
    for (;;) {
      const auto part = client.expect<wire::FilesWanted>();
      REQUIRE(part);
      ranges.insert(ranges.end(), part->ranges.begin(), part->ranges.end());
      relay_port = part->relay_port;
      reason = part->reason;
      if (part->last) return ranges;
    }
  }
  /// Sends at most `limit` pieces, waiting for credit after each; returns their number.
  int feed(const ScannedTree& tree, const std::vector<wire::PieceRange>& ranges,
           int limit = 1 << 30) {
    files::PieceReader reader;
    int sent = 0;
    for (const wire::PieceRange& range : ranges)
      for (std::uint32_t piece = range.first; piece < range.first + range.count; ++piece) {
        if (sent == limit) return sent;
        auto bytes = reader.read(tree.paths[range.entry], tree.entries[range.entry].size, piece);
        REQUIRE(bytes);
        client.send(wire::FilePiece{range.entry, piece, *bytes});
        REQUIRE(client.expect<wire::FilesCredit>()->bytes == bytes->size());
        ++sent;
      }
    return sent;
  }
  std::string refused() {
    const auto error = client.expect<wire::RunnerError>();
    return error ? error->message : "";
  }
  void goodbye() {
    client.send(wire::Goodbye{});
    const auto status = client.wait_exit();
    REQUIRE(status);
    CHECK(status->success());
  }

  RunnerClient client;
  std::uint16_t relay_port = 0;
  std::string reason;
};

/// Pushes a whole tree; returns the number of pieces sent.
int push(const fs::path& home, const ScannedTree& tree, const std::string& folder) {
  FileRunner runner(home);
  runner.open(wire::FilesPurpose::put, folder);
  runner.list(tree);
  const int sent = runner.feed(tree, runner.wanted());
  REQUIRE(runner.client.expect<wire::FilesDone>());
  runner.goodbye();
  return sent;
}

}  // namespace

TEST_CASE("push: a folder with modes, then the one file that was changed") {
  const ScopedTempDir dir;
  write_text(dir / "tree/run", "#!/bin/sh\n");
  fs::permissions(dir / "tree/run", static_cast<fs::perms>(0751));
  write_text(dir / "tree/data/one", numbers(3u << 20, 1));
  write_text(dir / "tree/data/two", numbers(100, 2));
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
  write_text(dir / "file", numbers(6u << 20, 3));
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
  write_text(dir / "file", numbers(2u << 20, 4));
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
  runner.client.send(wire::FilePiece{0, 0, numbers(1u << 20, 99)});
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
  write_text(dir / "home/out/file", numbers(7u << 20, 5));
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

namespace {

/// Result of a pull of `paths`: the names listed, and the errors about paths that match nothing.
struct Pulled {
  std::vector<std::string> names, missing;
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
      if (error->code != files::kMissingPath) {
        out.refused = error->message;
        return out;
      }
      out.missing.push_back(error->message);
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
  write_text(dir / "file", numbers(5u << 20, 6));
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
  write_text(dir / "file", numbers(10u << 20, 16));
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

namespace {

/// A tree of two pieces to stage, and the cache that receives it.
struct Staging {
  Staging() {
    write_text(dir / "file", numbers(2u << 20, 8));
    fs::permissions(dir / "file", static_cast<fs::perms>(0555));
    tree = scan_tree(dir / "file", "trainer").value();
    key = files::tree_hash(tree.entries);
    cache = dir / "home/.cache/sortie/stage";
  }
  void begin(FileRunner& runner, std::uint64_t limit = 1u << 30) const {
    runner.open(wire::FilesPurpose::stage, "", "", key, limit);
    runner.list(tree);
  }
  /// Stages the tree; returns the number of pieces sent.
  int stage(std::uint64_t limit = 1u << 30) const {
    FileRunner runner(dir / "home");
    begin(runner, limit);
    int pieces = 0;
    for (;;) {
      const auto message = runner.client.next();
      REQUIRE(message);
      if (const auto* done = std::get_if<wire::FilesDone>(&*message)) {
        CHECK(done->folder == (cache / key).string());
        break;
      }
      const auto* wanted = std::get_if<wire::FilesWanted>(&*message);
      if (!wanted) continue;  // progress
      pieces += runner.feed(tree, wanted->ranges);
    }
    runner.goodbye();
    return pieces;
  }
  std::vector<std::string> in_cache() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(cache))
      names.push_back(entry.path().filename().string());
    std::ranges::sort(names);
    return names;
  }

  ScopedTempDir dir;
  ScannedTree tree;
  std::string key;
  fs::path cache;
};

}  // namespace

TEST_CASE("stage: kept between runs, repaired when written to, pruned when too much") {
  const Staging staging;
  const auto& [dir, tree, key, cache] = staging;
  const auto stage = [&](std::uint64_t limit = 1u << 30) { return staging.stage(limit); };
  CHECK(stage() == 2);
  CHECK(mode_of(cache) == 0700);
  CHECK(mode_of(cache / key) == 0755);  // for a container's user
  CHECK(mode_of(cache / key / "trainer") == 0555);
  fs::permissions(cache / key, static_cast<fs::perms>(0700));  // as an earlier version left it
  CHECK(stage() == 0);
  CHECK(mode_of(cache / key) == 0755);
  fs::permissions(cache / key / "trainer", static_cast<fs::perms>(0755));
  {
    std::fstream file(cache / key / "trainer", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5);
    file.put('!');
  }
  CHECK(stage() == 1);  // only the piece that was changed
  CHECK(read_text(cache / key / "trainer") == read_text(dir / "file"));

  const fs::path old = cache / std::string(64, 'a');
  write_text(old / "x", "y");
  write_text(old.string() + ".lock", "1000000\n");
  CHECK(stage() == 0);
  CHECK(fs::exists(old));
  CHECK(stage(1u << 10) == 0);
  CHECK_FALSE(fs::exists(old));
  CHECK(fs::exists(cache / key));  // in use, so kept despite the limit
}

TEST_CASE("stage: a wait for another process is told to the launcher") {
  const Staging staging;
  CHECK(staging.stage() == 2);
  fs::remove_all(staging.cache / staging.key);
  Fd lock(::open((staging.cache / (staging.key + ".lock")).c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::flock(lock.get(), LOCK_EX | LOCK_NB) == 0);
  FileRunner runner(staging.dir / "home");
  staging.begin(runner);
  std::string told;
  const auto until = std::chrono::steady_clock::now() + RunnerClient::kPatience;
  while (told.empty() && std::chrono::steady_clock::now() < until) {
    const auto progress = runner.client.expect<wire::FilesProgress>();
    REQUIRE(progress);
    told = progress->waits_for;
  }
  CHECK(told.find("fuser " + (staging.cache / staging.key).string() + ".lock") !=
        std::string::npos);
  lock.reset();
  CHECK(runner.feed(staging.tree, runner.wanted()) == 2);
  CHECK(runner.client.expect<wire::FilesDone>());
  runner.goodbye();
}

TEST_CASE("stage: a tree that was removed while a job uses it is an error, not a wait") {
  const Staging staging;
  CHECK(staging.stage() == 2);
  Fd job(::open((staging.cache / (staging.key + ".lock")).c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::flock(job.get(), LOCK_SH | LOCK_NB) == 0);
  fs::remove_all(staging.cache / staging.key);
  {
    FileRunner one(staging.dir / "home"), two(staging.dir / "home");
    staging.begin(one);
    staging.begin(two);
    for (FileRunner* runner : {&one, &two})
      CHECK(runner->refused().find("was removed while another job uses it; end that job") !=
            std::string::npos);
  }
  job.reset();
  CHECK(staging.stage() == 2);
}

TEST_CASE("a file system without locks: staging and push work, also two at once") {
  const Staging staging;
  const fs::path home = staging.dir / "home";
  int error = 0;
  SUBCASE("Lustre without flock") {
    error = ENOSYS;
  }
  SUBCASE("NFS without lockd") {
    error = ENOLCK;
  }
  without_flock(
      [&] {
        {
          FileRunner one(home), two(home);
          staging.begin(one);
          staging.begin(two);
          const auto first = one.wanted(), second = two.wanted();
          CHECK(one.feed(staging.tree, first) == 2);
          REQUIRE(one.client.expect<wire::FilesDone>());
          CHECK(two.feed(staging.tree, second) == 2);
          REQUIRE(two.client.expect<wire::FilesDone>());
          one.goodbye();
          two.goodbye();
        }
        CHECK(staging.in_cache() == std::vector{staging.key, staging.key + ".lock"});
        CHECK(read_text(staging.cache / staging.key / "trainer") ==
              read_text(staging.dir / "file"));
        const fs::path other = staging.cache / std::string(64, 'a');
        write_text(other / "x", "y");
        write_text(other.string() + ".lock", "1000000\n");
        CHECK(staging.stage(1u << 10) == 0);
        CHECK(fs::exists(other));  // without locks it may be in use
        CHECK(push(home, staging.tree, "~") == 2);
        CHECK(read_text(home / "trainer") == read_text(staging.dir / "file"));
      },
      error);
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

TEST_CASE("stage: then a job, which finds its folder") {
  const ScopedTempDir dir;
  write_text(dir / "file", "#!/bin/sh\necho staged\n");
  fs::permissions(dir / "file", static_cast<fs::perms>(0555));
  const ScannedTree tree = scan_tree(dir / "file", "program").value();
  FileRunner runner(dir / "home");
  runner.open(wire::FilesPurpose::stage, "", "", files::tree_hash(tree.entries));
  runner.list(tree);
  runner.feed(tree, runner.wanted());
  const auto done = runner.client.expect<wire::FilesDone>();
  REQUIRE(done);
  const wire::JobSpec job = make_job({done->folder + "/program"});
  runner.client.send(job);
  REQUIRE(runner.client.expect<wire::JobReady>());
  runner.client.send(wire::Start{});
  REQUIRE(runner.client.wait_finished());
  CHECK(runner.client.out[0] == "staged\n");
  runner.goodbye();
}
