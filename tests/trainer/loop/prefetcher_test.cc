// Tests of reading ahead: the micro-batches are the same, and training does not wait for them.
#include "trainer/samples/prefetcher.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/tiny_training.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

constexpr std::int64_t kNever = -1;

/// A progression that counts the samples it has read, fails at sample `bad` and throws at sample
/// `throwing`.
class CountingSource final : public SampleSource {
 public:
  explicit CountingSource(std::int64_t bad = kNever, std::int64_t throwing = kNever)
      : plain_(50), bad_(bad), throwing_(throwing) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    if (index == bad_) return fail(ErrorCode::data, "sample is bad");
    if (index == throwing_) throw std::bad_alloc();
    SORTIE_TRY(plain_.sample(index, tokens, targets));
    ++read_;
    return {};
  }
  std::string fingerprint() const override { return "counting"; }
  std::int64_t samples_per_epoch() const override { return 1000; }
  /// Returns whether `count` samples are read within half a minute.
  bool reads(std::int64_t count) const {
    for (int i = 0; i < 3000 && read_ < count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return read_ >= count;
  }
  std::int64_t read() const { return read_; }

 private:
  ProgressionSource plain_;
  std::int64_t bad_, throwing_;
  std::atomic<std::int64_t> read_ = 0;
};

using Ids = std::vector<std::int32_t>;
constexpr std::size_t kElements = 3 * 7;  // of a micro-batch below
constexpr ReadingCourse kCourse{.first = 3, .stride = 6, .rows = 3, .length = 7, .end = 1000};

Result<> take(Prefetcher& prefetcher, std::int64_t sample, Ids& tokens, Ids& targets) {
  tokens.assign(kElements, -1);
  targets.assign(kElements, -1);
  return prefetcher.next(sample, tokens, targets);
}

}  // namespace

TEST_CASE("micro-batches that are read ahead are those of the course") {
  CountingSource source;
  ProgressionSource direct(50);
  Prefetcher prefetcher(source, kCourse);
  Ids tokens, targets, row(7), row_targets(7);
  for (int i = 0; i < 40; ++i) {
    const std::int64_t first = 3 + 6 * i;
    REQUIRE(take(prefetcher, first, tokens, targets));
    for (std::int64_t r = 0; r < 3; ++r) {
      REQUIRE(direct.sample(first + r, row, row_targets));
      CHECK(Ids(tokens.begin() + 7 * r, tokens.begin() + 7 * (r + 1)) == row);
      CHECK(Ids(targets.begin() + 7 * r, targets.begin() + 7 * (r + 1)) == row_targets);
    }
  }
}

TEST_CASE("reading stays so far ahead, and ends with the course") {
  CountingSource source;
  ReadingCourse course = kCourse;
  course.ahead = 4;
  course.end = 3 + 6 * 6;
  Prefetcher prefetcher(source, course);
  CHECK(source.reads(4 * 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(source.read() == 4 * 3);
  Ids tokens, targets;
  for (int i = 0; i < 6; ++i) REQUIRE(take(prefetcher, 3 + 6 * i, tokens, targets));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(source.read() == 6 * 3);
  REQUIRE(take(prefetcher, 3 + 6 * 6, tokens, targets));  // beyond the end, but requested
  CHECK(source.read() == 7 * 3);
}

TEST_CASE("an error comes with its micro-batch, and the object can be dropped at any time") {
  CountingSource bad(3 + 6 * 2 + 1), throwing(kNever, 3 + 6 + 2);
  Ids tokens, targets;
  {
    Prefetcher prefetcher(bad, kCourse);
    REQUIRE(take(prefetcher, 3, tokens, targets));
    REQUIRE(take(prefetcher, 9, tokens, targets));
    for (int i = 0; i < 2; ++i) {
      const auto outcome = take(prefetcher, 15, tokens, targets);
      REQUIRE_FALSE(outcome.has_value());
      CHECK(outcome.error().message == "sample is bad");
    }
  }
  {
    Prefetcher prefetcher(throwing, kCourse);
    REQUIRE(take(prefetcher, 3, tokens, targets));
    CHECK_THROWS_AS((void)take(prefetcher, 9, tokens, targets), std::bad_alloc);
  }
  for (int i = 0; i < 100; ++i) {
    CountingSource source;
    Prefetcher dropped(source, kCourse);
    if (i % 2 == 1) CHECK(take(dropped, 3, tokens, targets).has_value());
  }
}

TEST_CASE("the samples of the next step are read while a step is trained") {
  config::JobConfig job = tiny_job();
  job.topology.micro_batch_size = 8;  // one micro-batch a step
  auto owned = std::make_unique<CountingSource>();
  const CountingSource& source = *owned;
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, DType::f32, 1, std::move(owned));
  REQUIRE(training.trainer->step());
  for (int step = 1; step < 10; ++step) {
    CAPTURE(step);
    // They are read without a request.
    REQUIRE(source.reads(8 * (step + 2)));
    const auto report = training.trainer->step();
    REQUIRE(report.has_value());
    CHECK(report->data_seconds == 0.0);
  }
}

TEST_CASE("a step tells how long it waited for its samples") {
  /// A disk that is slower than training.
  class SlowSource final : public SampleSource {
   public:
    Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(40));
      return plain_.sample(index, tokens, targets);
    }
    std::string fingerprint() const override { return "slow"; }
    std::int64_t samples_per_epoch() const override { return 1000; }

   private:
    ProgressionSource plain_{50};
  };
  const auto communicator = make_single_communicator();
  TinyTraining training(tiny_job(), *communicator, DType::f32, 1, std::make_unique<SlowSource>());
  double waited = 0.0;
  for (int i = 0; i < 2; ++i) waited += training.trainer->step()->data_seconds;
  CHECK(waited > 0.1);  // 16 samples take 0.64 s
}
