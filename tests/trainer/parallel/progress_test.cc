// Tests of collectives that are in flight at the same time: orders, groups of groups, and how
// collectives fail.
#include <atomic>
#include <thread>

#include "tests/support/scoped_variable.h"
#include "tests/trainer/parallel/on_ranks.h"
#include "trainer/ops/copy.h"
#include "trainer/parallel/communicator.h"
#include "trainer/parallel/engine.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// Returns the messages of the ranks' own exceptions, by rank.
std::vector<std::string> errors_of(int ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  try {
    run_thread_ranks(ranks, [&](Communicator& communicator) {
      try {
        body(communicator);
      } catch (const CommunicatorError& error) {
        errors[static_cast<std::size_t>(communicator.rank())] = error.what();
        throw;
      }
    });
  } catch (const CommunicatorError&) {
  }
  return errors;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("collectives in flight may be waited for in another order on every rank") {
  for (const ThreadRankOptions& options : deliveries()) {
    Wrongs wrongs;
    run_thread_ranks(
        4,
        [&](Communicator& communicator) {
          const int rank = communicator.rank();
          constexpr int kCount = 9;  // more than start at once
          std::vector<Tensor> values;
          std::vector<std::unique_ptr<CollectiveHandle>> handles;
          for (int i = 0; i < kCount; ++i) {
            values.push_back(samples<float>(rank + i, 30'000 + i));
            handles.push_back(communicator.all_reduce_async(values.back(), ReduceOp::sum));
          }
          for (int i = 0; i < kCount; ++i)
            handles[static_cast<std::size_t>((i * (rank % 2 == 0 ? 1 : 8) + rank) % kCount)]
                ->wait();
          for (int i = 0; i < kCount; ++i) {
            float expected = sample<float>(i, 17);
            for (int from = 1; from < 4; ++from) expected += sample<float>(from + i, 17);
            wrongs.check(values[static_cast<std::size_t>(i)].data<float>()[17] == expected,
                         fmt::format("all-reduce {} on {}", i, rank));
          }
        },
        options);
    CHECK(wrongs.all() == "");
  }
}

TEST_CASE("a stream waits for any collective, and keeps what it needs") {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    Wrongs wrongs;
    run_thread_ranks(
        3,
        [&](Communicator& communicator) {
          const int rank = communicator.rank();
          ExecutionContext context(1);
          context.defer(seed * 10 + static_cast<std::uint64_t>(rank));
          Tensor seen = context.empty(DType::f32, {50'000});
          const Tensor all = make_tensor(DType::f32, 150'000);
          {
            const Tensor values = samples<float>(rank, 50'000), mine = samples<float>(rank, 50'000);
            communicator.broadcast_async(values, 1)->wait_on(context);
            ops::copy(context, values, seen);
            communicator.all_gather_async(mine, all)->wait_on(context);
          }  // destroys handles and tensors while messages are in flight
          Tensor gathered = context.empty(DType::f32, {150'000});
          ops::copy(context, all, gathered);
          wrongs.check(ops::copy_to_host<float>(context, seen)[7] == sample<float>(1, 7),
                       "broadcast");
          const auto values = ops::copy_to_host<float>(context, gathered);
          wrongs.check(values[50'007] == sample<float>(1, 7), "all-gather");
          // Without deferred ops, the host does the work of the stream.
          ExecutionContext direct(1);
          const Tensor now = samples<float>(rank, 100);
          communicator.broadcast_async(now, 2)->wait_on(direct);
          wrongs.check(now.data<float>()[5] == sample<float>(2, 5), "direct");
        },
        {std::chrono::microseconds(seed % 2 == 0 ? 100 : 0), seed});
    CHECK(wrongs.all() == "");
  }
}

TEST_CASE(
    "gathers and scatters begin when a device has their values, and leave its memory closed") {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    Wrongs wrongs;
    run_thread_ranks(3,
                     [&](Communicator& communicator) {
                       const int rank = communicator.rank();
                       // Odd seeds: guarded memory. Even seeds: values that are written late.
                       ExecutionContext context(
                           1, seed % 2 == 1 ? Device{.kind = DeviceKind::guarded} : Device{});
                       if (seed % 2 == 0)
                         context.defer(seed * 10 + static_cast<std::uint64_t>(rank));
                       constexpr std::int64_t kEach = 30'000;
                       Tensor mine = context.empty(DType::f32, {kEach}),
                              all = context.empty(DType::f32, {3 * kEach});
                       Tensor sum = context.empty(DType::f32, {kEach});
                       ops::fill(context, 1.0 + rank, mine);
                       communicator.all_gather_async(mine, all, context.record())->wait_on(context);
                       ops::fill(context, -1.0, mine);  // must not overtake the send
                       communicator.reduce_scatter_async(all, sum, ReduceOp::sum, context.record())
                           ->wait_on(context);
                       if (seed % 2 == 1)
                         wrongs.check(!host_can_access(context.device()), "closed");
                       const auto gathered = ops::copy_to_host<float>(context, all);
                       for (int member = 0; member < 3; ++member)
                         wrongs.check(gathered[static_cast<std::size_t>(member * kEach + 5)] ==
                                          static_cast<float>(1 + member),
                                      "gathered");
                       wrongs.check(ops::copy_to_host<float>(context, sum)[7] ==
                                        3.0f * static_cast<float>(1 + rank),
                                    "scattered");
                     },
                     {std::chrono::microseconds(seed > 2 ? 100 : 0), seed});
    CHECK(wrongs.all() == "");
  }
}

TEST_CASE("a message arrives while its rank does something else") {
  std::atomic<bool> copied = false;
  run_thread_ranks(
      2,
      [&](Communicator& communicator) {
        const Tensor value = samples<float>(communicator.rank(), 8);
        if (communicator.rank() == 0) {
          communicator.send(value, 1);
          return;
        }
        const auto handle = communicator.receive_async(value, 0);
        // Without a poll, only the courier can have stored it.
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        volatile float* first = value.data<float>() + 1;
        while (*first != sample<float>(0, 1) && std::chrono::steady_clock::now() < limit)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        copied = *first == sample<float>(0, 1);
        handle->wait();
      },
      {std::chrono::microseconds(300), 5});
  CHECK(copied);
}

TEST_CASE("groups of one color, in the order of their keys, with collectives of all at once") {
  for (const ThreadRankOptions& options : deliveries()) {
    Wrongs wrongs;
    run_thread_ranks(
        6,
        [&](Communicator& world) {
          const int rank = world.rank();
          const auto row = world.split(rank / 3, rank, "row");         // 0 1 2 | 3 4 5
          const auto column = world.split(rank % 3, -rank, "column");  // 3 0 | 4 1 | 5 2
          const auto some = world.split(rank < 4 ? 0 : -1, rank, "some");
          wrongs.check((some == nullptr) == (rank >= 4), "no group for a negative color");
          wrongs.check(row->size() == 3 && row->rank() == rank % 3 && row->name() == "row", "row");
          wrongs.check(column->size() == 2 && column->rank() == (rank < 3 ? 1 : 0), "column");
          const Tensor a = samples<float>(rank, 50'000), b = samples<float>(rank, 50'000),
                       c = samples<float>(rank, 50'000);
          // Issued in one order and waited for in another; rows and columns share ranks.
          auto in_row = row->all_reduce_async(a, ReduceOp::sum);
          auto in_column = column->all_reduce_async(b, ReduceOp::sum);
          auto in_world = world.all_reduce_async(c, ReduceOp::sum);
          if (rank % 2 == 0) in_world->wait();
          if (rank % 3 == 0) in_column->wait();
          in_row->wait(), in_column->wait(), in_world->wait();
          const int base = rank / 3 * 3;
          wrongs.check(a.data<float>()[7] == sample<float>(base, 7) + sample<float>(base + 1, 7) +
                                                 sample<float>(base + 2, 7),
                       "sum of a row");
          wrongs.check(
              b.data<float>()[7] == sample<float>(rank % 3 + 3, 7) + sample<float>(rank % 3, 7),
              "sum of a column");
          // A group of a group has its own messages and ranks.
          const auto pair = row->split(row->rank() == 2 ? 1 : 0, 0, "pair");
          double one[] = {1.0};
          pair->all_reduce_sum(one);
          wrongs.check(one[0] == (row->rank() == 2 ? 1.0 : 2.0), "sum of a pair");
        },
        options);
    CHECK(wrongs.all() == "");
  }
}

TEST_CASE("an exception of one rank reaches the caller, and the others learn whom they lost") {
  std::vector<std::string> errors(3);
  CHECK_THROWS_WITH(run_thread_ranks(3,
                                     [&](Communicator& communicator) {
                                       const auto rank =
                                           static_cast<std::size_t>(communicator.rank());
                                       if (rank == 1) throw CommunicatorError("disk full");
                                       try {
                                         const Tensor values = samples<float>(0, 100'000);
                                         communicator.all_reduce(values, ReduceOp::sum);
                                       } catch (const CommunicatorError& error) {
                                         errors[rank] = error.what();
                                         throw;
                                       }
                                     }),
                    "disk full");
  // The failure of rank 1 may have ended another rank before this one learned of it. Then both are
  // named.
  for (const std::size_t rank : {0u, 2u}) {
    CHECK(errors[rank].starts_with("all-reduce 0 of group world: rank "));
    CHECK(errors[rank].ends_with("rank 1 is lost: disk full"));
  }
}

TEST_CASE("who waits too long says for what, in which group and for whom") {
  const sortie::test::ScopedVariable limit("SORTIE_COMM_TIMEOUT", "4");
  std::atomic<int> waiting = 0;
  const auto errors = errors_of(4, [&](Communicator& world) {
    const auto half = world.split(world.rank() / 2, 0, "half");
    if (world.rank() == 3) {  // alive, but not in the collective
      while (waiting < 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    if (world.rank() != 2) return;
    const Tensor values = samples<float>(0, 100'000);
    try {
      half->all_reduce(values, ReduceOp::sum);
    } catch (...) {
      ++waiting;
      throw;
    }
  });
  CHECK(contains(errors[2], "all-reduce 0 of group half (2 ranks): nothing has arrived for 4 s"));
  CHECK(contains(errors[2], "rank 3 of the run did not answer"));
  const sortie::test::ScopedVariable wrong("SORTIE_COMM_TIMEOUT", "soon");
  CHECK_THROWS_WITH(communication_limit(),
                    "environment: SORTIE_COMM_TIMEOUT='soon': a number of seconds from 0 (no "
                    "limit) to 31536000 is expected");
  CHECK_NOTHROW(make_single_communicator());  // waits for nobody
}

TEST_CASE("another size than expected is an error, not a short or a long message") {
  const auto errors = errors_of(2, [](Communicator& communicator) {
    const Tensor values = samples<float>(0, communicator.rank() == 0 ? 10 : 12);
    communicator.all_reduce(values, ReduceOp::sum);
  });
  CHECK(contains(errors[0] + errors[1], "bytes, rank "));
}

TEST_CASE("the debug mode names the rank that issues something else") {
  const sortie::test::ScopedVariable debug("SORTIE_COMM_DEBUG", "1");
  SUBCASE("another count") {
    const auto errors = errors_of(4, [](Communicator& communicator) {
      communicator.barrier();
      const Tensor values = samples<float>(0, communicator.rank() == 2 ? 12 : 10);
      communicator.all_reduce(values, ReduceOp::sum);
    });
    for (const std::string& error : errors)
      CHECK(error ==
            "group world: ranks do not issue the same collective: rank 2 is at all-reduce 1 of 12 "
            "f32; the other ranks are at all-reduce 1 of 10 f32");
  }
  SUBCASE("another operation, after one more") {
    const auto errors = errors_of(3, [](Communicator& communicator) {
      const Tensor values = samples<float>(0, 10);
      communicator.all_reduce(values, ReduceOp::sum);
      if (communicator.rank() != 0) communicator.all_reduce(values, ReduceOp::sum);
      communicator.broadcast(values, 1);
    });
    CHECK(contains(errors[1],
                   "rank 0 is at broadcast 1 of 10 f32 from rank 1; the other ranks are at "
                   "all-reduce 1 of 10 f32"));
  }
  SUBCASE("another type, and no majority") {
    const auto errors = errors_of(2, [](Communicator& communicator) {
      const Tensor values = communicator.rank() == 0 ? samples<float>(0, 4) : samples<bf16>(0, 4);
      communicator.all_reduce(values, ReduceOp::max);
    });
    CHECK(contains(errors[0], "rank 1 is at all-reduce (max) 0 of 4 bf16"));
    CHECK(contains(errors[0], "rank 0 is at all-reduce (max) 0 of 4 f32"));
  }
  SUBCASE("counts of an all-to-all") {
    const auto errors = errors_of(2, [](Communicator& communicator) {
      const Tensor out = samples<float>(0, 5),
                   in = samples<float>(0, communicator.rank() == 0 ? 6 : 5);
      const std::int64_t send[] = {communicator.rank() == 0 ? 2 : 3,
                                   communicator.rank() == 0 ? 3 : 2};
      const std::int64_t receive[] = {communicator.rank() == 0 ? 2 : 3,
                                      communicator.rank() == 0 ? 4 : 2};
      communicator.all_to_all(out, send, in, receive);
    });
    CHECK(contains(errors[0], "all-to-all: rank 1 sends 3 elements to rank 0, which expects 4"));
  }
  SUBCASE("nothing, where all agree") {
    Wrongs wrongs;
    run_thread_ranks(3, [&](Communicator& communicator) {
      double one[] = {1.0};
      communicator.all_reduce_sum(one);
      const auto group = communicator.split(communicator.rank() % 2, 0, "parity");
      group->all_reduce_sum(one);
      wrongs.check(one[0] == (communicator.rank() == 1 ? 3.0 : 6.0), "sum");
      wrongs.check(communicator.all_gather("x").size() == 3, "texts");
      const std::int64_t counts[] = {1, 1, 1};
      communicator.all_to_all(samples<float>(0, 3), counts, samples<float>(0, 3), counts);
    });
    CHECK(wrongs.all() == "");
  }
}

TEST_CASE("ranks meet whatever collectives they have open; who comes alone is told so") {
  std::atomic<int> met = 0, alone = 0;
  const auto errors = errors_of(3, [&](Communicator& communicator) {
    const Tensor values = samples<float>(0, 100'000);
    std::unique_ptr<CollectiveHandle> open;
    if (communicator.rank() != 0) open = communicator.all_reduce_async(values, ReduceOp::sum);
    if (communicator.meet(std::chrono::seconds(20))) ++met;
    if (communicator.rank() == 1 && !communicator.meet(std::chrono::milliseconds(50))) ++alone;
    throw CommunicatorError("the end");
  });
  CHECK(met == 3);
  CHECK(alone == 1);
}
