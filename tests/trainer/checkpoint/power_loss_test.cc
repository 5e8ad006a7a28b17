// Tests checkpoints against a model of power losses: data that was not synced survives in part or
// not at all. Whatever survives, the newest checkpoint that is found holds its step to the bit, and
// no checkpoint that was reported committed is lost.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"
#include "trainer/checkpoint/file_ops.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

using file_ops::Operation;

/// A file or folder. The first `synced` bytes of a file are on the disk. `durable` are the entries
/// of a folder that are on the disk. `pending` are the changes of entries since then; the disk may
/// have any of them.
struct Inode {
  bool folder = false;
  std::string bytes{};
  std::size_t synced = 0;
  std::map<std::string, std::shared_ptr<Inode>> entries{}, durable{};
  struct Change {
    std::string name{};
    std::shared_ptr<Inode> inode{};  // null: removes the entry
  };
  /// One group of changes per system call. The disk has a group as a whole or not at all, as with a
  /// journal.
  std::vector<std::vector<Change>> pending{};
};
using InodePtr = std::shared_ptr<Inode>;

class DiskModel {
 public:
  explicit DiskModel(fs::path root) : base_(std::move(root)) { root_->folder = true; }

  void apply(const Operation& operation) {
    using Kind = Operation::Kind;
    const std::string name = operation.path.filename();
    switch (operation.kind) {
      case Kind::make_dir:
      case Kind::create: {
        auto inode = std::make_shared<Inode>();
        inode->folder = operation.kind == Kind::make_dir;
        change(operation.path.parent_path(), {{name, inode}});
        break;
      }
      case Kind::write: {
        const auto* text = reinterpret_cast<const char*>(operation.bytes.data());
        find(operation.path)->bytes.append(text, operation.bytes.size());
        break;
      }
      case Kind::sync_file:
        find(operation.path)->synced = find(operation.path)->bytes.size();
        break;
      case Kind::rename:
        change(operation.path.parent_path(),
               {{operation.to.filename(), find(operation.path)}, {name, nullptr}});
        break;
      case Kind::exchange:
        change(operation.path.parent_path(),
               {{operation.to.filename(), find(operation.path)}, {name, find(operation.to)}});
        break;
      case Kind::sync_dir: {
        const InodePtr inode = find(operation.path);
        inode->durable = inode->entries;
        inode->pending.clear();
        break;
      }
      case Kind::remove:
        if (find(operation.path.parent_path())->entries.contains(name))
          change(operation.path.parent_path(), {{name, nullptr}});
        break;
    }
  }

  /// Writes to `target` the files that the disk may have after a power loss at this moment.
  void leave(const fs::path& target, std::mt19937& random) const { leave(*root_, target, random); }

 private:
  InodePtr find(const fs::path& path) const {
    InodePtr at = root_;
    for (const fs::path& part : path.lexically_relative(base_)) {
      if (part == ".") continue;
      REQUIRE_MESSAGE(at->entries.contains(part), path.string());
      at = at->entries.at(part);
    }
    return at;
  }
  void change(const fs::path& folder, std::vector<Inode::Change> changes) {
    const InodePtr inode = find(folder);
    for (const Inode::Change& one : changes) {
      if (one.inode)
        inode->entries[one.name] = one.inode;
      else
        inode->entries.erase(one.name);
    }
    inode->pending.push_back(std::move(changes));
  }
  static void leave(const Inode& inode, const fs::path& target, std::mt19937& random) {
    auto entries = inode.durable;
    // Applies either a prefix of the changes, as a journal does, or any subset.
    const std::size_t reached = random() % (inode.pending.size() + 1);
    const bool in_order = random() % 2 == 0;
    for (std::size_t i = 0; i < inode.pending.size(); ++i) {
      if (in_order ? i >= reached : random() % 2 == 0) continue;
      for (const Inode::Change& one : inode.pending[i]) {
        if (one.inode)
          entries[one.name] = one.inode;
        else
          entries.erase(one.name);
      }
    }
    for (const auto& [name, child] : entries) {
      if (child->folder) {
        fs::create_directory(target / name);
        leave(*child, target / name, random);
        continue;
      }
      // Unsynced bytes: none, half of them, all of them, or only their length, as zeros.
      std::string bytes = child->bytes.substr(0, child->synced);
      const std::string rest = child->bytes.substr(child->synced);
      switch (random() % 4) {
        case 0:
          break;
        case 1:
          bytes += rest.substr(0, rest.size() / 2);
          break;
        case 2:
          bytes += rest;
          break;
        default:
          bytes += std::string(rest.size(), '\0');
          break;
      }
      test::write_text(target / name, bytes);
    }
  }

  fs::path base_;
  InodePtr root_ = std::make_shared<Inode>();
};

/// Like test_job::save, but writes each shard on a separate thread.
Result<fs::path> save_with_threads(CheckpointStore& store, std::int64_t step, std::size_t writers) {
  SORTIE_ASSIGN_OR_RETURN(const fs::path folder, store.begin(step, 10'000));
  std::vector<Result<ShardInfo>> written(writers);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < writers; ++i)
    threads.emplace_back([&, i] { written[i] = test_job::write_one(folder, step, i, writers); });
  for (std::thread& thread : threads) thread.join();
  std::vector<ShardInfo> shards;
  for (Result<ShardInfo>& one : written) {
    SORTIE_TRY(one);
    shards.push_back(std::move(*one));
  }
  return store.commit(folder, test_job::manifest_of(step), shards);
}

/// Saves steps 1 to 4 and then 4 again, and keeps two. After every operation, checks `losses`
/// possible outcomes of a power loss. Returns the number of operations.
std::size_t check_every_moment(std::size_t writers, int losses, std::string_view fault = "") {
  test::ScopedTempDir dir("/dev/shm");
  auto store = CheckpointStore::open(dir.path() / "save", {"test"});
  REQUIRE(store.has_value());
  REQUIRE(file_ops::set_fault(fault));
  DiskModel disk(dir.path() / "save");
  std::mt19937 random(static_cast<unsigned>(writers));
  std::int64_t committed = 0;
  std::size_t operations = 0;
  file_ops::set_observer([&](const Operation& operation) {
    disk.apply(operation);
    ++operations;
    for (int loss = 0; loss < losses; ++loss) {
      test::ScopedTempDir after("/dev/shm");
      disk.leave(after.path(), random);
      const auto latest = find_latest(after.path(), CheckDepth::hashes);
      REQUIRE(latest.has_value());
      CHECK_MESSAGE(latest->skipped.empty(), latest->skipped.front());
      const std::int64_t found = latest->entry ? latest->entry->step : 0;
      CHECK(found >= committed);
      if (latest->entry) CHECK(test_job::holds_step(latest->entry->folder, found));
    }
  });
  for (const std::int64_t step : {1, 2, 3, 4, 4}) {
    const auto saved = save_with_threads(*store, step, writers);
    CHECK_MESSAGE(saved, (saved ? "" : saved.error().message));
    committed = step;
    CHECK(store->retain(step, 2).has_value());
  }
  file_ops::set_observer({});
  REQUIRE(file_ops::set_fault(""));
  return operations;
}

}  // namespace

TEST_CASE("a power loss at any moment costs nothing that was reported committed") {
  const std::size_t alone = check_every_moment(1, 12);
  CHECK(alone > 100);
  CHECK(check_every_moment(3, 12) > alone);
  CHECK(check_every_moment(1, 12, "checkpoint:noexchange") > alone);
}

TEST_CASE("the model of power losses finds a save that does not sync") {
  // The model ignores the fsync of shards here, as if the save had omitted it: some losses must
  // leave a broken checkpoint.
  test::ScopedTempDir dir("/dev/shm");
  auto store = CheckpointStore::open(dir.path() / "save", {"test"});
  REQUIRE(store.has_value());
  DiskModel disk(dir.path() / "save");
  file_ops::set_observer([&](const Operation& operation) {
    if (operation.kind == Operation::Kind::sync_file && operation.path.extension() != ".json" &&
        operation.path.filename() != "COMMIT")
      return;
    disk.apply(operation);
  });
  REQUIRE(save_with_threads(*store, 1, 2).has_value());
  file_ops::set_observer({});
  std::mt19937 random(1);
  int broken = 0;
  for (int loss = 0; loss < 50; ++loss) {
    test::ScopedTempDir after("/dev/shm");
    disk.leave(after.path(), random);
    const auto latest = find_latest(after.path(), CheckDepth::hashes);
    REQUIRE(latest.has_value());
    broken += latest->skipped.empty() ? 0 : 1;
  }
  CHECK(broken > 10);
}

}  // namespace sortie::trainer
