#include <doctest/doctest.h>

#include <atomic>

#include "trainer/parallel/communicator.h"
#include "trainer/parallel/gradient_reducer.h"

using namespace sortie::trainer;

TEST_CASE("collectives of thread ranks give every rank the same result") {
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    std::atomic<int> good = 0;
    run_thread_ranks(size, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      std::vector<float> values = {static_cast<float>(rank), 1.0f};
      communicator.all_reduce_sum_async(values)->wait();
      const float expected = static_cast<float>(size * (size - 1)) / 2.0f;
      std::vector<std::byte> bytes(3, std::byte(rank));
      communicator.broadcast(bytes, size - 1);
      const auto texts = communicator.all_gather("r" + std::to_string(rank));
      communicator.barrier();
      if (values[0] == expected && values[1] == static_cast<float>(size) &&
          bytes[2] == std::byte(size - 1) && texts.size() == static_cast<std::size_t>(size) &&
          texts.back() == "r" + std::to_string(size - 1))
        ++good;
    });
    CHECK(good == size);
  }
}

TEST_CASE("an exception of one rank reaches the caller and frees the others") {
  CHECK_THROWS_WITH(run_thread_ranks(3,
                                     [](Communicator& communicator) {
                                       if (communicator.rank() == 1)
                                         throw CommunicatorError("rank 1 is gone");
                                       communicator.barrier();
                                     }),
                    "rank 1 is gone");
}

TEST_CASE("gradient buckets cover the flat buffer and are summed over ranks") {
  std::atomic<int> good = 0;
  run_thread_ranks(3, [&](Communicator& communicator) {
    ExecutionContext context(1);
    ParameterStore store;
    std::vector<Parameter*> parameters;
    for (int i = 0; i < 7; ++i)
      parameters.push_back(
          &store.add({"p" + std::to_string(i), {10 + i, 3}, Init::zeros(), Use::matrix, true, {}}));
    store.finalize(context, DType::f32, 3 * 16, true);
    GradientReducer reducer(store, communicator, 64);
    for (Parameter* parameter : parameters) parameter->use_recorded();
    reducer.begin();
    // Gradients become final from the last declared to the first; p3 is never used.
    for (int i = 6; i >= 0; --i) {
      for (std::int64_t e = 0; e < parameters[static_cast<std::size_t>(i)]->elements(); ++e)
        parameters[static_cast<std::size_t>(i)]->grad().data<float>()[e] =
            static_cast<float>(i + communicator.rank());
      if (i != 3) parameters[static_cast<std::size_t>(i)]->use_done();
      reducer.poll();
    }
    reducer.finish();
    bool all = reducer.bucket_count() > 1;
    for (int i = 0; i < 7; ++i)
      for (std::int64_t e = 0; e < parameters[static_cast<std::size_t>(i)]->elements(); ++e)
        all = all && parameters[static_cast<std::size_t>(i)]->grad().data<float>()[e] ==
                         static_cast<float>(3 * i + 3);
    if (all) ++good;
  });
  CHECK(good == 3);
}
