// Tests of rollbacks: which samples they skip, and which checkpoints they abandon.
#include "trainer/checkpoint/rollbacks.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

Manifest manifest_with(std::int64_t step, std::vector<Rollback> rollbacks, bool suspect = false) {
  Manifest manifest = test_job::manifest_of(step);
  manifest.lineage = "abc";
  manifest.rollbacks = std::move(rollbacks);
  manifest.suspect = suspect;
  return manifest;
}

void save_with(CheckpointStore& store, std::int64_t step, std::vector<Rollback> rollbacks,
               bool suspect = false) {
  const auto folder = store.begin(step, 10'000);
  REQUIRE(folder);
  REQUIRE(store.commit(*folder, manifest_with(step, std::move(rollbacks), suspect),
                       {*test_job::write_one(*folder, step, 0, 1)}));
}

std::int64_t latest_step(const fs::path& folder) {
  const auto latest = find_latest(folder, CheckDepth::hashes);
  REQUIRE(latest);
  return latest->entry ? latest->entry->step : 0;
}

}  // namespace

TEST_CASE("samples that rollbacks leave out, by step") {
  CHECK(skipped_by({}).empty());
  // The first rollback goes from step 20 back to 15 and skips the 40 samples of these steps. The
  // second goes from 30 to 25. The third goes from 40 to 20: it skips all samples that were used
  // between, including those that the second one had skipped.
  const std::vector<Rollback> all = {{20, 15, 40, ""}, {30, 25, 40, ""}, {40, 20, 200, ""}};
  CHECK(skipped_by({all[0]}) == std::vector<SkippedSamples>{{15, 40}});
  CHECK(skipped_by({all[0], all[1]}) == std::vector<SkippedSamples>{{15, 40}, {25, 40}});
  const auto skipped = skipped_by(all);
  CHECK(skipped == std::vector<SkippedSamples>{{15, 40}, {20, 200}});
  CHECK(skipped_before(skipped, 15) == 0);
  CHECK(skipped_before(skipped, 16) == 40);
  CHECK(skipped_before(skipped, 20) == 40);
  CHECK(skipped_before(skipped, 21) == 240);
  // A rollback that repeats the same samples skips nothing.
  CHECK(skipped_by({all[0], {30, 10, 0, ""}}) == std::vector<SkippedSamples>{{15, 40}});
}

TEST_CASE("rollbacks in a row come from no further than one before") {
  CHECK(rollbacks_in_a_row({}) == 0);
  CHECK(rollbacks_in_a_row({{20, 15, 40, ""}}) == 1);
  CHECK(rollbacks_in_a_row({{20, 15, 40, ""}, {18, 15, 30, ""}}) == 2);
  CHECK(rollbacks_in_a_row({{20, 15, 40, ""}, {20, 15, 30, ""}, {20, 10, 30, ""}}) == 3);
  CHECK(rollbacks_in_a_row({{20, 15, 40, ""}, {18, 15, 30, ""}, {21, 15, 30, ""}}) == 1);
}

TEST_CASE("the file of rollbacks comes back, and a damaged one is an error") {
  test::ScopedTempDir dir;
  CHECK_FALSE(read_rollbacks(dir.path())->has_value());
  CHECK_FALSE(read_rollbacks(dir.path() / "absent")->has_value());
  const RollbackFile file{"abc", {{20, 15, 40, "a \"spike\"\n"}, {30, 25, 0, ""}}};
  for (int i = 0; i < 2; ++i) {  // the second write replaces the file
    REQUIRE(write_rollbacks(dir.path(), file));
    const auto back = read_rollbacks(dir.path());
    REQUIRE(back);
    REQUIRE(back->has_value());
    CHECK((*back)->lineage == "abc");
    CHECK((*back)->rollbacks == file.rollbacks);
  }
  for (const char* text :
       {"", "{}", "[]", R"({"format": "sortie-rollbacks 2", "lineage": "a", "rollbacks": []})",
        R"({"format": "sortie-rollbacks 1", "lineage": "a", "rollbacks": [{"from": 1}]})",
        R"({"format": "sortie-rollbacks 1", "lineage": "a", "rollbacks":
           [{"from": 1, "to": 2, "skipped_samples": 0}]})",
        R"({"format": "sortie-rollbacks 1", "lineage": "a", "rollbacks":
           [{"from": 3, "to": -2, "skipped_samples": 0}]})"}) {
    CAPTURE(text);
    test::write_text(dir.path() / kRollbackFile, text);
    const auto read = read_rollbacks(dir.path());
    REQUIRE_FALSE(read);
    CHECK(read.error().code == ErrorCode::checkpoint);
    CHECK(read.error().message.find("rollbacks.json: not a list of rollbacks") !=
          std::string::npos);
    CHECK_FALSE(find_latest(dir.path()));  // because it is unknown which checkpoints count
  }
}

TEST_CASE("checkpoints that the run has gone back to before are passed over, and removed") {
  test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path(), {"test"});
  REQUIRE(store);
  const Rollback back{22, 10, 96, "spike"};
  for (const std::int64_t step : {5, 10, 15, 20}) save_with(*store, step, {});
  CHECK(latest_step(dir.path()) == 20);
  REQUIRE(write_rollbacks(dir.path(), {"another", {back}}));
  CHECK(latest_step(dir.path()) == 20);  // of another run: ignored
  REQUIRE(write_rollbacks(dir.path(), {"abc", {back}}));
  CHECK(latest_step(dir.path()) == 10);
  save_with(*store, 15, {back});  // the run has reached step 15 again
  CHECK(latest_step(dir.path()) == 15);
  REQUIRE(store->discard_abandoned(*read_rollbacks(dir.path())));
  const auto left = list_checkpoints(dir.path(), CheckDepth::hashes);
  REQUIRE(left);
  std::set<std::int64_t> steps;
  for (const CheckpointEntry& entry : *left) steps.insert(entry.step);
  CHECK(steps == std::set<std::int64_t>{5, 10, 15});
  CHECK((*left)[0].manifest->rollbacks == std::vector<Rollback>{back});
  // A run that resumes from a checkpoint from before the rollback learns of the rollback.
  CHECK(rollbacks_from(*(*left)[2].manifest, *read_rollbacks(dir.path())) ==
        std::vector<Rollback>{back});
  REQUIRE(store->discard_after(10));
  CHECK(latest_step(dir.path()) == 10);
}

TEST_CASE("a suspect checkpoint is taken only where there is no other, and the others stay") {
  test::ScopedTempDir dir;
  auto store = CheckpointStore::open(dir.path(), {"test"});
  REQUIRE(store);
  save_with(*store, 1, {}, true);
  CHECK(latest_step(dir.path()) == 1);
  CHECK(find_latest(dir.path())->entry->manifest->suspect);
  save_with(*store, 2, {});
  for (const std::int64_t step : {3, 4, 5}) {
    save_with(*store, step, {}, true);
    REQUIRE(store->retain(step, 2));
  }
  const auto latest = find_latest(dir.path(), CheckDepth::hashes);
  REQUIRE(latest);
  CHECK(latest->entry->step == 2);  // kept in addition to the two of keep_last
  REQUIRE(latest->skipped.size() == 2);
  CHECK(latest->skipped[0].find("suspect") != std::string::npos);
  save_with(*store, 6, {});
  REQUIRE(store->retain(6, 2));
  CHECK(latest_step(dir.path()) == 6);
  CHECK(list_checkpoints(dir.path(), CheckDepth::sizes)->size() == 2);
}

}  // namespace sortie::trainer
