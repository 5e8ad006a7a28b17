// Tests that errors that can be known at the start are reported at the start: where checkpoints and
// profiles are written, and what differs between ranks.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <unistd.h>

#include <mutex>

#include "common/cpu/cpu_list.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/loop/crowded_hosts.h"
#include "trainer/loop/profiler.h"
#include "trainer/loop/replica_check.h"
#include "trainer/loop/startup_check.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
namespace fs = std::filesystem;

namespace {

/// Runs `body` as a user other than root, because file permissions do not restrict root.
template <class Body>
auto as_nobody(Body body) {
  constexpr uid_t kNobody = 65534;
  const bool root = ::geteuid() == 0;
  if (root) REQUIRE(::seteuid(kNobody) == 0);
  auto result = body();
  if (root) REQUIRE(::seteuid(0) == 0);
  return result;
}

}  // namespace

TEST_CASE("a save_dir that can not be written to is an error at the start") {
  const sortie::test::ScopedTempDir dir;
  fs::permissions(dir.path(), fs::perms(0755));
  config::JobConfig job = tiny_job();
  job.trainer.save_dir = dir.str("checkpoints");
  std::string refused = as_nobody([&] { return start_error(job); });
  if (::geteuid() == 0) {
    CHECK(refused == "trainer.save_dir: create " + dir.str("checkpoints") + ": Permission denied");
    // The lock file of another user's run can be opened, but nothing can be created next to it.
    fs::create_directory(dir / "checkpoints");
    sortie::test::write_text(dir / "checkpoints/.lock", "");
    fs::permissions(dir / "checkpoints/.lock", fs::perms(0666));
    refused = as_nobody([&] { return start_error(job); });
    CHECK(refused.starts_with("trainer.save_dir: "));
    CHECK(refused.ends_with("Permission denied"));
    CHECK(refused.find(dir.str("checkpoints/.tmp-")) != std::string::npos);
  } else {
    fs::permissions(dir.path(), fs::perms(0555));
    CHECK(start_error(job).ends_with("Permission denied"));
    fs::permissions(dir.path(), fs::perms(0755));
  }
  sortie::test::write_text(dir / "file", "");
  job.trainer.save_dir = dir.str("file/checkpoints");
  CHECK(start_error(job) ==
        "trainer.save_dir: create " + job.trainer.save_dir + ": Not a directory");
}

TEST_CASE("a save_dir without room for two checkpoints is an error before memory is allocated") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = tiny_job();
  job.trainer.save_dir = dir.str("checkpoints");
  job.model.vocab_size = 2'000'000'000;
  job.model.hidden_size = 1 << 16;
  const std::string refused = start_error(job);
  CHECK(refused.starts_with("trainer.save_dir: " + job.trainer.save_dir + ": "));
  CHECK(refused.find("bytes are needed for checkpoints; make room") != std::string::npos);
}

TEST_CASE("a save_dir that another run writes to is an error at the start") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = tiny_job();
  job.trainer.save_dir = dir.str("checkpoints");
  const auto communicator = make_single_communicator();
  const TinyTraining running(job, *communicator);
  CHECK(start_error(job).starts_with("trainer.save_dir: " + job.trainer.save_dir +
                                     ": another run saves there ("));
}

TEST_CASE("a profile that can not be written is an error at the start, on every rank") {
  const sortie::test::ScopedTempDir dir;
  config::ProfilerConfig config;
  config.profiler_output = dir.str("nowhere/trace.json");
  const RankContext alone;                   // without a launcher, which could write it
  CHECK(check_profile_path(config, alone));  // no steps to profile
  config.profile_steps = 3;
  const auto refused = check_profile_path(config, alone);
  REQUIRE_FALSE(refused);
  // Names the file that was requested, not one that only probed the folder.
  CHECK(
      refused.error().message.starts_with("profiler.profiler_output: " + config.profiler_output +
                                          " can not be written: No such file or directory; name "));
  config.profiler_output = dir.str("trace.json");
  CHECK(check_profile_path(config, alone));
  CHECK(fs::is_empty(dir.path()));

  std::mutex mutex;
  std::vector<std::string> errors;
  run_thread_ranks(3, [&](Communicator& communicator) {
    RankContext rank;
    rank.rank = communicator.rank();
    rank.host = "host-" + std::to_string(rank.rank);
    Result<> mine;
    if (rank.rank == 1) mine = fail(ErrorCode::io, "disk: full");
    const auto shared = share_failure(communicator, rank, mine);
    const auto fine = share_failure(communicator, rank, {});
    const std::lock_guard lock(mutex);
    errors.push_back(shared ? "none" : shared.error().message);
    errors.push_back(fine ? "none" : fine.error().message);
  });
  for (std::size_t i = 0; i < errors.size(); i += 2) {
    CHECK(errors[i] == "rank 1 (host-1): disk: full");
    CHECK(errors[i + 1] == "none");
  }
}

TEST_CASE("initial weights that differ between ranks are found before the first step") {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_thread_ranks(3, [&](Communicator& communicator) {
    config::JobConfig job = tiny_job();
    job.topology.global_batch_size = 6;
    TinyTraining training(job, communicator);
    ParameterStore& store = training.trainer->store();
    const auto equal = check_initial_state(training.trainer->layout(), training.rank, store);
    // Changes the last bit of one value, as another libm may.
    if (communicator.rank() == 1) {
      const auto master = host_view(store, store.master());
      master[5] = std::nextafter(master[5], 2.0f);
    }
    const auto differs = check_initial_state(training.trainer->layout(), training.rank, store);
    const std::lock_guard lock(mutex);
    errors.push_back(equal ? "none" : equal.error().message);
    errors.push_back(differs ? "none" : differs.error().message);
  });
  for (std::size_t i = 0; i < errors.size(); i += 2) {
    CHECK(errors[i] == "none");
    CHECK(errors[i + 1] ==
          "start: initial weights differ: rank 1 (host-1) from the other ranks; every rank "
          "computes the same ones from trainer.seed, so check the memory and the CPUs of those "
          "hosts");
  }
}

TEST_CASE("hosts whose ranks have more compute threads than cores are named, and only those") {
  const int cores = static_cast<int>(cpu::allowed_cpus().size());
  std::mutex mutex;
  std::vector<std::string> crowded, fine;
  run_thread_ranks(3, [&](Communicator& communicator) {
    RankContext rank;
    rank.rank = communicator.rank();
    rank.host = rank.rank < 2 ? "h01" : "h02";
    rank.threads = cores;  // two such ranks share h01
    const std::string first = crowded_hosts(communicator, rank);
    rank.host = fmt::format("h0{}", rank.rank);
    const std::string second = crowded_hosts(communicator, rank);
    const std::lock_guard lock(mutex);
    crowded.push_back(first);
    fine.push_back(second);
  });
  const std::string note =
      fmt::format("h01: {} compute threads on {} core{}; set trainer.threads lower", 2 * cores,
                  cores, cores == 1 ? "" : "s");
  for (const std::string& text : crowded) {
    CHECK(text.find(note) != std::string::npos);
    CHECK(text.find("h02") == std::string::npos);
  }
  CHECK(fine == std::vector<std::string>(3, ""));
}
