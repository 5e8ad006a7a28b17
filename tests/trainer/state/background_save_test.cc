// Tests of background saves, by one rank and by several.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "common/cpu/cpu_list.h"
#include "tests/support/state_values.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/parallel/thread_ranks.h"
#include "trainer/state/state_view.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
namespace fs = std::filesystem;

namespace {

using Series = Checkpointer::Series;

config::JobConfig saving_job(const std::string& save_dir) {
  config::JobConfig job = tiny_job();
  job.topology.global_batch_size = 12;  // divisible by 1, 2 and 3 ranks
  job.trainer.save_dir = save_dir;
  job.trainer.save_interval = 1;
  job.trainer.keep_last = 2;
  job.trainer.train_iterations = 6;
  return job;
}

/// Returns the same as state_values(), read from a checkpoint whose bytes are compared with their
/// hashes.
std::vector<float> state_in(const fs::path& folder, ParameterStore& like) {
  auto reader = CheckpointReader::open(folder, CheckDepth::hashes);
  REQUIRE_MESSAGE(reader, (reader ? "" : reader.error().message));
  std::vector<float> all;
  for (const StatePiece& piece : StateView(like).pieces(TiedCopies::include)) {
    std::vector<float> values(static_cast<std::size_t>(piece.piece.elements()));
    REQUIRE(reader->read_f32(piece.name, piece.shape, piece.piece, values));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

void fill_state(ParameterStore& store, float value) {
  const StateView view(store);
  for (const StatePiece& piece : view.pieces(TiedCopies::include)) {
    const std::vector<float> values(floats_in(piece.bytes).size(), value);
    write_values(piece, 0, std::as_bytes(std::span(values)));
  }
}

/// A rank with the state after a few steps, and a separate Checkpointer.
struct Rank {
  config::JobConfig job;
  BitFacts facts;
  TinyTraining training;
  Checkpointer saver;

  /// `threads`: compute threads. `beside`: what this rank saves in addition to its state.
  Rank(const config::JobConfig& saving, Communicator& communicator, std::size_t threads = 1,
       std::span<float> beside = {})
      : job(saving),
        facts(with_threads(threads)),
        training(without_saves(saving), communicator),
        saver(job, facts, training.trainer->store(), training.trainer->layout(),
              training.trainer->context()) {
    training.losses(2);
    const auto elements = static_cast<std::int64_t>(beside.size());
    const auto pieces = [=]() -> std::vector<ExtraPiece> {
      if (elements == 0) return {};
      return {{"beside", {elements}, Piece::whole({elements}), beside}};
    };
    saver.set_extras({pieces, pieces, elements});
    const auto prepared = saver.prepare();
    REQUIRE_MESSAGE(prepared, (prepared ? "" : prepared.error().message));
    CHECK(saver.reserve_snapshot() == "");
  }
  static BitFacts with_threads(std::size_t threads) {
    BitFacts facts;
    facts.threads = static_cast<std::int64_t>(threads);
    return facts;
  }
  static config::JobConfig without_saves(config::JobConfig job) {
    job.trainer.save_dir.clear();
    job.trainer.save_interval = 0;
    return job;
  }
  ParameterStore& store() { return training.trainer->store(); }
  TrainingProgress progress(std::int64_t step) {
    TrainingProgress progress = training.trainer->progress();
    progress.step = step;
    return progress;
  }
};

/// Does what a training step does between saves, until rank 0 has an outcome.
std::vector<Checkpointer::Outcome> poll_to_end(Rank& rank, Communicator& communicator) {
  std::vector<Checkpointer::Outcome> outcomes;
  for (;;) {
    std::vector<Checkpointer::Outcome> ended = rank.saver.take_outcomes();
    double sums[] = {rank.saver.has_written() ? 1.0 : 0.0, ended.empty() ? 0.0 : 1.0};
    for (Checkpointer::Outcome& one : ended) outcomes.push_back(std::move(one));
    communicator.all_reduce_sum(sums);
    if (sums[0] == communicator.size()) rank.saver.commit_written();
    if (sums[1] > 0) return outcomes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

fs::path checkpoint_of(const fs::path& folder, std::int64_t step) {
  return folder / checkpoint_name(step);
}

}  // namespace

TEST_CASE("a background save holds the state of its step, whatever training does meanwhile") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const sortie::test::ScopedTempDir dir;
    run_thread_ranks(ranks, [&](Communicator& communicator) {
      Rank rank(saving_job(dir.str("run")), communicator);
      CHECK(rank.saver.shares_folder());
      const std::vector<float> then = state_values(rank.store());
      communicator.barrier();
      if (communicator.rank() == 0) REQUIRE(file_ops::set_fault("checkpoint:3:delay"));
      communicator.barrier();
      rank.saver.begin_save(rank.progress(7), {Series::best, Series::regular});
      fill_state(rank.store(), -1.0f);
      const auto outcomes = poll_to_end(rank, communicator);
      if (communicator.rank() != 0) return;
      REQUIRE(outcomes.size() == 2);
      for (const Checkpointer::Outcome& outcome : outcomes) {
        CHECK(outcome.step == 7);
        REQUIRE_MESSAGE(outcome.saved, (outcome.saved ? "" : outcome.saved.error().message));
        CHECK(outcome.saved->path ==
              checkpoint_of(dir / (outcome.series == Series::best ? "run/best" : "run"), 7));
        CHECK(outcome.saved->stall_seconds < outcome.saved->seconds);
        CHECK(outcome.saved->bytes == static_cast<std::int64_t>(then.size() * sizeof(float)));
        CHECK(state_in(outcome.saved->path, rank.store()) == then);
        // Every rank has written a part of about the same size.
        const auto manifest = check_checkpoint(outcome.saved->path, CheckDepth::hashes);
        REQUIRE(manifest);
        CHECK(manifest->shards.size() == static_cast<std::size_t>(ranks));
        for (const Manifest::File& shard : manifest->shards)
          CHECK(static_cast<double>(shard.bytes) <
                1.3 * static_cast<double>(manifest->shard_bytes()) / ranks);
      }
    });
  }
}

TEST_CASE("a second save waits for the first, and finish() for the last") {
  const sortie::test::ScopedTempDir dir;
  run_thread_ranks(2, [&](Communicator& communicator) {
    Rank rank(saving_job(dir.str("run")), communicator);
    std::map<std::int64_t, std::vector<float>> states;
    for (const std::int64_t step : {1, 2, 3}) {
      fill_state(rank.store(), static_cast<float>(step));
      states[step] = state_values(rank.store());
      rank.saver.begin_save(rank.progress(step), {Series::regular});
      const auto earlier = rank.saver.take_outcomes();
      CHECK(earlier.size() == (step == 1 ? 0 : 1));
      for (const auto& one : earlier) CHECK(one.step == step - 1);
    }
    const auto last = rank.saver.finish();
    REQUIRE(last.size() == 1);
    CHECK(last[0].step == 3);
    CHECK(last[0].saved.has_value());  // on every rank
    CHECK(rank.saver.finish().empty());
    communicator.barrier();
    if (communicator.rank() != 0) return;
    for (const std::int64_t step : {2, 3})
      CHECK(state_in(checkpoint_of(dir / "run", step), rank.store()) == states[step]);
    CHECK_FALSE(fs::exists(checkpoint_of(dir / "run", 1)));  // keep_last = 2
  });
}

TEST_CASE("a background save that fails anywhere is reported by all, and the next one works") {
  // Ranks are threads here, so they share the count of operations, whose order varies.
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const sortie::test::ScopedTempDir dir("/dev/shm");
    std::uint64_t operations = 0;
    std::atomic<int> failed = 0;
    run_thread_ranks(ranks, [&](Communicator& communicator) {
      Rank rank(saving_job(dir.str("run")), communicator);
      const auto save = [&](std::int64_t step, const std::string& fault) {
        fill_state(rank.store(), static_cast<float>(step));
        communicator.barrier();
        if (communicator.rank() == 0) REQUIRE(file_ops::set_fault(fault));
        communicator.barrier();
        rank.saver.begin_save(rank.progress(step), {Series::regular});
        fill_state(rank.store(), -1.0f);
        auto outcomes = rank.saver.finish();
        REQUIRE(outcomes.size() == 1);
        communicator.barrier();
        return std::move(outcomes[0].saved);
      };
      REQUIRE(save(1, ""));
      REQUIRE(save(2, ""));
      if (communicator.rank() == 0) operations = file_ops::operations();
      communicator.barrier();
      for (std::uint64_t at = 1; at <= operations; ++at) {
        CAPTURE(at);
        const auto step = static_cast<std::int64_t>(2 * at + 1);
        const auto broken = save(step, "checkpoint:" + std::to_string(at) + ":eio");
        const auto outcomes = communicator.all_gather(broken ? "saved" : broken.error().message);
        for (const std::string& outcome : outcomes) CHECK(outcome == outcomes[0]);
        if (!broken) ++failed;
        if (communicator.rank() == 0) {
          const auto latest = find_latest(dir / "run", CheckDepth::hashes);
          REQUIRE(latest);
          CHECK(latest->skipped.empty());
          // After an error that follows the commit's rename, the step may be committed although the
          // error is reported.
          CHECK((latest->entry->step == step || latest->entry->step == step - 1));
        }
        REQUIRE(save(step + 1, ""));
      }
      if (communicator.rank() != 0) return;
      const auto last = static_cast<std::int64_t>(2 * operations + 2);
      const fs::path newest = checkpoint_of(dir / "run", last);
      for (const float value : state_in(newest, rank.store())) REQUIRE(value == last);
    });
    CHECK(failed > ranks * 5);
    REQUIRE(file_ops::set_fault(""));
  }
}

TEST_CASE("without memory for a copy a save stops training, and is as good") {
  Snapshot none;
  const auto refused = none.allocate(std::uint64_t{1} << 60, 1, device());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::unsupported);
  CHECK(none.bytes() == 0);
  const sortie::test::ScopedTempDir dir;
  run_thread_ranks(2, [&](Communicator& communicator) {
    config::JobConfig job = saving_job(dir.str("run"));
    job.trainer.async_save = false;
    Rank rank(job, communicator);
    CHECK(rank.saver.snapshot_bytes() == 0);
    const std::vector<float> then = state_values(rank.store());
    rank.saver.begin_save(rank.progress(5), {Series::regular});
    const auto outcomes = rank.saver.take_outcomes();  // nothing to wait for
    REQUIRE(outcomes.size() == 1);
    REQUIRE(outcomes[0].saved);
    if (communicator.rank() != 0) return;
    CHECK(outcomes[0].saved->stall_seconds == outcomes[0].saved->seconds);
    CHECK(state_in(checkpoint_of(dir / "run", 5), rank.store()) == then);
  });
}

TEST_CASE("a rank that does not share the folder: rank 0 writes and reads for all") {
  const sortie::test::ScopedTempDir dir;
  const auto job_of = [&](int rank) {
    config::JobConfig job = saving_job(dir.str("run"));
    if (rank == 1) job.trainer.save_dir = dir.str("elsewhere");
    return job;
  };
  fs::create_directories(dir / "elsewhere");
  std::vector<float> saved;
  run_thread_ranks(3, [&](Communicator& communicator) {
    Rank rank(job_of(communicator.rank()), communicator);
    CHECK_FALSE(rank.saver.shares_folder());
    CHECK((rank.saver.snapshot_bytes() > 0) == (communicator.rank() == 0));
    if (communicator.rank() == 0) saved = state_values(rank.store());
    rank.saver.begin_save(rank.progress(4), {Series::regular});
    fill_state(rank.store(), -1.0f);
    const auto outcomes = rank.saver.finish();
    REQUIRE(outcomes.size() == 1);
    CHECK(outcomes[0].saved.has_value());
  });
  const auto manifest = check_checkpoint(checkpoint_of(dir / "run", 4), CheckDepth::hashes);
  REQUIRE(manifest);
  CHECK(manifest->shards.size() == 1);
  CHECK(fs::is_empty(dir / "elsewhere"));
  run_thread_ranks(3, [&](Communicator& communicator) {
    Rank rank(job_of(communicator.rank()), communicator);
    fill_state(rank.store(), -1.0f);
    const auto loaded = rank.saver.load();
    REQUIRE(loaded);
    REQUIRE(loaded->has_value());
    CHECK((*loaded)->progress.step == 4);
    CHECK(state_values(rank.store()) == saved);
  });
}

TEST_CASE("training with background saves has the bits of training without, and its checkpoints") {
  std::map<std::string, std::vector<float>> ends;
  for (const bool background : {false, true})
    for (const int ranks : {1, 2}) {
      CAPTURE(background);
      CAPTURE(ranks);
      const sortie::test::ScopedTempDir dir;
      config::JobConfig job = saving_job(dir.str("run"));
      job.trainer.async_save = background;
      job.trainer.eval_interval = 2;
      job.trainer.eval_samples = 4;
      job.trainer.train_iterations = 4;
      job.learning_rate_scheduler.learning_rate_decay_style = "constant";
      run_thread_ranks(ranks, [&](Communicator& communicator) {
        TinyTraining training(job, communicator);
        REQUIRE(training.trainer->run());
      });
      CHECK(fs::exists(dir / "run/step-00000003/COMMIT"));
      CHECK(fs::exists(dir / "run/step-00000004/COMMIT"));
      CHECK_FALSE(fs::exists(dir / "run/step-00000002"));
      // A different number of ranks resumes from it, and each reads its own part.
      job.trainer.train_iterations = 6;
      run_thread_ranks(3 - ranks, [&](Communicator& communicator) {
        TinyTraining training(job, communicator);
        CHECK(training.trainer->progress().step == 4);
        REQUIRE(training.trainer->run());
        if (communicator.rank() == 0) {
          auto& end = ends[std::to_string(ranks)];
          const std::vector<float> state = state_values(training.trainer->store());
          if (background) CHECK(state == end);
          end = state;
          CHECK(state_in(dir / "run/step-00000006", training.trainer->store()) == state);
        }
      });
      std::size_t best = 0;
      for (const auto& entry : fs::directory_iterator(dir / "run/best"))
        best += entry.path().filename().string().starts_with("step-") ? 1 : 0;
      CHECK(best == 1);
    }
}

TEST_CASE("where compute threads fill the CPUs, a background save takes a tenth of a core") {
  // There is no limit if training is on a GPU.
  const OnDevice chosen(on_gpu() ? Device{} : device());
  const sortie::test::ScopedTempDir dir;
  const auto communicator = make_single_communicator();
  std::vector<float> beside(std::size_t{12} << 20);
  Rank rank(saving_job(dir.str("run")), *communicator, cpu::allowed_cpus().size(), beside);
  rank.saver.begin_save(rank.progress(7), {Series::regular});
  const auto outcomes = poll_to_end(rank, *communicator);
  REQUIRE(outcomes.size() == 1);
  REQUIRE(outcomes[0].saved);
  CHECK(outcomes[0].saved->seconds >= 0.15);  // 48 MB are hashed and written in 0.03 s of CPU
}

TEST_CASE(
    "what a rank saves in addition counts in the size of a checkpoint, and in the room for it") {
  const sortie::test::ScopedTempDir dir;
  run_thread_ranks(2, [&](Communicator& communicator) {
    Rank rank(saving_job(dir.str("run")), communicator);
    const auto size_of = [&](std::int64_t step) {
      const auto saved = rank.saver.save(rank.progress(step));
      return saved ? saved->bytes : 0;
    };
    const std::int64_t alone = size_of(3);
    const auto none = [] { return std::vector<ExtraPiece>(); };
    rank.saver.set_extras({none, none, 1000});
    REQUIRE(rank.saver.count_extras());
    const std::int64_t more = size_of(4);
    if (communicator.rank() == 0) CHECK(more == alone + 2 * 1000 * std::int64_t{sizeof(float)});
    rank.saver.set_extras({none, none, std::int64_t{1} << 55});
    const auto full = rank.saver.count_extras();  // the same on both ranks
    REQUIRE_FALSE(full);
    CHECK(full.error().message.find("bytes are needed for checkpoints") != std::string::npos);
  });
}

TEST_CASE("who waits for a save's thread lifts its limit of CPU time") {
  SaveThread thread;
  thread.limit_to(1e-9);
  bool limited = false;
  const auto work = [&] {
    limited = thread.allowance() != nullptr;
    CpuAllowance::Spender cpu(thread.allowance());
    for (int i = 0; i < 3; ++i) cpu.rest();
  };
  thread.start(SaveThread::Priority::low, work);
  thread.wait();
  CHECK(limited);
  thread.start(SaveThread::Priority::normal, work);
  thread.wait();
  CHECK_FALSE(limited);
}

TEST_CASE("a save_dir that is removed between two saves is made again by the next one") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const sortie::test::ScopedTempDir dir;
    run_thread_ranks(ranks, [&](Communicator& communicator) {
      Rank rank(saving_job(dir.str("run")), communicator);
      REQUIRE(rank.saver.save(rank.progress(7), Series::regular));
      if (communicator.rank() == 0) fs::remove_all(dir / "run");
      communicator.barrier();
      rank.saver.begin_save(rank.progress(8), {Series::best, Series::regular});
      const auto outcomes = poll_to_end(rank, communicator);
      if (communicator.rank() != 0) return;
      CHECK(rank.saver.check_not_taken());
      REQUIRE(outcomes.size() == 2);
      for (const Checkpointer::Outcome& outcome : outcomes)
        REQUIRE_MESSAGE(outcome.saved, (outcome.saved ? "" : outcome.saved.error().message));
      CHECK(state_in(checkpoint_of(dir / "run", 8), rank.store()) == state_values(rank.store()));
      CHECK(fs::exists(checkpoint_of(dir / "run" / "best", 8)));
    });
  }
}
