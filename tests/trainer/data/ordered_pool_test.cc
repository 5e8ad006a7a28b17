// Tests of OrderedPool: what its source or its work throws reaches the caller, who can clean up.
#include "trainer/data/ordered_pool.h"

#include <doctest/doctest.h>

#include <new>
#include <system_error>

#include "tests/support/without_call.h"

namespace sortie::trainer {
namespace {

using Pool = OrderedPool<int, int>;

/// The numbers from 0 to 99.
Pool::Source numbers() {
  return [next = 0]() mutable -> Result<std::optional<int>> {
    if (next == 100) return std::nullopt;
    return next++;
  };
}

/// Takes results until the pool ends or throws; returns their number.
int take_all(Pool& pool, bool& thrown) {
  for (int taken = 0;; ++taken) {
    Pool::State state = Pool::State::pending;
    while (state == Pool::State::pending) state = pool.wait(std::chrono::milliseconds(100));
    if (state == Pool::State::ended) return taken;
    try {
      const auto finished = pool.next();
      REQUIRE(finished);
      CHECK(finished->output == 2 * finished->item);
    } catch (const std::bad_alloc&) {
      thrown = true;
      return taken;
    }
  }
}

}  // namespace

TEST_CASE("an exception of the work, or of the source, is thrown in its place by next()") {
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    bool thrown = false;
    {
      Pool pool(
          numbers(), [](const int& number) -> Result<int> { return 2 * number; }, threads);
      CHECK(take_all(pool, thrown) == 100);
      CHECK_FALSE(thrown);
    }
    {
      Pool pool(
          numbers(),
          [](const int& number) -> Result<int> {
            if (number == 20) throw std::bad_alloc();
            return 2 * number;
          },
          threads);
      CHECK(take_all(pool, thrown) == 20);
      CHECK(thrown);
    }
    thrown = false;
    Pool pool(
        [next = 0]() mutable -> Result<std::optional<int>> {
          if (next == 20) throw std::bad_alloc();
          return next++;
        },
        [](const int& number) -> Result<int> { return 2 * number; }, threads);
    CHECK(take_all(pool, thrown) == 20);
    CHECK(thrown);
  }
}

TEST_CASE("a pool whose threads can not be started throws") {
  sortie::test::without_call(
      SYS_clone3,
      [] {
        const auto work = [](const int& number) -> Result<int> { return number; };
        CHECK_THROWS_AS(Pool(numbers(), work, 2), std::system_error);
      },
      EAGAIN);
}

}  // namespace sortie::trainer
