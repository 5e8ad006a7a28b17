// Tests of which process may commit: a later attempt of a run fences earlier ones, whichever system
// call of a save they have reached.
#include "trainer/checkpoint/ownership.h"

#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/support/captured_stderr.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/without_call.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"
#include "trainer/checkpoint/file_ops.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

Claimant attempt(std::int64_t number) {
  return {"run-1", number};
}

std::int64_t newest_committed(const fs::path& folder) {
  const auto latest = find_latest(folder, CheckDepth::hashes);
  REQUIRE(latest.has_value());
  if (!latest->entry) return 0;
  CHECK(test_job::holds_step(latest->entry->folder, latest->entry->step));
  return latest->entry->step;
}

/// Forks a child that saves steps 2 and 3 as attempt 1 and stops itself at operation `at`. Exit
/// codes: 0 if both are saved, 12 if step 2 failed, 13 if step 3 failed, 10 if the store could not
/// be opened, 11 if the fault could not be set.
pid_t zombie(const fs::path& folder, std::uint64_t at) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child != 0) return child;
  auto store = CheckpointStore::open(folder, attempt(1));
  if (!store) ::_exit(10);
  if (!file_ops::set_fault(fmt::format("checkpoint:{}:stop", at))) ::_exit(11);
  for (const int step : {2, 3})
    if (!test_job::save(*store, step) || !store->retain(step, 1)) ::_exit(10 + step);
  ::_exit(0);
}

}  // namespace

TEST_CASE("a file system without locks: claims alone decide") {
  test::ScopedTempDir dir;
  test::without_call(SYS_flock, [&] {
    auto first = CheckpointStore::open(dir.path(), attempt(1));
    REQUIRE_MESSAGE(first, (first ? "" : first.error().message));
    REQUIRE(test_job::save(*first, 1));
    auto second = CheckpointStore::open(dir.path(), attempt(2));
    REQUIRE_MESSAGE(second, (second ? "" : second.error().message));
    CHECK_FALSE(test_job::save(*first, 2));
    CHECK(test_job::save(*second, 2));
  });
}

TEST_CASE("a later attempt takes the folder over, though the earlier one still holds its lock") {
  test::ScopedTempDir dir;
  auto first = CheckpointStore::open(dir.path(), attempt(1));
  REQUIRE(first);
  for (const std::int64_t step : {0, 1}) REQUIRE(test_job::save(*first, step));
  auto second = CheckpointStore::open(dir.path(), attempt(2));
  REQUIRE_MESSAGE(second, (second ? "" : second.error().message));
  const auto late = test_job::save(*first, 2);
  REQUIRE_FALSE(late);
  CHECK(late.error().code == ErrorCode::checkpoint);
  CHECK(late.error().message.find("it now belongs to run run-1, attempt 2, pid ") !=
        std::string::npos);
  CHECK(late.error().message.find("this is run run-1, attempt 1") != std::string::npos);
  CHECK_FALSE(first->retain(1, 1));  // it would remove step 0
  REQUIRE(test_job::save(*second, 2));
  CHECK(newest_committed(dir.path()) == 2);

  const auto again = CheckpointStore::open(dir.path(), attempt(1));
  REQUIRE_FALSE(again);
  second = fail(ErrorCode::lost, "gone");
  first = fail(ErrorCode::lost, "gone");
  const auto unlocked = CheckpointStore::open(dir.path(), attempt(1));
  REQUIRE_FALSE(unlocked);  // the lock is free, but the claim still holds
  CHECK(unlocked.error().message.find("it now belongs to run run-1, attempt 2") !=
        std::string::npos);
  CHECK(CheckpointStore::open(dir.path(), {"run-2", 1}));
}

TEST_CASE("runs without an id have no later attempts") {
  test::ScopedTempDir dir;
  const auto first = CheckpointStore::open(dir.path(), {"", 1});
  REQUIRE(first);
  CHECK_FALSE(CheckpointStore::open(dir.path(), {"", 2}));
  CHECK(first->check_owner());
}

TEST_CASE("a save that began before the folder was taken over is not committed") {
  test::ScopedTempDir dir;
  auto first = CheckpointStore::open(dir.path(), attempt(1));
  REQUIRE(first);
  const auto folder = first->begin(1, 10'000);
  REQUIRE(folder);
  const ShardInfo whole = *test_job::write_one(*folder, 1, 0, 1);
  const auto second = CheckpointStore::open(dir.path(), attempt(2));
  REQUIRE(second);
  CHECK_FALSE(first->commit(*folder, test_job::manifest_of(1), {whole}));
  CHECK(newest_committed(dir.path()) == 0);
}

TEST_CASE("a process that was stopped at any system call of a save commits nothing afterwards") {
  std::uint64_t operations = 0;
  {
    test::ScopedTempDir dir("/dev/shm");
    auto store = CheckpointStore::open(dir.path(), attempt(1));
    REQUIRE(store);
    REQUIRE(file_ops::set_fault(""));
    for (const std::int64_t step : {2, 3}) {
      REQUIRE(test_job::save(*store, step));
      REQUIRE(store->retain(step, 1));
    }
    operations = file_ops::operations();
    REQUIRE(operations > 30);
  }
  int fenced = 0;
  for (std::uint64_t at = 1; at <= operations; ++at) {
    CAPTURE(at);
    test::ScopedTempDir dir("/dev/shm");
    {
      auto store = CheckpointStore::open(dir.path(), attempt(1));
      REQUIRE(store);
      REQUIRE(test_job::save(*store, 1));
    }
    const pid_t child = zombie(dir.path(), at);
    int status = 0;
    REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
    REQUIRE(WIFSTOPPED(status));
    auto next = CheckpointStore::open(dir.path(), attempt(2));
    REQUIRE_MESSAGE(next, (next ? "" : next.error().message));
    const std::int64_t seen = newest_committed(dir.path());
    CHECK(seen >= 1);
    ::kill(child, SIGCONT);
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK((WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 12 || WEXITSTATUS(status) == 13));
    // A step that was not committed when the later attempt opened the folder is not committed
    // afterwards by the earlier one.
    CHECK(newest_committed(dir.path()) == seen);
    if (seen < 3) {
      CHECK(WEXITSTATUS(status) != 0);
      ++fenced;
    }
    REQUIRE(test_job::save(*next, seen + 1));
    CHECK(newest_committed(dir.path()) == seen + 1);
  }
  CHECK(fenced > static_cast<int>(operations) / 2);
}

TEST_CASE("a process that was stopped while it replaced a step without an exchange takes nothing") {
  const auto replace = [](const fs::path& folder, std::string_view fault) {
    auto store = CheckpointStore::open(folder, attempt(1));
    return store && file_ops::set_fault(fault) && test_job::save(*store, 1).has_value();
  };
  std::uint64_t operations = 0;
  {
    test::ScopedTempDir dir("/dev/shm");
    REQUIRE(replace(dir.path(), ""));
    REQUIRE(replace(dir.path(), "checkpoint:noexchange"));
    operations = file_ops::operations();
  }
  for (std::uint64_t at = 1; at <= operations; ++at) {
    CAPTURE(at);
    test::ScopedTempDir dir("/dev/shm");
    REQUIRE(replace(dir.path(), ""));
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0)
      ::_exit(replace(dir.path(), fmt::format("checkpoint:{}:stop,checkpoint:noexchange", at)) ? 0
                                                                                               : 1);
    int status = 0;
    REQUIRE(::waitpid(child, &status, WUNTRACED) == child);
    REQUIRE(WIFSTOPPED(status));
    REQUIRE(file_ops::set_fault(""));
    auto next = CheckpointStore::open(dir.path(), attempt(2));
    REQUIRE_MESSAGE(next, (next ? "" : next.error().message));
    CHECK(newest_committed(dir.path()) == 1);
    CHECK(fs::exists(dir / "step-00000001"));
    ::kill(child, SIGCONT);
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(newest_committed(dir.path()) == 1);
    REQUIRE(test_job::save(*next, 2));
    CHECK(newest_committed(dir.path()) == 2);
    REQUIRE(next->keep_only(1));  // removes 2
    CHECK(newest_committed(dir.path()) == 1);
  }
}

TEST_CASE("a kill at any system call of a claim leaves a folder that can be opened") {
  std::uint64_t operations = 0;
  {
    test::ScopedTempDir dir("/dev/shm");
    REQUIRE(file_ops::set_fault(""));
    REQUIRE(CheckpointStore::open(dir.path(), attempt(1)));
    operations = file_ops::operations();
    REQUIRE(operations >= 5);
  }
  for (const bool fresh : {true, false})
    for (std::uint64_t at = 1; at <= operations; ++at) {
      CAPTURE(at);
      CAPTURE(fresh);
      test::ScopedTempDir dir("/dev/shm");
      if (!fresh) {
        auto store = CheckpointStore::open(dir.path(), attempt(1));
        REQUIRE(test_job::save(*store, 1));
      }
      const pid_t child = ::fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        (void)file_ops::set_fault(fmt::format("checkpoint:{}:kill", at));
        (void)CheckpointStore::open(dir.path(), attempt(2));
        ::_exit(0);
      }
      int status = 0;
      REQUIRE(::waitpid(child, &status, 0) == child);
      CHECK(WIFSIGNALED(status));
      auto store = CheckpointStore::open(dir.path(), attempt(3));
      REQUIRE_MESSAGE(store, (store ? "" : store.error().message));
      REQUIRE(test_job::save(*store, 2));
      CHECK(newest_committed(dir.path()) == 2);
      std::size_t hidden = 0;
      for (const auto& entry : fs::directory_iterator(dir.path()))
        hidden += entry.path().filename().string().starts_with(".") ? 1 : 0;
      CHECK(hidden == 1);  // the lock
    }
}

TEST_CASE("of the processes of an attempt whose first one is gone, one saves a step") {
  test::ScopedTempDir dir;
  auto first = CheckpointStore::open(dir.path(), attempt(1));
  REQUIRE(first);
  const std::string token = first->token();
  first = fail(ErrorCode::lost, "killed");
  CheckpointStore a = CheckpointStore::join(dir.path(), attempt(1), token);
  CheckpointStore b = CheckpointStore::join(dir.path(), attempt(1), token);
  const auto folder = a.begin_alone(4, 10'000);
  REQUIRE(folder);
  REQUIRE(folder->has_value());
  const auto refused = b.begin_alone(4, 10'000);
  REQUIRE(refused);
  CHECK_FALSE(refused->has_value());
  const auto other_step = b.begin_alone(5, 10'000);
  REQUIRE(other_step);
  CHECK(other_step->has_value());
  REQUIRE(a.commit(**folder, test_job::manifest_of(4), {*test_job::write_one(**folder, 4, 0, 1)}));
  CHECK(newest_committed(dir.path()) == 4);

  REQUIRE(CheckpointStore::open(dir.path(), attempt(2)));
  CHECK_FALSE(a.begin_alone(6, 10'000));
  CHECK_FALSE(b.commit(**other_step, test_job::manifest_of(5),
                       {ShardInfo{"shard-00000-of-00001.safetensors", 1, "", {}}}));
  CHECK(newest_committed(dir.path()) == 4);
}

TEST_CASE("a save folder that was removed during the run is made and claimed again") {
  for (const bool links : {false, true}) {  // with links, as on NFS
    CAPTURE(links);
    test::ScopedTempDir dir;
    const fs::path folder = dir / "save";
    auto store = CheckpointStore::open(folder, attempt(1));
    REQUIRE(store);
    REQUIRE(test_job::save(*store, 1));
    const test::CapturedStderr stderr_text;
    REQUIRE(file_ops::set_fault(links ? "checkpoint:noexchange" : ""));
    fs::remove_all(folder);
    const auto saved = test_job::save(*store, 2);
    REQUIRE(file_ops::set_fault(""));
    REQUIRE_MESSAGE(saved, (saved ? "" : saved.error().message));
    CHECK(test::has(stderr_text.text(), folder.string() + ": the folder was removed or moved"));
    CHECK(newest_committed(folder) == 2);
    CHECK(store->check_owner());
    std::size_t entries = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      CAPTURE(entry.path().string());
      ++entries;
    }
    CHECK(entries == 2);  // .lock and the checkpoint
    const auto other = CheckpointStore::open(folder, {"run-2", 1});
    REQUIRE_FALSE(other);  // the new .lock is locked, too
    CHECK(test::has(other.error().message, "another run saves there (run run-1, attempt 1"));
    // The other processes of the attempt know the token.
    CHECK(CheckpointStore::join(folder, attempt(1), store->token()).check_owner());
  }
}

TEST_CASE("a .lock that was removed during a save is put back, unless another run has claimed") {
  test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path(), attempt(1));
  REQUIRE(store);
  REQUIRE(test_job::save(*store, 1));
  {
    const test::CapturedStderr stderr_text;
    const auto folder = store->begin(2, 10'000);
    REQUIRE(folder);
    const ShardInfo whole = *test_job::write_one(*folder, 2, 0, 1);
    fs::remove(dir / ".lock");
    CHECK(store->check_not_taken());
    const auto saved = store->commit(*folder, test_job::manifest_of(2), {whole});
    REQUIRE_MESSAGE(saved, (saved ? "" : saved.error().message));
    CHECK(test::has(stderr_text.text(), ": its .lock was removed during the run"));
    CHECK(fs::exists(dir / "step-00000001"));
  }
  fs::remove(dir / ".lock");
  REQUIRE(CheckpointStore::open(dir.path(), {"run-2", 1}));  // ends at once, but has claimed
  const auto refused = test_job::save(*store, 3);
  REQUIRE_FALSE(refused);
  CHECK(test::has(refused.error().message, "it now belongs to run run-2, attempt 1"));
  CHECK_FALSE(store->check_not_taken());
  CHECK(newest_committed(dir.path()) == 2);
}

TEST_CASE("of two claims of a folder without .lock, the one that is put there first counts") {
  for (const std::string fault : {"", "checkpoint:noexchange"}) {
    CAPTURE(fault);
    test::ScopedTempDir dir;
    auto store = CheckpointStore::open(dir.path(), attempt(1));
    REQUIRE(store);
    fs::remove(dir / ".lock");
    REQUIRE(file_ops::set_fault(fault));
    // The store has found no .lock and is about to put its own there.
    file_ops::set_observer([&](const file_ops::Operation& operation) {
      if (operation.kind == file_ops::Operation::Kind::sync_file &&
          operation.path.filename().string().starts_with(".tmp-lock."))
        test::write_text(dir / ".lock", R"({"run_id": "run-2", "attempt": 1, "token": "t"})");
    });
    const auto refused = test_job::save(*store, 1);
    file_ops::set_observer({});
    REQUIRE(file_ops::set_fault(""));
    REQUIRE_FALSE(refused);
    CHECK(test::has(refused.error().message, "it now belongs to run run-2, attempt 1"));
    CHECK(test::has(test::read_text(dir / ".lock"), "run-2"));
    CHECK(newest_committed(dir.path()) == 0);
  }
}

TEST_CASE("a survivor of another process does not claim a folder without .lock") {
  test::ScopedTempDir dir;
  const fs::path folder = dir / "save";
  auto first = CheckpointStore::open(folder, attempt(1));
  REQUIRE(first);
  CheckpointStore survivor = CheckpointStore::join(folder, attempt(1), first->token());
  fs::remove_all(folder);
  const auto refused = survivor.begin_alone(1, 10'000);
  REQUIRE_FALSE(refused);
  CHECK(test::has(refused.error().message, "the folder or its .lock was removed"));
  CHECK_FALSE(fs::exists(folder));
}

}  // namespace sortie::trainer
