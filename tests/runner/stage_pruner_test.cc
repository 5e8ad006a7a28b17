// Removal of staged trees: which ones go, and how much in one step.
#include "runner/files/stage_pruner.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <ctime>

#include "runner/files/stage_files.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using sortie::runner::StagePruner;
using sortie::test::ScopedTempDir;
using sortie::test::write_text;
namespace fs = std::filesystem;

namespace {

std::string key_of(char letter) {
  return std::string(64, letter);
}

/// A tree of `files` files in several folders, last used `age` seconds ago, that counts as 1,000
/// bytes.
fs::path make_tree(const ScopedTempDir& cache, char letter, int files, time_t age) {
  const fs::path tree = cache / key_of(letter);
  for (int i = 0; i < files; ++i) {
    const fs::path folder = tree / fmt::format("{}", i % 3) / "inner";
    fs::create_directories(folder);
    write_text(folder / fmt::format("{}", i), "x");
  }
  write_text(tree.string() + ".lock", "1000\n");
  const timespec used{::time(nullptr) - age, 0};
  const timespec times[] = {used, used};
  REQUIRE(::utimensat(AT_FDCWD, (tree.string() + ".lock").c_str(), times, 0) == 0);
  return tree;
}

std::size_t files_in(const fs::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) count += !entry.is_directory();
  return count;
}

/// Takes all steps. Returns how many there were.
int prune(StagePruner pruner, const fs::path& cache) {
  int steps = 1;
  for (std::size_t before = files_in(cache); !pruner.step(); ++steps) {
    REQUIRE(steps < 100);
    const std::size_t now = files_in(cache);
    CHECK(before - now <= runner::kStagedAtOnce);
    before = now;
  }
  return steps;
}

}  // namespace

TEST_CASE("the least recently used trees are removed, a bounded number of files in one step") {
  const ScopedTempDir cache;
  const fs::path own = make_tree(cache, 'a', 2, 900), oldest = make_tree(cache, 'b', 700, 600),
                 in_use = make_tree(cache, 'c', 2, 500), old = make_tree(cache, 'd', 2, 400),
                 recent = make_tree(cache, 'e', 2, 300);
  const Fd user = runner::open_stage_lock(in_use.string() + ".lock");
  REQUIRE(::flock(user.get(), LOCK_SH) == 0);
  write_text(oldest.string() + ".part/half", "of a staging that was killed");
  CHECK(prune(StagePruner::of_trees(cache.path(), key_of('a'), 3500), cache.path()) > 4);
  for (const fs::path& gone : {oldest, old}) {
    CHECK_FALSE(fs::exists(gone));
    CHECK_FALSE(fs::exists(gone.string() + ".part"));
    CHECK_FALSE(fs::exists(gone.string() + ".lock"));
  }
  for (const fs::path& kept : {own, in_use, recent}) CHECK(files_in(kept) == 2);
  CHECK(prune(StagePruner::of_trees(cache.path(), key_of('a'), 3500), cache.path()) == 1);
}

TEST_CASE("trees and parts that are not in use are removed until the disk has room") {
  const ScopedTempDir cache;
  const fs::path own = make_tree(cache, 'a', 2, 900), in_use = make_tree(cache, 'c', 2, 500),
                 old = make_tree(cache, 'd', 2, 400), killed = make_tree(cache, 'e', 2, 300);
  const Fd user = runner::open_stage_lock(in_use.string() + ".lock");
  REQUIRE(::flock(user.get(), LOCK_SH) == 0);
  fs::rename(killed, killed.string() + ".part");
  CHECK(prune(StagePruner::for_room(cache.path(), key_of('a'), 1), cache.path()) == 1);
  CHECK(fs::exists(old));
  CHECK(prune(StagePruner::for_room(cache.path(), key_of('a'), UINT64_MAX), cache.path()) > 1);
  CHECK_FALSE(fs::exists(old));
  CHECK_FALSE(fs::exists(killed.string() + ".part"));
  CHECK_FALSE(fs::exists(killed.string() + ".lock"));
  for (const fs::path& kept : {own, in_use}) CHECK(files_in(kept) == 2);
}

TEST_CASE("without locks only parts that were abandoned long ago are removed") {
  const ScopedTempDir cache;
  const fs::path tree = make_tree(cache, 'a', 2, 900);
  write_text(cache / (key_of('b') + ".part-0123/file"), "x");
  write_text(cache / "something.part-0123", "not of the cache");
  CHECK(prune(StagePruner::of_old_parts(cache.path()), cache.path()) == 1);
  CHECK(files_in(cache.path()) == 5);
  CHECK(prune(StagePruner::of_old_parts(cache.path(), std::chrono::seconds(0)), cache.path()) > 1);
  CHECK(files_in(cache.path()) == 4);
  CHECK_FALSE(fs::exists(cache / (key_of('b') + ".part-0123")));
}
