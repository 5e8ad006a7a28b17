#include "trainer/parallel/gradient_reducer.h"

#include <atomic>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "tests/trainer/parallel/on_ranks.h"
#include "trainer/ops/copy.h"
#include "trainer/tensor/device_memory.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// Seven parameters, one of them larger than a bucket.
struct Store {
  ParameterStore store;
  std::vector<Parameter*> parameters;
  explicit Store(ExecutionContext& context, int ranks) {
    for (int i = 0; i < 7; ++i)
      parameters.push_back(&store.add({"p" + std::to_string(i),
                                       {i == 2 ? 200 : 10 + i, 3},
                                       Init::zeros(),
                                       Use::matrix,
                                       true,
                                       {}}));
    store.finalize(context, DType::f32, ranks * 16, true);
  }
  void fill(int index, float value) {
    Parameter& parameter = *parameters[static_cast<std::size_t>(index)];
    for (std::int64_t e = 0; e < parameter.elements(); ++e)
      parameter.grad().data<float>()[e] = value + static_cast<float>(e);
  }
  bool holds(int index, float value, float slope) {
    Parameter& parameter = *parameters[static_cast<std::size_t>(index)];
    for (std::int64_t e = 0; e < parameter.elements(); ++e)
      if (parameter.grad().data<float>()[e] != value + slope * static_cast<float>(e)) return false;
    return true;
  }
};

}  // namespace

TEST_CASE("buckets cover what is trained, in equal shares for every rank") {
  for (const int ranks : {2, 3, 5}) {
    Wrongs wrongs;
    run_thread_ranks(ranks, [&](Communicator& communicator) {
      ExecutionContext context(1);
      Store with(context, ranks);
      GradientReducer reducer(with.store, communicator, 64);
      std::int64_t at = 0;
      for (std::size_t i = 0; i < reducer.bucket_count(); ++i) {
        const auto [begin, end] = reducer.bucket(i);
        wrongs.check(begin == at && end > begin && (end - begin) % (16 * ranks) == 0,
                     fmt::format("bucket {} is {} to {}", i, begin, end));
        at = end;
      }
      wrongs.check(at == with.store.trained_elements() && reducer.bucket_count() > 5, "cover");
    });
    CHECK(wrongs.all() == "");
  }
}

TEST_CASE("gradients are summed over ranks in buckets, those without a use too") {
  for (const ThreadRankOptions& options : deliveries()) {
    Wrongs wrongs;
    run_thread_ranks(
        3,
        [&](Communicator& communicator) {
          ExecutionContext context(1);
          Store with(context, 3);
          GradientReducer reducer(with.store, communicator, 64);
          std::vector<std::size_t> told;
          bool in_order = true;
          reducer.set_on_reduced([&](std::size_t bucket, auto begun, auto complete) {
            told.push_back(bucket);
            in_order = in_order && begun <= complete;
          });
          std::vector<std::size_t> all(reducer.bucket_count());
          std::iota(all.begin(), all.end(), 0);
          for (int step = 0; step < 3; ++step) {
            for (Parameter* parameter : with.parameters) parameter->use_recorded();
            told.clear();
            reducer.begin();
            // Gradients become final from the last declared to the first; p3 is never used.
            for (int i = 6; i >= 0; --i) {
              with.fill(i, static_cast<float>(i + communicator.rank()));
              if (i != 3) with.parameters[static_cast<std::size_t>(i)]->use_done();
              reducer.poll();
            }
            reducer.finish();
            for (int i = 0; i < 7; ++i)
              wrongs.check(with.holds(i, static_cast<float>(3 * i + 3), 3.0f),
                           fmt::format("p{} in step {}", i, step));
            wrongs.check(told == all && in_order, fmt::format("buckets told of in step {}", step));
            with.parameters[3]->use_done();  // for the next step's count
          }
        },
        options);
    CHECK(wrongs.all() == "");
  }
}

TEST_CASE("buckets are reduced while later gradients are still being computed") {
  Wrongs wrongs;
  run_thread_ranks(
      3,
      [&](Communicator& communicator) {
        ExecutionContext context(1);
        Store with(context, 3);
        GradientReducer reducer(with.store, communicator, 64);
        for (Parameter* parameter : with.parameters) parameter->use_recorded();
        reducer.begin();
        for (int i = 6; i >= 2; --i) {
          with.fill(i, static_cast<float>(communicator.rank()));
          with.parameters[static_cast<std::size_t>(i)]->use_done();
        }
        // The backward pass continues for as long as the others need, and polls as its ops do. In
        // that time, every rank reduces all gradients that are final.
        const Parameter& next = *with.parameters[1];
        std::size_t ready = 0;
        while (ready < reducer.bucket_count() && reducer.bucket(ready).second <= next.offset())
          ++ready;
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (reducer.reduced_buckets() < ready && std::chrono::steady_clock::now() < limit) {
          std::this_thread::sleep_for(std::chrono::microseconds(200));
          reducer.poll();
        }
        wrongs.check(ready > 4 && reducer.reduced_buckets() == ready,
                     fmt::format("{} of {} buckets while the pass goes on",
                                 reducer.reduced_buckets(), ready));
        wrongs.check(with.holds(6, 3.0f, 3.0f), "sums before the pass is over");
        for (int i = 1; i >= 0; --i) {
          with.fill(i, static_cast<float>(communicator.rank()));
          with.parameters[static_cast<std::size_t>(i)]->use_done();
        }
        reducer.finish();
        wrongs.check(reducer.overlapped_buckets() >= ready, "overlapped buckets");
        for (int i = 0; i < 7; ++i) wrongs.check(with.holds(i, 3.0f, 3.0f), "sum");
      },
      {std::chrono::microseconds(300), 7});
  CHECK(wrongs.all() == "");
}

namespace {

/// Like Store::fill, but by ops: works on any device, and with deferred ops.
void fill_by_ops(ExecutionContext& context, Store& with, int index, float value) {
  Tensor gradient = with.parameters[static_cast<std::size_t>(index)]->grad();
  std::vector<float> values(static_cast<std::size_t>(gradient.elements()));
  for (std::size_t e = 0; e < values.size(); ++e) values[e] = value + static_cast<float>(e);
  ops::copy_from_host<float>(context, values, gradient);
}

/// A flag that is set once and that other threads wait for. wait() returns false after 30 s.
class Signal {
 public:
  void set() { set_ = true; }
  bool wait() const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!set_ && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    return set_;
  }

 private:
  std::atomic<bool> set_ = false;
};

}  // namespace

TEST_CASE("a device's memory is closed to the host while its gradients are being reduced") {
  Wrongs wrongs;
  Signal looked;
  run_thread_ranks(2, [&](Communicator& communicator) {
    ExecutionContext context(1, {.kind = DeviceKind::guarded});
    Store with(context, 2);
    GradientReducer reducer(with.store, communicator, 64);
    for (Parameter* parameter : with.parameters) parameter->use_recorded();
    reducer.begin();
    if (communicator.rank() == 0) wrongs.check(looked.wait(), "rank 1 has looked");
    for (int i = 6; i >= 0; --i) {
      fill_by_ops(context, with, i, static_cast<float>(i + communicator.rank()));
      with.parameters[static_cast<std::size_t>(i)]->use_done();
      reducer.poll();
      wrongs.check(!host_can_access(context.device()), fmt::format("closed behind p{}", i));
    }
    if (communicator.rank() == 1) {
      // Rank 0 has sent nothing: all buckets are in flight.
      wrongs.check(reducer.reduced_buckets() == 0, "in flight");
      looked.set();
    }
    reducer.finish();
    wrongs.check(!host_can_access(context.device()), "closed at the end");
    for (int i = 0; i < 7; ++i) {
      const auto sums =
          ops::copy_to_host<float>(context, with.parameters[static_cast<std::size_t>(i)]->grad());
      for (std::size_t e = 0; e < sums.size(); ++e)
        wrongs.check(sums[e] == static_cast<float>(2 * i + 1) + 2.0f * static_cast<float>(e),
                     fmt::format("p{} at {}", i, e));
    }
  });
  CHECK(wrongs.all() == "");
}

TEST_CASE("the stream waits for the sums, the host does not") {
  ::setenv("SORTIE_COMM_TIMEOUT", "30", 1);  // a host that waits here would wait for itself
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    Wrongs wrongs;
    Signal finished;
    run_thread_ranks(
        2,
        [&](Communicator& communicator) {
          ExecutionContext context(1);
          Store with(context, 2);
          context.defer(seed + 1000 * static_cast<std::uint64_t>(communicator.rank()));
          GradientReducer reducer(with.store, communicator, 64);
          Tensor seen = context.empty(DType::f32, {with.store.trained_elements()});
          for (int step = 0; step < 2; ++step) {
            for (Parameter* parameter : with.parameters) parameter->use_recorded();
            reducer.begin();
            // Rank 0 sends nothing until rank 1 has finished its step.
            if (step == 0 && communicator.rank() == 0) wrongs.check(finished.wait(), "rank 1");
            for (int i = 6; i >= 0; --i) {
              fill_by_ops(context, with, i,
                          static_cast<float>(100 * step + i + communicator.rank()));
              with.parameters[static_cast<std::size_t>(i)]->use_done();
              reducer.poll();
            }
            reducer.finish();
            ops::copy(context, with.store.gradients().slice(0, 0, seen.elements()), seen);
            if (step == 0 && communicator.rank() == 1) finished.set();
            with.store.zero_gradients();
            const auto sums = ops::copy_to_host<float>(context, seen);
            for (int i = 0; i < 7; ++i) {
              const Parameter& parameter = *with.parameters[static_cast<std::size_t>(i)];
              for (std::int64_t e = 0; e < parameter.elements(); ++e)
                wrongs.check(
                    sums[static_cast<std::size_t>(parameter.offset() + e)] ==
                        static_cast<float>(200 * step + 2 * i + 1) + 2.0f * static_cast<float>(e),
                    fmt::format("p{} at {} in step {}", i, e, step));
            }
          }
        },
        {std::chrono::microseconds(seed % 3 == 0 ? 200 : 0), seed});
    CHECK(wrongs.all() == "");
  }
  ::unsetenv("SORTIE_COMM_TIMEOUT");
}
