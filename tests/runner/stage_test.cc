// The stage cache of a real runner: trees that are kept, repaired, pruned and shared.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>

#include "common/files/piece.h"
#include "tests/runner/file_runner.h"
#include "tests/support/temp_dir.h"
#include "tests/support/without_call.h"

using namespace sortie;
using namespace sortie::test;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

namespace {

/// A tree of two pieces to stage, and the cache that receives it.
struct Staging {
  Staging() {
    write_text(dir / "file", incompressible(2u << 20, 8));
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

TEST_CASE("stage: what a job has added to a tree is gone for the next one that has it alone") {
  const ScopedTempDir dir;
  const fs::path source = dir / "data", home = dir / "home";
  for (const char* file : {"a", "b.x", "sub/c"}) write_text(source / file, file);
  const ScannedTree tree = scan_tree(source, "data").value();
  const std::string key = files::tree_hash(tree.entries);
  const auto stage = [&] {
    FileRunner runner(home);
    runner.open(wire::FilesPurpose::stage, "", "", key);
    runner.list(tree);
    for (;;) {
      const auto message = runner.client.next();
      REQUIRE(message);
      if (std::holds_alternative<wire::FilesDone>(*message)) break;
      if (const auto* wanted = std::get_if<wire::FilesWanted>(&*message))
        runner.feed(tree, wanted->ranges);
    }
    runner.goodbye();
  };
  stage();
  const fs::path staged = home / ".cache/sortie/stage" / key;
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(staged))
      found.push_back(fs::relative(entry.path(), staged).string());
    std::ranges::sort(found);
    return found;
  };
  const std::vector<std::string> listed = {"data", "data/a", "data/b.x", "data/sub", "data/sub/c"};
  CHECK(names() == listed);
  write_text(dir / "precious", "of a user");
  const auto add = [&] {
    write_text(staged / "new", "x");
    for (int i = 0; i < 300; ++i)
      write_text(staged / "data/__pycache__/inner" / std::to_string(i), "x");
    write_text(staged / "data/sub/new", "x");
    fs::create_symlink(dir.path(), staged / "data/link");
  };
  add();
  {
    const Fd job(::open((staged.string() + ".lock").c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(::flock(job.get(), LOCK_SH | LOCK_NB) == 0);
    stage();
    CHECK(names().size() == listed.size() + 305);  // the other job may use them
  }
  stage();
  CHECK(names() == listed);
  CHECK(read_text(dir / "precious") == "of a user");
  add();
  fs::permissions(staged / "data/a", static_cast<fs::perms>(0644));
  write_text(staged / "data/a", "damaged");
  stage();  // repaired as well
  CHECK(names() == listed);
  CHECK(read_text(staged / "data/a") == "a");
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
  without_call(
      SYS_flock,
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
