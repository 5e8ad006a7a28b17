// Tests of the progress of a rank whose GPU writes it: own time is the GPU's, not that of its host.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "tests/support/emulated.h"
#include "tests/support/tiny_training.h"
#include "trainer/loop/stream_progress.h"
#include "trainer/ops/copy.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
using training::Section;

namespace {

/// Marks that the stream of a GPU writes.
class FollowedStream {
 public:
  FollowedStream() { follow_stream(marks_, context_); }
  ~FollowedStream() {
    marks_.unfollow();
    context_.synchronize();
  }
  FollowedStream(const FollowedStream&) = delete;
  FollowedStream& operator=(const FollowedStream&) = delete;

  ProgressMarks& marks() { return marks_; }
  void add_kernel() { ops::fill(context_, 1.0, values_); }
  /// Own time in milliseconds when the GPU has done everything.
  double own() {
    context_.synchronize();
    return static_cast<double>(marks_.look().own_us) / 1000;
  }

 private:
  ExecutionContext context_{1, device()};
  Tensor values_ = context_.empty(DType::f32, {64});
  ProgressMarks marks_;
};

constexpr std::uint64_t kMs = 1'000'000;  // nanoseconds

struct SteppedRun {
  double own_ms = 0, wall_ms = 0;
};

SteppedRun run_slow(const std::string& graphs, std::uint64_t ns_per_kernel) {
  config::JobConfig job = tiny_job();
  job.trainer.cuda_graphs = graphs;
  const auto communicator = make_single_communicator();
  set_emulated("sortie_emulated_slow", 0, ns_per_kernel);
  SteppedRun run;
  {
    TinyTraining training(job, *communicator);
    const std::uint64_t before = training.rank.marks->look().own_us;
    const auto begin = std::chrono::steady_clock::now();
    (void)training.losses(6);
    training.trainer->context().synchronize();
    run.wall_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    run.own_ms = static_cast<double>(training.rank.marks->look().own_us - before) / 1000;
  }
  set_emulated("sortie_emulated_slow", 0, 0);
  return run;
}

}  // namespace

TEST_CASE("on a GPU: own time is that of its own work, not of its host or of waits" *
          doctest::skip(!gpu_is_emulated())) {
  FollowedStream stream;
  ProgressMarks& marks = stream.marks();
  marks.begin_step(1);
  marks.enter(Section::forward);
  stream.add_kernel();
  double own = stream.own();
  // The host is late. By the GPU's clock no time passes, because it has work.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  marks.enter(Section::reduce);
  CHECK(stream.own() - own < 1);
  // The stream waits for other ranks.
  set_emulated("sortie_emulated_idle", 0, 50 * kMs);
  marks.enter(Section::optimizer);
  CHECK(stream.own() - own < 1);
  // The GPU has nothing to do, because its host is late: the others wait for both.
  set_emulated("sortie_emulated_idle", 0, 50 * kMs);
  marks.enter(Section::reduce);
  CHECK(stream.own() - own >= 50);
  CHECK(stream.own() - own < 51);
  own = stream.own();
  set_emulated("sortie_emulated_slow", 0, 30 * kMs);
  marks.enter(Section::backward);
  stream.add_kernel();
  marks.enter(Section::evaluate);
  stream.add_kernel();
  marks.enter(Section::save);
  const double slow = stream.own() - own;
  set_emulated("sortie_emulated_slow", 0, 0);
  CHECK(slow >= 60);  // the kernel, and the mark before it
  CHECK(slow < 61);
}

TEST_CASE("on a GPU: a slow one has a longer own time than its host has steps, in graphs too" *
          doctest::skip(!gpu_is_emulated())) {
  for (const char* graphs : {"off", "auto"}) {
    CAPTURE(std::string(graphs));
    const SteppedRun normal = run_slow(graphs, 0), slow = run_slow(graphs, 100 * kMs);
    CAPTURE(normal.own_ms);
    CAPTURE(slow.own_ms);
    CAPTURE(slow.wall_ms);
    CHECK(normal.own_ms > 0);
    CHECK(slow.own_ms > 10 * normal.own_ms);
    CHECK(slow.own_ms > slow.wall_ms);
  }
}
