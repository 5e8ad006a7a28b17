// W&B files, byte for byte, and how a resumed run continues one.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "common/base/hex.h"
#include "launcher/run/run_folder.h"
#include "launcher/trackers/wandb_run.h"
#include "tests/support/temp_dir.h"
#include "tests/support/without_call.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> records_of(std::string_view bytes) {
  std::vector<std::string> records;
  scan_wandb_file(bytes,
                  [&](std::uint64_t, std::string_view record) { records.emplace_back(record); });
  return records;
}

/// True if the record has the kind with this field number and contains `text`.
bool is(const std::string& record, int field, std::string_view text = "") {
  const unsigned key = static_cast<unsigned>(field) << 3 | 2;
  std::string tag(1, static_cast<char>(key & 0x7f));
  if (key > 0x7f) tag = {static_cast<char>((key & 0x7f) | 0x80), static_cast<char>(key >> 7)};
  return record.substr(2, tag.size()) == tag && record.contains(text);
}

fs::path only_file(const fs::path& folder) {
  fs::path found;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) found = entry.path();
  return found;
}

constexpr const char* kWandbId = "20261121-095400-k3f9";

}  // namespace

TEST_CASE("the header of a W&B file and the framed record of a step") {
  CHECK(hex(wandb_file_header()) == "3a572642e1be00");
  // Made by W&B's own writer: history number 3, loss 2.5, step 7.
  CHECK(hex(wandb_frame(wandb_history_record(3, 7, {{"loss", "2.5"}}), 7)) ==
        "7e561f0e160001080312120a0c12046c6f7373820103322e3512020807");
}

TEST_CASE("a W&B file on a file system without locks is written all the same") {
  const test::ScopedTempDir dir;
  test::without_call(SYS_flock, [&] {
    const auto log = WandbLog::open(dir / "run.wandb");
    REQUIRE_MESSAGE(log, (log ? "" : log.error().message));
  });
}

TEST_CASE("records of any length survive the borders of blocks") {
  std::string bytes = wandb_file_header();
  std::vector<std::string> written;
  // The first record ends 6 bytes before its block, so that no chunk header fits after it.
  for (const std::size_t length : {32768u - 7 - 7 - 6, 0u, 1u, 32768u - 7, 100'000u, 32755u, 3u}) {
    written.push_back(std::string(length, static_cast<char>('a' + written.size())));
    bytes += wandb_frame(written.back(), bytes.size());
  }
  CHECK(bytes.substr(32768 - 6, 6) == std::string(6, '\0'));
  CHECK(records_of(bytes) == written);

  for (std::size_t cut = bytes.size() - 1; cut > bytes.size() - 12; --cut)
    CHECK(records_of(std::string_view(bytes).substr(0, cut)).size() < written.size());
  std::string flipped = bytes;
  flipped[32768 + 100] ^= 1;
  CHECK(records_of(flipped).size() < written.size());
  CHECK(scan_wandb_file("no W&B file", [](std::uint64_t, std::string_view) {}) == 0);
}

TEST_CASE("a run is header, run, a row per step, summary, exit") {
  const test::ScopedTempDir dir;
  const WandbSettings settings{
      "the-project", "the-group", "", {"one", "two"}, {{"model.hidden_size", "64"}}};
  auto run = WandbRun::open(dir.path(), kWandbId, settings, 1700000000.5);
  REQUIRE(run);
  REQUIRE(run->add(1, 1700000001.0, {{"train/loss", 4.0}}));
  REQUIRE(run->add(2, 1700000002.0, {{"train/loss", 3.0}}));
  REQUIRE(run->add(2, 1700000003.0, {{"validation/loss", 3.5}}));  // the same row
  REQUIRE(run->finish(0));
  const fs::path file = only_file(dir.path());
  CHECK(file.string() == dir.str("offline-run-20261121_095400-20261121-095400-k3f9/"
                                 "run-20261121-095400-k3f9.wandb"));
  const auto records = records_of(test::read_text(file));
  REQUIRE(records.size() == 6);
  CHECK(is(records[0], 21));
  CHECK(is(records[1], 17, "the-project"));
  CHECK(is(records[1], 17, "the-group"));
  CHECK(is(records[1], 17, "two"));
  CHECK(is(records[1], 17, "model.hidden_size"));
  CHECK(is(records[2], 2, "train/loss"));
  CHECK(is(records[3], 2, "validation/loss"));
  CHECK(is(records[4], 3));
  CHECK(is(records[5], 18));
}

TEST_CASE("a run that goes on appends behind the last step, and forgets its end") {
  const test::ScopedTempDir dir;
  const auto steps = [&](std::int64_t from, std::int64_t to, bool finish) {
    auto run = WandbRun::open(dir.path(), kWandbId, {"p", "", "", {}, {}}, 1700000000.0);
    REQUIRE(run);
    for (std::int64_t step = from; step <= to; ++step)
      REQUIRE(run->add(step, 1700000000.0 + static_cast<double>(step), {{"train/loss", 1.0}}));
    if (finish) REQUIRE(run->finish(0));
  };
  steps(1, 4, true);
  const fs::path file = only_file(dir.path());
  test::write_text(file.string() + ".synced", "");
  steps(3, 6, false);  // resumed from a checkpoint of step 2; the last row is not written yet
  CHECK_FALSE(fs::exists(file.string() + ".synced"));
  // A crash in the middle of a record.
  test::write_text(file, test::read_text(file) + "half of");
  steps(6, 7, true);
  const auto records = records_of(test::read_text(file));
  REQUIRE(records.size() == 2 + 7 + 2);
  for (int step = 1; step <= 7; ++step) {
    const std::string& record = records[static_cast<std::size_t>(step) + 1];
    CHECK(is(record, 2, fmt::format("_step\x82\x01\x01{}", step)));
    CHECK(record[1] == step + 2);  // numbers continue
  }
  CHECK(is(records[9], 3));
  CHECK(is(records[10], 18));
  // A run that has nothing left to do keeps the summary.
  steps(5, 7, true);
  CHECK(records_of(test::read_text(file)) == records);
  const auto first = WandbRun::open(dir.path(), kWandbId, {"p", "", "", {}, {}}, 1.0);
  const auto second = WandbRun::open(dir.path(), kWandbId, {"p", "", "", {}, {}}, 1.0);
  REQUIRE_FALSE(second);
  CHECK(second.error().message.find("another run is writing it") != std::string::npos);
}

TEST_CASE("a run folder writes W&B where asked, in the folder of the run it goes on from") {
  const test::ScopedTempDir state;
  config::JobConfig job;
  job.logger.wandb_mode = "offline";
  job.logger.wandb_project = "here";
  const auto play = [&](const std::string& first_run, int from, int to) {
    auto folder = RunFolder::create(state.path(), false);
    REQUIRE(folder);
    folder->track(job);
    nlohmann::json start = {{"type", "start"}, {"step", from - 1}};
    if (!first_run.empty()) start["first_run"] = first_run;
    folder->metric(start);
    for (int step = from; step <= to; ++step)
      folder->metric({{"type", "step"}, {"step", step}, {"loss", 2.0}, {"skipped", false}});
    folder->finish(0);
    CHECK_FALSE(folder->trouble());
    return folder->id();
  };
  const std::string first = play("", 1, 3), second = play(first, 3, 5);
  const fs::path runs = state / "runs";
  CHECK_FALSE(fs::exists(runs / second / "wandb"));
  const fs::path file = only_file(runs / first / "wandb");
  CHECK(records_of(test::read_text(file)).size() == 2 + 5 + 2);
  // The first run's folder was pruned: the run continues in a file in the new folder. A hostile
  // name is not followed.
  fs::remove_all(runs / first);
  const std::string third = play(first, 6, 7);
  CHECK(only_file(runs / third / "wandb").filename() == "run-" + first + ".wandb");
  const std::string fourth = play("../../../../tmp/x-and-more", 1, 1);
  CHECK(only_file(runs / fourth / "wandb").filename() == "run-" + fourth + ".wandb");
}

TEST_CASE("a W&B folder that can not be written is told once and stops nothing") {
  const test::ScopedTempDir state;
  config::JobConfig job;
  job.logger.wandb_mode = "offline";
  auto folder = RunFolder::create(state.path(), true);
  REQUIRE(folder);
  folder->track(job);
  test::write_text(folder->path() / "wandb", "in the way");
  folder->metric({{"type", "start"}, {"step", 0}});
  folder->metric({{"type", "step"}, {"step", 1}, {"loss", 2.0}});
  folder->finish(0);
  REQUIRE(folder->drain());
  REQUIRE(folder->trouble());
  CHECK(folder->trouble()->message.find("wandb") != std::string::npos);
  CHECK(test::read_text(folder->path() / "metrics.jsonl").find("\"step\":1") != std::string::npos);
  CHECK(fs::exists(only_file(folder->path() / "tensorboard")));
}

TEST_CASE("a run that makes up names without end fills neither memory nor the summary") {
  const test::ScopedTempDir dir;
  {
    auto run = WandbRun::open(dir.path(), kWandbId, {"p", "", "", {}, {}}, 1.0);
    REQUIRE(run);
    for (int step = 1; step <= 100; ++step) {
      std::map<std::string, double> values = {{"loss", 0.5}};
      for (int i = 0; i < 30; ++i) values[fmt::format("made/up/{}/{}", step, i)] = i;
      values[std::string(WandbRun::kMaxNameBytes + 1, 'x')] = 1;
      REQUIRE(run->add(step, step, values));
    }
    CHECK(run->names_left_out() > 1000);
    REQUIRE(run->finish(0));
  }
  const auto records = records_of(test::read_text(only_file(dir.path())));
  const auto summary = std::ranges::find_if(records, [](const auto& r) { return is(r, 3); });
  REQUIRE(summary != records.end());
  CHECK(summary->contains("loss"));
  CHECK(summary->size() < WandbRun::kMaxNames * 100);
  const std::string last = "made/up/100/0";
  for (const std::string& record : records) CHECK_FALSE(record.contains(last));
}

}  // namespace sortie::launcher
