// Tests of what stops a run or keeps a step from doing harm: outliers, replicas that differ,
// signals, and the checkpoint of the lowest validation loss.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <mutex>

#include "common/training/progress.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/find.h"
#include "trainer/loop/replica_check.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// A source with noise as targets of the samples [begin, end).
class BrokenSource final : public SampleSource {
 public:
  BrokenSource(std::int64_t vocab, std::int64_t begin, std::int64_t end)
      : plain_(vocab), vocab_(vocab), begin_(begin), end_(end) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    SORTIE_TRY(plain_.sample(index, tokens, targets));
    if (index < begin_ || index >= end_) return {};
    for (std::size_t i = 0; i < targets.size(); ++i)
      targets[i] =
          static_cast<std::int32_t>(random_bits(7, static_cast<std::uint64_t>(index) * 1000 + i) %
                                    static_cast<std::uint64_t>(vocab_));
    return {};
  }
  std::string fingerprint() const override { return "broken"; }
  std::int64_t samples_per_epoch() const override { return 1000; }

 private:
  ProgressionSource plain_;
  std::int64_t vocab_, begin_, end_;
};

/// Waits until a child has written a byte, which means that its signal handlers are installed.
/// Closes the pipe.
void await_ready(const int (&ready)[2]) {
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]), ::close(ready[1]);
}

}  // namespace

TEST_CASE("a step whose loss stands out is skipped, and says why") {
  config::JobConfig job = tiny_job();
  job.trainer.train_iterations = 200;
  job.optimizer.skip_loss_zscore = 6;
  job.optimizer.outlier_window = 16;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::f32, 1,
                        std::make_unique<BrokenSource>(job.model.vocab_size, 8 * 150, 8 * 151));
  int skipped = 0;
  for (int i = 0; i < 150; ++i) skipped += training.trainer->step()->skipped;
  CHECK(skipped == 0);
  ParameterStore& store = training.trainer->store();
  const std::vector<float> before = host_values(store, store.master());
  const auto report = training.trainer->step();
  REQUIRE(report);
  CHECK(report->skipped);
  CHECK(report->skip_reason.starts_with("the loss of "));
  CHECK(report->skip_reason.find("deviations above its mean of ") != std::string::npos);
  CHECK(before == host_values(store, store.master()));
  CHECK(training.trainer->progress().updates == 150);
  CHECK_FALSE(training.trainer->step()->skipped);
}

TEST_CASE("a replica that differs is named with its host") {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_thread_ranks(4, [&](Communicator& communicator) {
    config::JobConfig job = tiny_job();
    TinyTraining training(job, communicator);
    training.losses(2);
    ParameterStore& store = training.trainer->store();
    const ReplicaDifference equal =
        find_difference(training.trainer->layout(), training.rank, store);
    if (communicator.rank() == 2) {  // flips one bit of one moment
      const auto moment2 = host_view(store, store.moment2());
      std::uint32_t bits = 0;
      std::memcpy(&bits, &moment2[100], sizeof bits);
      bits ^= 1u << 3;
      std::memcpy(&moment2[100], &bits, sizeof bits);
    }
    const ReplicaDifference differs =
        find_difference(training.trainer->layout(), training.rank, store);
    const std::lock_guard lock(mutex);
    errors.push_back(equal.text);
    errors.push_back(difference_error(differs, 3).message);
    REQUIRE(differs.ranks.size() == 1);
    CHECK(differs.ranks[0].rank == 2);
    CHECK(differs.ranks[0].host == "host-2");
  });
  for (std::size_t i = 0; i < errors.size(); i += 2) {
    CHECK(errors[i] == "");
    CHECK(errors[i + 1] ==
          "step 3: replicas differ: rank 2 (host-2) from the other ranks; check the memory of "
          "those hosts and start again from a checkpoint of before");
  }
}

TEST_CASE("two replicas that differ are both named, and the run ends with that") {
  std::mutex mutex;
  std::vector<Error> errors;
  run_thread_ranks(2, [&](Communicator& communicator) {
    config::JobConfig job = tiny_job();
    job.trainer.replica_check_interval = 2;
    job.trainer.cuda_graphs = "off";  // a graph has no points between its ops
    TinyTraining training(job, communicator);
    // Stands for an op of one rank that is not deterministic.
    training.trainer->context().set_poll([&] {
      ParameterStore& store = training.trainer->store();
      if (communicator.rank() == 1) host_view(store, store.moment1())[5] += 1e-3f;
    });
    const auto outcome = training.trainer->run();
    const std::lock_guard lock(mutex);
    errors.push_back(outcome ? Error{} : outcome.error());
  });
  for (const Error& error : errors) {
    CHECK(error.code == ErrorCode::diverged);
    CHECK(error.message.find("step 2: replicas differ: ") == 0);
    CHECK(error.message.find("rank 0 (host-0)") != std::string::npos);
    CHECK(error.message.find("rank 1 (host-1)") != std::string::npos);
  }
}

TEST_CASE("SIGUSR1 saves and goes on, SIGTERM saves and stops") {
  struct sigaction was {};
  ::sigaction(SIGTERM, nullptr, &was);
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = tiny_job();
  job.trainer.train_iterations = 50;
  job.trainer.save_dir = dir.str("checkpoints");
  job.trainer.keep_last = 0;
  const auto communicator = make_single_communicator();

  /// Sends a signal while the samples of a step are read.
  class SignallingSource final : public SampleSource {
   public:
    explicit SignallingSource(std::int64_t vocab) : plain_(vocab) {}
    Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) override {
      if (index == 8 * 10) ::raise(SIGUSR1);
      if (index == 8 * 20) ::raise(SIGTERM);
      return plain_.sample(index, tokens, targets);
    }
    std::string fingerprint() const override { return "signals"; }
    std::int64_t samples_per_epoch() const override { return 1000; }

   private:
    ProgressionSource plain_;
  };
  std::string stopped;
  {
    TinyTraining training(job, *communicator, DType::f32, 1,
                          std::make_unique<SignallingSource>(job.model.vocab_size));
    const auto outcome = training.trainer->run();
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code == ErrorCode::interrupted);
    stopped = outcome.error().message;
  }
  std::vector<std::int64_t> saved;
  const auto entries = list_checkpoints(dir / "checkpoints", CheckDepth::hashes);
  REQUIRE(entries);
  for (const CheckpointEntry& entry : *entries) saved.push_back(entry.step);
  // Samples are read up to a step ahead.
  REQUIRE(saved.size() == 2);
  CHECK((saved[1] == 10 || saved[1] == 11));
  CHECK((saved[0] == 20 || saved[0] == 21));
  CHECK(stopped.starts_with(fmt::format("stopped by SIGTERM after step {}, with a ", saved[0])));
  struct sigaction now {};
  ::sigaction(SIGTERM, nullptr, &now);
  CHECK((now.sa_handler == was.sa_handler));
}

TEST_CASE("a process whose step never ends dies by its SIGTERM all the same") {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    SaveSignals signals(0.5);
    signals.expect(0.01);
    (void)!::write(ready[1], "", 1);
    for (;;) ::pause();
  }
  await_ready(ready);
  const auto begin = std::chrono::steady_clock::now();
  ::kill(child, SIGTERM);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGTERM);
  CHECK(seconds > 0.25);
  CHECK(seconds < 60);
}

TEST_CASE("peers that are gone in the middle of a save are given up while there is time to save") {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    SaveSignals signals(0.6);
    signals.expect(10);  // a save whose time is not known
    (void)!::write(ready[1], "", 1);
    while (!waits_given_up()) ::usleep(1000);
    ::_exit(0);
  }
  await_ready(ready);
  const auto begin = std::chrono::steady_clock::now();
  ::kill(child, SIGTERM);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  // Otherwise it would die after 30 s.
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(25));
}

TEST_CASE("a SIGTERM that comes when the peers have begun the last save does not end it") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    SaveSignals signals(0.5);
    signals.expect(0.01);
    signals.step_ended();  // another rank has the signal
    ::kill(::getpid(), SIGTERM);
    while (!signals.stop_requested()) ::usleep(1000);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1200);
    while (std::chrono::steady_clock::now() < until) ::usleep(1000);
    ::_exit(waits_given_up() ? 1 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a slow step is waited for while all peers are alive, and not when one is lost") {
  const sortie::test::ScopedTempDir dir;
  const std::string socket_path = dir.str("rank-0.sock");
  const std::string hurry = socket_path + std::string(training::kHurrySuffix);
  const auto gives_up = [&] {  // whether it does so within 1.5 s, with steps of 10 ms
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      SaveSignals signals(600, socket_path);
      signals.expect(0.01);
      (void)!::write(ready[1], "", 1);
      while (!signals.stop_requested()) ::usleep(1000);
      for (int waited = 0; waited < 1500 && !waits_given_up(); ++waited) ::usleep(1000);
      ::_exit(waits_given_up() ? 1 : 0);
    }
    await_ready(ready);
    ::kill(child, SIGTERM);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    return WEXITSTATUS(status) == 1;
  };
  CHECK_FALSE(gives_up());
  std::ofstream(hurry).close();
  CHECK(gives_up());
}

TEST_CASE(
    "who does not run for a second after waits were given up comes to its save all the same") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    SaveSignals signals(0.5);
    signals.expect(0.01);
    ::kill(::getpid(), SIGTERM);
    while (!waits_given_up()) ::usleep(1000);
    // Signals interrupt sleeps, and a busy machine prolongs short ones, so only the clock counts.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1200);
    while (std::chrono::steady_clock::now() < until) ::usleep(1000);
    signals.last_save(0.01);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
}

TEST_CASE("the checkpoint of the lowest validation loss is kept, whatever comes later") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = tiny_job();
  job.trainer.train_iterations = 30;
  job.trainer.save_dir = dir.str("checkpoints");
  job.trainer.eval_interval = 5;
  job.trainer.eval_samples = 4;
  job.trainer.keep_last = 1;
  job.learning_rate_scheduler.learning_rate_decay_style = "constant";
  const auto communicator = make_single_communicator();
  // From step 16 on the targets are noise, so the validation loss rises again.
  TinyTraining training(job, *communicator, DType::f32, 1,
                        std::make_unique<BrokenSource>(job.model.vocab_size, 8 * 15, 8 * 1000));
  REQUIRE(training.trainer->run());
  const auto best = list_checkpoints(dir / "checkpoints/best", CheckDepth::hashes);
  REQUIRE(best);
  REQUIRE(best->size() == 1);
  CHECK((*best)[0].step == 15);
  REQUIRE((*best)[0].manifest);
  const double loss = (*best)[0].manifest->scalars.at("best_validation_loss");
  const auto last = find_latest(dir / "checkpoints");
  REQUIRE(last->entry);
  CHECK(last->entry->step == 30);
  CHECK(last->entry->manifest->scalars.at("best_validation_loss") == loss);
  CHECK(training.trainer->evaluate()->loss > loss);
}
