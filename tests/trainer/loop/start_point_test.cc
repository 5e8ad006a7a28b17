// Tests of which checkpoint a run starts from: save_dir before load_dir, forks in separate folders,
// and checkpoints of older versions, of other runs, damaged or copied.
#include "trainer/state/start_point.h"

#include <doctest/doctest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <set>

#include <functional>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/find.h"
#include "trainer/storage/sha256.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
namespace fs = std::filesystem;

namespace {

using Kind = StartPoint::Kind;

config::JobConfig saving_job(const std::string& save_dir, std::int64_t steps) {
  config::JobConfig job = tiny_job();
  job.trainer.save_dir = save_dir;
  job.trainer.save_interval = 2;
  job.trainer.keep_last = 0;
  job.trainer.train_iterations = steps;
  job.learning_rate_scheduler.learning_rate_decay_style = "constant";
  return job;
}

/// Trains to the end. Returns the step that the run started from.
std::int64_t run_to_end(const config::JobConfig& job) {
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  const std::int64_t first = training.trainer->progress().step;
  const auto done = training.trainer->run();
  REQUIRE_MESSAGE(done, (done ? "" : done.error().message));
  return first;
}

StartPoint start_of(const config::JobConfig& job) {
  auto start = choose_start(job.trainer);
  REQUIRE_MESSAGE(start, (start ? "" : start.error().message));
  return std::move(*start);
}

Manifest manifest_in(const fs::path& checkpoint) {
  auto manifest = check_checkpoint(checkpoint, CheckDepth::hashes);
  REQUIRE_MESSAGE(manifest, (manifest ? "" : manifest.error().message));
  return std::move(*manifest);
}

std::set<std::string> steps_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("step-"))
      names.insert(entry.path().filename());
  return names;
}

/// Rewrites and commits a manifest as another version would have written it.
void rewrite_manifest(const fs::path& checkpoint,
                      const std::function<void(nlohmann::json&)>& change) {
  auto json = nlohmann::json::parse(read_file(checkpoint / kManifestFile).value());
  change(json);
  const std::string text = json.dump(1) + "\n";
  REQUIRE(write_file_atomic(checkpoint / kManifestFile, text));
  REQUIRE(write_file_atomic(checkpoint / kCommitFile, commit_text(sha256_hex(text))));
}

void forget_lineage(const fs::path& checkpoint) {
  rewrite_manifest(checkpoint, [](nlohmann::json& json) {
    json.erase("lineage");
    json.erase("origin");
  });
}

void damage(const fs::path& checkpoint) {
  const fs::path shard = checkpoint / "shard-00000-of-00001.safetensors";
  std::string bytes = read_file(shard).value();
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  REQUIRE(write_file_atomic(shard, bytes));
}

}  // namespace

TEST_CASE("the same command goes on from save_dir, whatever load_dir names") {
  const sortie::test::ScopedTempDir dir;
  run_to_end(saving_job(dir.str("old"), 4));
  config::JobConfig job = saving_job(dir.str("new"), 6);
  job.trainer.load_dir = dir.str("old");
  CHECK(start_of(job).kind == Kind::fork);
  CHECK(run_to_end(job) == 4);
  job.trainer.train_iterations = 8;  // as after a crash at step 6
  CHECK(run_to_end(job) == 6);
  CHECK(steps_in(dir / "new") == std::set<std::string>{"step-00000006", "step-00000008"});

  // All have one new lineage, which records where it came from, so the run also resumes without
  // load_dir.
  const Manifest parent = manifest_in(dir / "old/step-00000004");
  for (const char* name : {"new/step-00000006", "new/step-00000008"}) {
    const Manifest manifest = manifest_in(dir / name);
    CHECK(manifest.lineage == manifest_in(dir / "new/step-00000006").lineage);
    CHECK(manifest.lineage != parent.lineage);
    CHECK(manifest.origin == Manifest::Origin{parent.lineage, 4, dir.str("old/step-00000004")});
  }
  const StartPoint start = start_of(job);
  CHECK(start.kind == Kind::resume);
  CHECK(start.reason ==
        "the newest in trainer.save_dir; trainer.load_dir is where this run started, and is not "
        "read");
  job.trainer.load_dir.clear();
  CHECK(start_of(job).folder == dir / "new/step-00000008");

  // New checkpoints in load_dir, or its removal, do not matter either.
  job.trainer.load_dir = dir.str("old");
  run_to_end(saving_job(dir.str("old"), 20));
  CHECK(start_of(job).folder == dir / "new/step-00000008");
  fs::remove_all(dir / "old");
  CHECK(start_of(job).folder == dir / "new/step-00000008");
}

TEST_CASE("a run whose hosts got site=NAME, or lost it, does not begin at step 0 without a word") {
  const sortie::test::ScopedTempDir dir;
  const std::string run = dir.str("run"), oslo = dir.str("run/site-oslo");
  const auto refused = [](const std::string& save_dir, const std::string& text) {
    const std::string error = start_error(saving_job(save_dir, 6));
    CAPTURE(error);
    CHECK(error.starts_with("trainer.save_dir " + save_dir + ": no checkpoint in it, but " + text));
  };
  SUBCASE("got it") {
    run_to_end(saving_job(run, 4));
    refused(oslo, run + " has one of step 4, of a run whose hosts had no site=NAME; ");
  }
  SUBCASE("lost it") {
    fs::create_directories(run);
    run_to_end(saving_job(oslo, 4));
    refused(run, oslo + " has one of step 4, of a run whose hosts had site=NAME; ");
    // A site that is added has none, and a start that is named is meant so.
    CHECK(start_of(saving_job(dir.str("run/site-rome"), 6)).kind == Kind::seed);
    config::JobConfig named = saving_job(run, 6);
    named.trainer.load_dir = oslo;
    CHECK(start_of(named).kind == Kind::fork);
    named.trainer.save_dir = dir.str("other");
    named.trainer.load_dir = dir.str("nowhere");
    CHECK(start_error(named) == "trainer.load_dir " + dir.str("nowhere") +
                                    ": no such folder on this host; name a checkpoint, or the "
                                    "trainer.save_dir of a run");
    named.trainer.load_dir = run;
    CHECK(start_error(named) == "trainer.load_dir " + run +
                                    ": no committed checkpoint in it; it has the checkpoints of "
                                    "sites: name " +
                                    oslo);
  }
}

TEST_CASE("to go back to an earlier step is a fork in a folder of its own") {
  const sortie::test::ScopedTempDir dir;
  run_to_end(saving_job(dir.str("run"), 8));
  config::JobConfig job = saving_job(dir.str("run"), 10);
  job.trainer.load_dir = dir.str("run/step-00000004");
  const std::string refused = start_error(job);
  CHECK(refused ==
        "trainer.load_dir " + dir.str("run/step-00000004") +
            ": it is of step 4, but trainer.save_dir " + dir.str("run") +
            " has step 8 of the same run; remove trainer.load_dir to resume from step 8, or set "
            "trainer.save_dir to a new folder to start a fork from step 4");
  CHECK(steps_in(dir / "run").size() == 4);

  job.trainer.save_dir = dir.str("fork");
  job.trainer.train_iterations = 6;
  CHECK(start_of(job).kind == Kind::fork);
  CHECK(run_to_end(job) == 4);
  job.trainer.train_iterations = 10;
  CHECK(run_to_end(job) == 6);
  CHECK(steps_in(dir / "run").size() == 4);
}

TEST_CASE(
    "load_dir may name the newest checkpoint of save_dir, and the command still goes on later") {
  const sortie::test::ScopedTempDir dir;
  run_to_end(saving_job(dir.str("run"), 4));
  config::JobConfig job = saving_job(dir.str("run"), 6);
  job.trainer.load_dir = dir.str("run/step-00000004");
  CHECK(start_of(job).kind == Kind::resume);
  CHECK(run_to_end(job) == 4);
  job.trainer.train_iterations = 8;
  CHECK(run_to_end(job) == 6);
  job.trainer.load_dir = dir.str("run");
  CHECK(start_of(job).folder == dir / "run/step-00000008");
  CHECK(manifest_in(dir / "run/step-00000008").lineage ==
        manifest_in(dir / "run/step-00000002").lineage);
}

TEST_CASE("a fork whose own checkpoint load_dir names still goes on with its first command") {
  const sortie::test::ScopedTempDir dir;
  run_to_end(saving_job(dir.str("old"), 2));
  config::JobConfig first = saving_job(dir.str("fork"), 4);
  first.trainer.load_dir = dir.str("old/step-00000002");
  CHECK(run_to_end(first) == 2);
  config::JobConfig named = saving_job(dir.str("fork"), 6);
  named.trainer.load_dir = dir.str("fork/step-00000004");
  CHECK(start_of(named).reason ==
        "the newest in trainer.save_dir; trainer.load_dir names this run's own checkpoints, and is "
        "not read");
  CHECK(run_to_end(named) == 4);
  const Manifest::Origin origin{manifest_in(dir / "old/step-00000002").lineage, 2,
                                dir.str("old/step-00000002")};
  CHECK(manifest_in(dir / "fork/step-00000006").origin == origin);
  named.trainer.train_iterations = 8;  // as after a crash at step 6
  CHECK(run_to_end(named) == 6);
  first.trainer.train_iterations = 10;
  CHECK(run_to_end(first) == 8);
  CHECK(manifest_in(dir / "fork/step-00000010").origin == origin);
  // Another step is still a rewind.
  named.trainer.load_dir = dir.str("fork/step-00000006");
  CHECK(start_error(named).find("but trainer.save_dir") != std::string::npos);
}

TEST_CASE("checkpoints of another run in save_dir are neither gone on from nor pruned") {
  const sortie::test::ScopedTempDir dir;
  run_to_end(saving_job(dir.str("base"), 2));
  run_to_end(saving_job(dir.str("run"), 8));
  config::JobConfig job = saving_job(dir.str("run"), 4);
  job.trainer.keep_last = 1;
  for (std::string* key : {&job.trainer.load_dir, &job.trainer.load_weights_from}) {
    *key = dir.str("base");
    const std::string refused = start_error(job);
    CHECK(refused.find("has checkpoints up to step 8 of a run that did not start from this one of "
                       "step 2") != std::string::npos);
    CHECK(steps_in(dir / "run").size() == 4);
    key->clear();
  }
  // Checkpoints of two runs, copied together by hand.
  fs::copy(dir / "base/step-00000002", dir / "run/step-00000100", fs::copy_options::recursive);
  rewrite_manifest(dir / "run/step-00000100", [](nlohmann::json& json) { json["step"] = 100; });
  CHECK(start_error(job).find("it has checkpoints of several runs (step-00000100 is of run ") !=
        std::string::npos);
}

TEST_CASE("a copy of the same run that went further is gone on from") {
  const sortie::test::ScopedTempDir dir;
  run_to_end(saving_job(dir.str("run"), 4));
  fs::copy(dir / "run", dir / "copy", fs::copy_options::recursive);
  run_to_end(saving_job(dir.str("run"), 8));
  config::JobConfig job = saving_job(dir.str("copy"), 10);
  job.trainer.load_dir = dir.str("run");
  const StartPoint start = start_of(job);
  CHECK(start.kind == Kind::resume);
  CHECK(start.folder == dir / "run/step-00000008");
  CHECK(run_to_end(job) == 8);
  CHECK(manifest_in(dir / "copy/step-00000010").lineage ==
        manifest_in(dir / "copy/step-00000002").lineage);
}

TEST_CASE("what was just committed stays, with damaged later steps in the folder too") {
  const sortie::test::ScopedTempDir dir;
  run_to_end(saving_job(dir.str("run"), 8));
  damage(dir / "run/step-00000008");  // its size is right: only the hash shows the damage
  damage(dir / "run/step-00000006");
  config::JobConfig job = saving_job(dir.str("run"), 5);
  job.trainer.keep_last = 1;
  CHECK(run_to_end(job) == 4);
  CHECK(steps_in(dir / "run") ==
        std::set<std::string>{"step-00000005", "step-00000006", "step-00000008"});
  CHECK(start_of(job).folder == dir / "run/step-00000005");
  damage(dir / "run/step-00000005");
  const std::string refused = start_error(job);
  CHECK(refused.starts_with("trainer.save_dir " + dir.str("run") +
                            ": none of its checkpoints can be used: "));
  CHECK(refused.ends_with("; move them away to start anew"));
}

TEST_CASE("checkpoints of versions without lineages are gone on from") {
  const sortie::test::ScopedTempDir dir;
  run_to_end(saving_job(dir.str("old"), 2));
  config::JobConfig job = saving_job(dir.str("run"), 4);
  job.trainer.load_dir = dir.str("old");
  run_to_end(job);
  forget_lineage(dir / "run/step-00000004");
  const std::string imported = "run/step-00000004";
  rewrite_manifest(dir / imported, [](nlohmann::json& json) { json["run_id"] = "r2"; });
  job.trainer.train_iterations = 6;
  CHECK(run_to_end(job) == 4);  // its first run is unknown: it may have started from there
  job.trainer.train_iterations = 8;
  CHECK(run_to_end(job) == 6);  // the checkpoints since then record it
  CHECK_FALSE(manifest_in(dir / "run/step-00000008").lineage.empty());
  CHECK(manifest_in(dir / "run/step-00000008").origin->step == 2);

  // Checkpoints that recorded their first run, which is another one.
  fs::remove_all(dir / "run");
  run_to_end(saving_job(dir.str("run"), 4));
  for (const char* name : {"run/step-00000002", "run/step-00000004"}) {
    forget_lineage(dir / name);
    rewrite_manifest(dir / name, [](nlohmann::json& json) { json["first_run_id"] = "r1"; });
  }
  CHECK(start_error(job).find("of a run that did not start from") != std::string::npos);
  job.trainer.load_dir.clear();
  job.trainer.train_iterations = 6;
  CHECK(run_to_end(job) == 4);
}

TEST_CASE("a checkpoint that is committed is a success, although old ones can not be removed") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = saving_job(dir.str("run"), 6);
  job.trainer.save_interval = 1;
  job.trainer.keep_last = 2;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  REQUIRE(training.trainer->run());
  config::JobConfig twin_job = job;
  twin_job.trainer.save_dir = dir.str("twin");
  const BitFacts facts;
  Checkpointer saver(twin_job, facts, training.trainer->store(), training.trainer->layout(),
                     training.trainer->context());
  TrainingProgress progress = training.trainer->progress();
  const auto save_next = [&] {
    ++progress.step;
    return saver.save(progress);
  };
  REQUIRE(save_next());
  REQUIRE(file_ops::set_fault(""));
  REQUIRE(save_next());  // the second one: removes nothing yet
  const std::uint64_t without = file_ops::operations();
  REQUIRE(file_ops::set_fault(""));
  REQUIRE(save_next());
  const std::uint64_t with = file_ops::operations();
  REQUIRE(with > without);
  for (std::uint64_t at = without + 1; at <= with; ++at) {
    CAPTURE(at);
    REQUIRE(file_ops::set_fault("checkpoint:" + std::to_string(at) + ":eio"));
    const auto saved = save_next();
    REQUIRE(file_ops::set_fault(""));
    REQUIRE_MESSAGE(saved, (saved ? "" : saved.error().message));
    CHECK(
        saved->warning.starts_with(dir.str("twin") + ": older checkpoints could not be removed: "));
    CHECK(check_checkpoint(saved->path, CheckDepth::hashes));
    const auto next = save_next();
    REQUIRE(next);
    CHECK(next->warning == "");
    CHECK(steps_in(dir / "twin").size() == 2);
  }
}

TEST_CASE("the best checkpoint of a fork is its own") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = saving_job(dir.str("run"), 6);
  job.trainer.eval_interval = 2;
  job.trainer.eval_samples = 2;
  run_to_end(job);
  job.trainer.load_dir = dir.str("run/step-00000002");
  job.trainer.save_dir = dir.str("fork");
  job.trainer.train_iterations = 4;
  CHECK(run_to_end(job) == 2);
  CHECK(steps_in(dir / "fork/best") == std::set<std::string>{"step-00000004"});
}
