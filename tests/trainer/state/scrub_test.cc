// Tests that damaged checkpoints are found during training, and moved to where they do no harm.
#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <thread>

#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/find.h"
#include "trainer/state/scrubber.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

using sortie::test::contains;

/// Flips one bit near the end of a shard. The size of the file stays the same.
void damage(const fs::path& checkpoint) {
  for (const auto& file : fs::directory_iterator(checkpoint))
    if (file.path().extension() == ".safetensors") {
      std::fstream shard(file.path(), std::ios::binary | std::ios::in | std::ios::out);
      const auto at = static_cast<std::streamoff>(fs::file_size(file.path()) - 8);
      shard.seekg(at);
      const int byte = shard.get();
      shard.seekp(at);
      shard.put(static_cast<char>(byte ^ 1));
      return;
    }
  FAIL("no shard");
}

std::set<std::string> visible(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (!entry.path().filename().string().starts_with("."))
      names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("a scrub moves damaged checkpoints away and keeps the others") {
  const sortie::test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path(), {"test"});
  REQUIRE(store);
  auto best = CheckpointStore::open(dir / "best", {"test"});
  REQUIRE(best);
  for (const std::int64_t step : {1, 2, 3}) REQUIRE(test_job::save(*store, step));
  REQUIRE(test_job::save(*best, 2));
  ScrubReport clean = scrub(*store);
  CHECK(clean.checked == 4);
  CHECK(clean.damaged == 0);
  CHECK(clean.notes.empty());
  CHECK(clean.newest_good == 3);
  CHECK(clean.moved_best == 0);

  damage(dir / "step-00000003");
  damage(dir / "best/step-00000002");
  const ScrubReport report = scrub(*store);
  CHECK(report.checked == 4);
  CHECK(report.damaged == 2);
  CHECK(report.newest_good == 2);
  CHECK(report.moved_best == 2);
  REQUIRE(report.notes.size() == 2);
  CHECK(contains(report.notes[0], "step-00000003 is damaged: "));
  CHECK(contains(report.notes[0], "; moved to " + dir.str("quarantine/step-00000003")));
  CHECK(visible(dir.path()) ==
        std::set<std::string>{"best", "quarantine", "step-00000001", "step-00000002"});
  CHECK(visible(dir / "quarantine") ==
        std::set<std::string>{"best-step-00000002", "step-00000003"});

  REQUIRE(test_job::save(*store, 3));  // the run reaches this step again, and the disk is bad again
  damage(dir / "step-00000003");
  CHECK(scrub(*store).damaged == 1);
  CHECK(visible(dir / "quarantine").size() == 3);  // what was there before stays
}

TEST_CASE("the last checkpoint is not moved, though it is damaged, and the note says so") {
  const sortie::test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path(), {"test"});
  REQUIRE(store);
  REQUIRE(test_job::save(*store, 7));
  damage(dir / "step-00000007");
  const ScrubReport report = scrub(*store);
  CHECK(report.damaged == 1);
  REQUIRE(report.notes.size() == 1);
  CHECK(contains(report.notes[0], "it stays, because no good one is left"));
  CHECK(visible(dir.path()) == std::set<std::string>{"step-00000007"});
}

TEST_CASE("a checkpoint that can not be read counts as damaged, and does not end the process") {
  const sortie::test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path(), {"test"});
  REQUIRE(store);
  REQUIRE(test_job::save(*store, 7));
  REQUIRE(file_ops::set_fault("checkpoint:noread"));
  const auto checked = check_checkpoint(dir / "step-00000007", CheckDepth::hashes);
  const ScrubReport report = scrub(*store);
  const auto latest = find_latest(dir.path(), CheckDepth::hashes);
  REQUIRE(file_ops::set_fault(""));
  REQUIRE_FALSE(checked);
  CHECK(checked.error().code == ErrorCode::checkpoint);
  CHECK(contains(checked.error().message, "Input/output error"));
  CHECK(report.damaged == 1);
  REQUIRE(latest);
  CHECK_FALSE(latest->entry);
  CHECK(latest->skipped.size() == 1);
  CHECK(scrub(*store).damaged == 0);
}

TEST_CASE("a scrub of an attempt that was taken over touches nothing") {
  const sortie::test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path(), {"run", 1});
  REQUIRE(store);
  for (const std::int64_t step : {1, 2}) REQUIRE(test_job::save(*store, step));
  damage(dir / "step-00000002");
  REQUIRE(CheckpointStore::open(dir.path(), {"run", 2}));
  CHECK(scrub(*store).checked == 0);
  CHECK(visible(dir.path()) == std::set<std::string>{"step-00000001", "step-00000002"});
}

TEST_CASE("a scrub that is to stop reads no further, and moves nothing") {
  const sortie::test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path(), {"test"});
  REQUIRE(store);
  for (const std::int64_t step : {1, 2}) REQUIRE(test_job::save(*store, step));
  damage(dir / "step-00000002");
  std::stop_source stop;
  stop.request_stop();
  const ScrubReport report = scrub(*store, stop.get_token());
  CHECK(report.checked == 0);
  CHECK(report.notes.empty());
  CHECK(visible(dir.path()) == std::set<std::string>{"step-00000001", "step-00000002"});
  const auto checked =
      check_checkpoint(dir / "step-00000001", CheckDepth::hashes, stop.get_token());
  REQUIRE_FALSE(checked);
  CHECK(checked.error().code == ErrorCode::interrupted);
}

TEST_CASE("a scrubber looks again and again, and pruning keeps what it found good") {
  const sortie::test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path(), {"test"});
  REQUIRE(store);
  REQUIRE(test_job::save(*store, 1));
  Scrubber scrubber(CheckpointStore::join(dir.path(), {"test"}, store->token()),
                    std::chrono::milliseconds(2));
  while (scrubber.newest_good() != 1) std::this_thread::yield();
  CHECK(scrubber.take_notes().empty());
  for (const std::int64_t step : {2, 3}) {
    REQUIRE(test_job::save(*store, step));
    REQUIRE(store->retain(step, 1, 1));
    CHECK(visible(dir.path()) == std::set<std::string>{"step-00000001", checkpoint_name(step)});
  }
  damage(dir / "step-00000003");
  std::vector<std::string> notes;
  while (notes.empty()) {
    notes = scrubber.take_notes();
    std::this_thread::yield();
  }
  CHECK(contains(notes[0], "step-00000003 is damaged: "));
  while (scrubber.newest_good() != 1) std::this_thread::yield();
}

}  // namespace sortie::trainer
