// Tests of checkpoints in memory: what a restart resumes from after ranks and hosts were lost.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "tests/support/tiny_training.h"
#include "trainer/parallel/thread_ranks.h"
#include "trainer/state/state_view.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
namespace fs = std::filesystem;

namespace {

constexpr int kMemorySteps = 14;

config::JobConfig remembered_job(const fs::path& save_dir, std::int64_t interval = 4) {
  config::JobConfig job = tiny_job();
  job.topology.global_batch_size = 16;
  job.trainer.save_dir = save_dir;
  job.trainer.train_iterations = kMemorySteps;
  job.trainer.memory_checkpoint_interval = interval;
  return job;
}

/// A run on hosts that each have a memory folder. The folders outlive the attempts of the run.
struct RememberedRun {
  sortie::test::ScopedTempDir dir;
  config::JobConfig job = remembered_job(dir / "save");
  std::string run_id = "run-a";
  int attempt = 0;
  std::int64_t began_at = -1, ended_at = -1;  // steps, of the last attempt
  std::vector<float> weights;

  fs::path memory(const std::string& host) const { return dir / ("memory-" + host); }
  void lose(const std::string& host) const { fs::remove_all(memory(host)); }
  /// Returns the path of a share's file on a host.
  fs::path file(const std::string& host, const std::string& name) const {
    return memory(host) / name;
  }

  /// Runs one attempt with a rank on each of `hosts`, until step `until`. Then all ranks end at
  /// once.
  void run(const std::vector<std::string>& hosts, std::int64_t until) {
    ++attempt;
    for (const std::string& host : hosts) fs::create_directories(memory(host));
    run_thread_ranks(static_cast<int>(hosts.size()), [&](Communicator& communicator) {
      RankContext context;
      context.run_id = run_id;
      context.attempt = attempt;
      context.memory_folder = memory(hosts[static_cast<std::size_t>(communicator.rank())]);
      TinyTraining training(job, communicator, DType::f32, 1, nullptr, context);
      if (communicator.rank() == 0) began_at = training.trainer->progress().step;
      while (training.trainer->progress().step < until) {
        const auto report = training.trainer->step();
        REQUIRE_MESSAGE(report, (report ? "" : report.error().message));
        const auto after = training.trainer->after_step(*report);
        REQUIRE_MESSAGE(after, (after ? "" : after.error().message));
      }
      if (communicator.rank() == 0) {
        ended_at = training.trainer->progress().step;
        ParameterStore& store = training.trainer->store();
        weights = host_values(store, store.master());
      }
    });
  }
};

const std::vector<std::string> kFour = {"a", "b", "c", "d"};

/// Returns the weights of a run in which nothing fails.
std::vector<float> undisturbed_weights(const std::vector<std::string>& hosts = kFour) {
  RememberedRun run;
  run.run(hosts, kMemorySteps);
  CHECK(run.began_at == 0);
  return run.weights;
}

}  // namespace

TEST_CASE(
    "a run goes on from the memory of its hosts, to the bit, and loses no more than the interval") {
  const std::vector<float> whole = undisturbed_weights();
  for (const std::int64_t killed_at : {5, 8, 9, 11, 13}) {
    CAPTURE(killed_at);
    RememberedRun run;
    run.run(kFour, killed_at);
    run.run(kFour, kMemorySteps);
    // A snapshot of the very last step may be in progress when all ranks end. It is sealed here,
    // because trainers wait for their threads when they end.
    CHECK(run.began_at == killed_at / 4 * 4);
    CHECK(run.weights == whole);
  }
}

TEST_CASE("one host that is lost with its memory loses nothing, whichever it is") {
  const std::vector<float> whole = undisturbed_weights();
  for (const std::string lost : {"a", "c", "d"}) {
    CAPTURE(lost);
    RememberedRun run;
    run.run(kFour, 9);
    run.lose(lost);
    std::vector<std::string> hosts = kFour;
    std::ranges::replace(hosts, lost, std::string("spare"));
    run.run(hosts, 13);
    CHECK(run.began_at == 8);
    // Loses another host, after the second attempt has written to memory.
    run.lose("b");
    run.run(hosts, kMemorySteps);
    CHECK(run.began_at == 12);
    CHECK(run.weights == whole);
  }
}

TEST_CASE("moments in bf16 are kept by the hosts as they are, in fewer bytes") {
  const auto bytes_of = [](const RememberedRun& run) {
    return fs::file_size(run.file("a", "share-00000-of-00004.a.data"));
  };
  RememberedRun wide, undisturbed, run;
  wide.run(kFour, 5);
  undisturbed.job.optimizer.moments = "bf16";
  undisturbed.run(kFour, kMemorySteps);
  run.job.optimizer.moments = "bf16";
  run.run(kFour, 9);
  // An element takes 12 bytes with moments in f32 (a weight and two moments), or 8 with moments in
  // bf16. Shares are equal to within a value.
  CHECK(bytes_of(run) * 12 < (bytes_of(wide) + 8) * 8);
  CHECK(bytes_of(run) * 12 > (bytes_of(wide) - 8) * 8);
  run.lose("b");
  run.run({"a", "spare", "c", "d"}, kMemorySteps);
  CHECK(run.began_at == 8);
  CHECK(run.weights == undisturbed.weights);
}

TEST_CASE("hosts that share sequences keep each other's state as replicas do") {
  const auto prepare = [](RememberedRun& run) {
    run.job.model.sequence_length = 20;
    run.job.topology.context_parallel_size = 2;
  };
  RememberedRun undisturbed;
  prepare(undisturbed);
  undisturbed.run(kFour, kMemorySteps);
  RememberedRun run;
  prepare(run);
  run.run(kFour, 9);
  run.lose("b");
  run.run({"a", "spare", "c", "d"}, kMemorySteps);
  CHECK(run.began_at == 8);
  CHECK(run.weights == undisturbed.weights);
}

TEST_CASE("fewer hosts go on from the memory of more") {
  RememberedRun run;
  run.run(kFour, 9);
  // Two hosts that are not neighbours: each share has a copy left.
  run.lose("b");
  run.lose("d");
  run.run({"a", "c"}, 13);
  CHECK(run.began_at == 8);
  run.run({"a", "c"}, kMemorySteps);
  CHECK(run.began_at == 12);
  const std::vector<float> whole = undisturbed_weights();
  REQUIRE(run.weights.size() == whole.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < whole.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(run.weights[i] - whole[i])));
  CHECK(worst < 1e-3);
  // Nothing of the attempt with four ranks is left in memory.
  for (const std::string host : {"a", "c"})
    for (const auto& entry : fs::directory_iterator(run.memory(host)))
      CHECK(sortie::test::contains(entry.path().filename().string(), "-of-00002."));
}

TEST_CASE("a snapshot that is torn, or damaged in both copies, leaves the one before it") {
  const std::vector<float> whole = undisturbed_weights();
  const auto second = [](const RememberedRun& run, const std::string& host, int share,
                         const std::string& end) {
    return run.file(host, "share-0000" + std::to_string(share) + "-of-00004.b" + end);
  };
  const auto damage = [](const fs::path& path) {
    std::string bytes = sortie::test::read_text(path);
    REQUIRE(bytes.size() > 1000);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    sortie::test::write_text(path, bytes);
  };
  SUBCASE("no seal of a share") {
    RememberedRun run;
    run.run(kFour, 9);
    REQUIRE(fs::remove(second(run, "b", 1, ".seal")));
    REQUIRE(fs::remove(second(run, "c", 1, ".seal")));
    run.run(kFour, kMemorySteps);
    CHECK(run.began_at == 4);
    CHECK(run.weights == whole);
  }
  SUBCASE("one copy damaged") {
    RememberedRun run;
    run.run(kFour, 9);
    damage(second(run, "b", 1, ".data"));
    run.run(kFour, kMemorySteps);
    CHECK(run.began_at == 8);
    CHECK(run.weights == whole);
  }
  SUBCASE("both copies damaged") {
    RememberedRun run;
    run.run(kFour, 9);
    damage(second(run, "b", 1, ".data"));
    damage(second(run, "c", 1, ".data"));
    run.run(kFour, kMemorySteps);
    CHECK(run.began_at == 4);
    CHECK(run.weights == whole);
  }
  SUBCASE("two neighbours lost: the disk, which has nothing") {
    RememberedRun run;
    run.run(kFour, 9);
    run.lose("b");
    run.lose("c");
    run.run(kFour, kMemorySteps);
    CHECK(run.began_at == 0);
    CHECK(run.weights == whole);
  }
}

TEST_CASE("notes about an import outlive a restart from memory before the first save on disk") {
  RememberedRun first;
  first.job.trainer.save_interval = 5;
  first.job.trainer.async_save = false;
  first.run({"a"}, 5);
  const fs::path imported = first.dir / "save/step-00000005";
  sortie::test::write_text(imported / "huggingface/config.json", "{}");
  const auto starts_from_it = [&](RememberedRun& run) {
    run.job.trainer.save_interval = 12;
    run.run({"a", "b"}, 9);
    CHECK_FALSE(find_latest(run.dir / "save")->entry);
    run.run({"a", "b"}, kMemorySteps);
    CHECK(run.began_at == 8);
    CHECK(fs::exists(run.dir / "save/step-00000014/huggingface/config.json"));
  };
  SUBCASE("weights") {
    RememberedRun run;
    run.job.trainer.load_weights_from = imported;
    starts_from_it(run);
  }
  SUBCASE("a fork") {
    RememberedRun run;
    run.job.trainer.load_dir = imported;
    starts_from_it(run);
  }
}

TEST_CASE("what is on the disk and newer is taken; what is of another run is not") {
  RememberedRun run;
  run.job.trainer.save_interval = 5;
  run.job.trainer.async_save = false;
  SUBCASE("the disk is newer") {
    run.run({"a", "b"}, 11);  // memory 8, disk 10
    run.run({"a", "b"}, 12);
    CHECK(run.began_at == 10);
  }
  SUBCASE("the memory is newer") {
    run.run({"a", "b"}, 9);  // memory 8, disk 5
    run.run({"a", "b"}, 12);
    CHECK(run.began_at == 8);
  }
  SUBCASE("the memory is of another run") {
    run.run({"a", "b"}, 9);
    run.run_id = "run-b";
    run.run({"a", "b"}, 12);
    CHECK(run.began_at == 5);
  }
  SUBCASE("the save folder has another lineage") {
    run.run({"a", "b"}, 9);
    fs::remove_all(run.dir / "save");
    RememberedRun other;
    other.job.trainer.save_interval = 5;
    other.job.trainer.async_save = false;
    other.run({"a", "b"}, 6);
    fs::copy(other.dir / "save", run.dir / "save", fs::copy_options::recursive);
    run.run({"a", "b"}, 12);
    CHECK(run.began_at == 5);
  }
}

TEST_CASE("a snapshot every step, ranks that share a host, and one host alone") {
  RememberedRun run;
  run.job.trainer.memory_checkpoint_interval = 1;
  SUBCASE("two ranks a host") {
    const std::vector<std::string> hosts = {"a", "a", "b", "b"};
    const std::vector<float> whole = undisturbed_weights(hosts);
    run.run(hosts, 7);
    run.lose("a");
    run.run(hosts, kMemorySteps);
    CHECK(run.began_at == 7);
    CHECK(run.weights == whole);
  }
  SUBCASE("one host: it outlives ranks, and not the host") {
    run.run({"a", "a"}, 7);
    run.run({"a", "a"}, 9);
    CHECK(run.began_at == 7);
    run.lose("a");
    run.run({"a", "a"}, 9);
    CHECK(run.began_at == 0);
  }
}

TEST_CASE("without a holder's folder a run that wants checkpoints in memory does not start") {
  const sortie::test::ScopedTempDir dir;
  CHECK(sortie::test::contains(start_error(remembered_job(dir / "save")),
                               "SORTIE_MEMORY is not set"));
}
