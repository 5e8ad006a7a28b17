// Tests that a save that is killed, starved or broken at any system call leaves the previous
// checkpoint loadable, and that a committed checkpoint stays whole.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "common/base/process_status.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"
#include "trainer/checkpoint/file_ops.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kKeep = 2;

/// A directory in memory, because these tests make hundreds of saves. A killed process does not
/// lose what it has written, on this or any other file system.
struct MemoryDir : test::ScopedTempDir {
  MemoryDir() : ScopedTempDir("/dev/shm") {}
};

/// Saves steps `first` to `last` and applies retention after each. Returns the process's exit code.
int save_steps(const fs::path& folder, std::int64_t first, std::int64_t last,
               std::string_view fault) {
  auto store = CheckpointStore::open(folder, {"test"});
  if (!store) return 10;
  if (!file_ops::set_fault(fault)) return 11;
  for (std::int64_t step = first; step <= last; ++step) {
    if (!test_job::save(*store, step)) return 12;
    if (!store->retain(step, kKeep)) return 13;
  }
  return 0;
}

/// Runs save_steps in a child process and returns how the child ended.
ProcessStatus save_in_child(const fs::path& folder, std::int64_t first, std::int64_t last,
                            const std::string& fault) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(save_steps(folder, first, last, fault));
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return ProcessStatus::from_wait_status(status);
}

/// Checks the invariant: the newest checkpoint that is found holds its step to the last bit.
/// Returns that step, or 0 if none is found.
std::int64_t newest_good(const fs::path& folder) {
  const auto latest = find_latest(folder, CheckDepth::hashes);
  REQUIRE(latest.has_value());
  CHECK(latest->skipped.empty());  // a crash never leaves a folder that looks like a checkpoint
  if (!latest->entry) return 0;
  CHECK(test_job::holds_step(latest->entry->folder, latest->entry->step));
  return latest->entry->step;
}

/// Returns the number of operations of saving and retaining steps 3 to 4 after steps 1 and 2.
std::uint64_t count_operations() {
  MemoryDir dir;
  REQUIRE(save_steps(dir.path(), 1, 2, "") == 0);
  REQUIRE(save_steps(dir.path(), 3, 4, "") == 0);
  const std::uint64_t count = file_ops::operations();
  CHECK(count > 40);
  return count;
}

}  // namespace

TEST_CASE("a kill at any system call leaves a good checkpoint, and the next run goes on") {
  const std::uint64_t operations = count_operations();
  for (std::uint64_t at = 1; at <= operations; ++at) {
    CAPTURE(at);
    MemoryDir dir;
    REQUIRE(save_steps(dir.path(), 1, 2, "") == 0);
    const auto status =
        save_in_child(dir.path(), 3, 4, "checkpoint:" + std::to_string(at) + ":kill");
    CHECK(status.kind == ProcessStatus::Kind::signaled);
    CHECK(status.code == SIGKILL);
    const std::int64_t newest = newest_good(dir.path());
    CHECK(newest >= 2);
    CHECK(newest <= 4);
    REQUIRE(save_steps(dir.path(), newest + 1, newest + 1, "") == 0);
    CHECK(newest_good(dir.path()) == newest + 1);
    std::size_t hidden = 0;
    for (const auto& entry : fs::directory_iterator(dir.path()))
      hidden += entry.path().filename().string().starts_with(".") ? 1 : 0;
    CHECK(hidden == 1);  // the lock; no .tmp- and no .trash- remains
  }
}

TEST_CASE("an error at any system call is reported and costs nothing that was committed") {
  const std::uint64_t operations = count_operations();
  for (const char* action : {"enospc", "eio"})
    for (std::uint64_t at = 1; at <= operations; ++at) {
      CAPTURE(action);
      CAPTURE(at);
      MemoryDir dir;
      REQUIRE(save_steps(dir.path(), 1, 2, "") == 0);
      const int code =
          save_steps(dir.path(), 3, 4, "checkpoint:" + std::to_string(at) + ":" + action);
      CHECK((code == 12 || code == 13));
      CHECK(newest_good(dir.path()) >= 2);
      REQUIRE(save_steps(dir.path(), 5, 5, "") == 0);
      CHECK(newest_good(dir.path()) == 5);
    }
}

TEST_CASE("an interrupted call, a short write or a slow disk changes nothing") {
  const std::uint64_t operations = count_operations();
  for (const char* action : {"eintr", "short"})
    for (std::uint64_t at = 1; at <= operations; ++at) {
      CAPTURE(action);
      CAPTURE(at);
      MemoryDir dir;
      REQUIRE(save_steps(dir.path(), 1, 2, "") == 0);
      REQUIRE(save_steps(dir.path(), 3, 4, "checkpoint:" + std::to_string(at) + ":" + action) == 0);
      CHECK(newest_good(dir.path()) == 4);
    }
  MemoryDir dir;
  CHECK(save_steps(dir.path(), 1, 1, "checkpoint:5:delay") == 0);
  CHECK(newest_good(dir.path()) == 1);
}

TEST_CASE("replacing a step is safe at any system call too") {
  // With an atomic exchange of folders, and on a file system that does not support it.
  for (const std::string also : {"", "checkpoint:noexchange"}) {
    CAPTURE(also);
    MemoryDir counted;
    REQUIRE(save_steps(counted.path(), 1, 1, "") == 0);
    REQUIRE(save_steps(counted.path(), 1, 1, also) == 0);
    const std::uint64_t operations = file_ops::operations();
    std::size_t aside = 0;
    for (std::uint64_t at = 1; at <= operations; ++at)
      for (const std::string action : {":kill", ":eio"}) {
        CAPTURE(at);
        CAPTURE(action);
        const std::string fault =
            also + (also.empty() ? "" : ",") + "checkpoint:" + std::to_string(at) + action;
        MemoryDir dir;
        REQUIRE(save_steps(dir.path(), 1, 1, "") == 0);
        if (action == ":kill")
          CHECK(save_in_child(dir.path(), 1, 1, fault).kind == ProcessStatus::Kind::signaled);
        else
          // Fails, except if the faulty operation is a removal after the commit.
          save_steps(dir.path(), 1, 1, fault);
        // A reader finds either the old or the new checkpoint, under whichever name.
        CHECK(newest_good(dir.path()) == 1);
        aside += fs::exists(dir / "step-00000001") ? 0 : 1;
        {
          REQUIRE(file_ops::set_fault(""));
          const auto next = CheckpointStore::open(dir.path(), {"test"});
          REQUIRE_MESSAGE(next, (next ? "" : next.error().message));
        }
        CHECK(newest_good(dir.path()) == 1);
        std::set<std::string> names;
        for (const auto& entry : fs::directory_iterator(dir.path()))
          names.insert(entry.path().filename().string());
        CHECK(names == std::set<std::string>{".lock", "step-00000001"});
      }
    CHECK((aside > 0) == !also.empty());
  }
}

TEST_CASE("where folders can not be exchanged, a failed replacement is undone at once") {
  MemoryDir dir;
  REQUIRE(save_steps(dir.path(), 1, 1, "") == 0);
  std::uint64_t second_rename = 0;
  {
    MemoryDir counted;
    REQUIRE(save_steps(counted.path(), 1, 1, "") == 0);
    std::uint64_t renames = 0;
    file_ops::set_observer([&](const file_ops::Operation& operation) {
      if (operation.kind == file_ops::Operation::Kind::rename && ++renames == 2)
        second_rename = file_ops::operations();
    });
    REQUIRE(save_steps(counted.path(), 1, 1, "checkpoint:noexchange") == 0);
    file_ops::set_observer({});
  }
  REQUIRE(save_steps(
              dir.path(), 1, 1,
              "checkpoint:noexchange,checkpoint:" + std::to_string(second_rename) + ":eio") == 12);
  CHECK(test_job::holds_step(dir / "step-00000001", 1));
}

TEST_CASE("a kill at a random moment, again and again, never loses what was reported committed") {
  test::ScopedTempDir dir;  // on a disk: most moments are then within writes and syncs
  std::mt19937 random(7);
  std::int64_t committed = 0;
  for (int round = 0; round < 40; ++round) {
    int report[2];
    REQUIRE(::pipe2(report, O_CLOEXEC) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      // Saves step after step and reports each commit through the pipe.
      auto store = CheckpointStore::open(dir.path(), {"test"});
      for (std::int64_t step = committed + 1; store && test_job::save(*store, step); ++step) {
        if (::write(report[1], &step, sizeof step) != sizeof step) break;
        if (!store->retain(step, kKeep)) break;
      }
      ::_exit(1);
    }
    ::close(report[1]);
    // Waits for 0 to 2 commits, however slow the machine is, then kills at some point of the next
    // save.
    for (auto commits = random() % 3; commits > 0; --commits)
      REQUIRE(::read(report[0], &committed, sizeof committed) == sizeof committed);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10000));
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(ProcessStatus::from_wait_status(status).kind == ProcessStatus::Kind::signaled);
    for (std::int64_t step = 0; ::read(report[0], &step, sizeof step) == sizeof step;)
      committed = step;
    ::close(report[0]);
    const std::int64_t newest = newest_good(dir.path());
    CHECK(newest >= committed);
    committed = newest;
  }
  CHECK(committed > 0);
}

TEST_CASE("a fault that is not understood is refused") {
  for (const char* text :
       {"checkpoint", "checkpoint:", "checkpoint:1", "checkpoint:x:kill", "checkpoint:1:explode",
        "other:1:kill", "checkpoint:1x:kill", "checkpoint:noexchange,",
        "checkpoint:noexchange,1:kill", "checkpoint:3:eio,checkpoint:5:kill"}) {
    const auto refused = file_ops::set_fault(text);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == ErrorCode::usage);
  }
  CHECK(file_ops::set_fault("").has_value());
}

}  // namespace sortie::trainer
