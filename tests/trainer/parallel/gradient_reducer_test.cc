#include "trainer/parallel/gradient_reducer.h"

#include <thread>

#include "tests/trainer/parallel/on_ranks.h"

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
          for (int step = 0; step < 3; ++step) {
            for (Parameter* parameter : with.parameters) parameter->use_recorded();
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
        // The backward pass goes on for as long as the others need, polling as its ops do: all that
        // is final gets reduced in that time, on every rank.
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
