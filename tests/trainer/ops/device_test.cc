// Tests of the devices that ops run on: memory that only ops may touch, and deferred work.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>

#include "tests/support/scoped_variable.h"
#include "tests/trainer/ops/op_test.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/linear.h"

namespace sortie::trainer {
namespace {

/// Runs `act` in a child process. Returns the signal that ends the process, or 0 if none does.
int signal_of(const std::function<void()>& act) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int number : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(number, SIG_DFL);
    (void)!freopen("/dev/null", "w", stderr);
    act();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

constexpr Device kGuarded{.kind = DeviceKind::guarded};
constexpr Device kMeta{.kind = DeviceKind::meta};
volatile float sink;

}  // namespace

TEST_CASE("outside of ops the host can not touch guarded memory") {
  ExecutionContext context(1, kGuarded);
  const std::vector<float> values = {1, 2, 3, 4};
  const Tensor x = ops::tensor_from_host<float>(context, values, {4});
  CHECK(signal_of([&] { sink = x.data<float>()[1]; }) == SIGABRT);  // the check names the tensor
  // The pages are protected.
  CHECK(signal_of([&] { sink = static_cast<float*>(x.raw())[1]; }) == SIGSEGV);
  CHECK(signal_of([&] { static_cast<float*>(x.raw())[1] = 1.0f; }) == SIGSEGV);
  CHECK(signal_of([&] { sink = ops::HostAccess<float>(context, x)[1]; }) == 0);
  CHECK(signal_of([&] {
          {
            const ops::HostAccess<float> outer(context, x);
            const ops::HostAccess<float> inner(context, x);
          }
          sink = x.data<float>()[1];
        }) == SIGABRT);
  Tensor y = context.zeros(DType::f32, {4});
  ops::add(context, x, x, y);
  CHECK(ops::copy_to_host<float>(context, y) == std::vector<float>{2, 4, 6, 8});
}

TEST_CASE("memory that nobody has written is NaN, also where it was used before") {
  const auto is_garbage = [](ExecutionContext& context) {
    bool all = true;
    for (int use = 0; use < 2; ++use) {
      Tensor x = context.empty(DType::f32, {5}), y = context.empty(DType::bf16, {3, 7});
      Tensor z = context.empty(DType::i32, {4});
      for (const float value : ops::copy_to_host<float>(context, x)) all &= std::isnan(value);
      for (const bf16 value : ops::copy_to_host<bf16>(context, y))
        all &= std::isnan(static_cast<float>(value));
      all &= ops::copy_to_host<std::int32_t>(context, z) == std::vector<std::int32_t>(4, 255);
      ops::fill(context, 1.0, x);
      ops::fill(context, 1.0, y);
      ops::fill(context, 1.0, z);
    }
    return all;
  };
  ExecutionContext guarded(1, kGuarded);
  CHECK(is_garbage(guarded));
  CHECK(ops::copy_to_host<float>(guarded, guarded.zeros(DType::f32, {3})) ==
        std::vector<float>(3, 0.0f));
  {
    const sortie::test::ScopedVariable without("SORTIE_DEBUG_MEMORY", std::nullopt);
    ExecutionContext plain(1);
    CHECK_FALSE(is_garbage(plain));
  }
  const sortie::test::ScopedVariable debug("SORTIE_DEBUG_MEMORY", "1");
  ExecutionContext checked(1);
  CHECK(is_garbage(checked));
}

TEST_CASE("an open arena opens no other") {
  ExecutionContext mine(1, kGuarded), other(1, kGuarded);
  CHECK(mine.device() != other.device());
  const Tensor x = mine.zeros(DType::f32, {4}), y = other.zeros(DType::f32, {4});
  CHECK(signal_of([&] {
          const ops::HostAccess<float> open(mine, x);
          sink = y.data<float>()[0];
        }) == SIGABRT);
}

TEST_CASE("what the host writes is there for the ops that follow") {
  ExecutionContext context(1, test::device());
  Tensor x = context.empty(DType::f32, {64}), twice = context.empty(DType::f32, {64});
  for (int round = 1; round <= 100; ++round) {
    std::ranges::fill(ops::HostAccess<float>(context, x), static_cast<float>(round));
    ops::add(context, x, x, twice);
    CHECK(ops::copy_to_host<float>(context, twice)[63] == static_cast<float>(2 * round));
  }
}

TEST_CASE("a meta tensor has an address of its own and no values") {
  ExecutionContext context(1, kMeta);
  const Tensor x = context.zeros(DType::f32, {64, 64}), y = context.zeros(DType::f32, {64, 64});
  CHECK(x.raw() != y.raw());
  CHECK(signal_of([&] { sink = x.data<float>()[0]; }) == SIGABRT);
  CHECK(signal_of([&] { (void)ops::copy_to_host<float>(context, x); }) == SIGABRT);
  CHECK(context.allocator().bytes_in_use() >= 2 * 64 * 64 * 4);
}

TEST_CASE("products count 2 M N K each") {
  ExecutionContext context(1, kMeta);
  const ops::PackedWeight w(context.empty(DType::f32, {30, 20}));
  const Tensor x = context.empty(DType::f32, {7, 20}), dy = context.empty(DType::f32, {7, 30});
  Tensor y = context.empty(DType::f32, {7, 30}), dx = context.empty(DType::f32, {7, 20});
  Tensor dw = context.empty(DType::f32, {30, 20}), none;
  ops::linear_forward(context, x, w, {}, y);
  CHECK(context.flop() == 2 * 7 * 30 * 20);
  ops::linear_backward_data(context, dy, w, dx);
  ops::linear_backward_weight(context, dy, x, dw, none);
  CHECK(context.flop() == 3 * 2 * 7 * 30 * 20);
}

TEST_CASE("late work waits for the events that it is told to wait for, and for no others") {
  const auto sum_of = [](std::uint64_t seed, bool waits) {
    ExecutionContext context(1);
    Tensor x = context.zeros(DType::f32, {8}), y = context.zeros(DType::f32, {8});
    context.defer(seed);
    const std::vector<float> values(8, 3.0f);
    Event copied;
    {
      const auto stream = context.with_stream(StreamKind::copy);
      ops::copy_from_host<float>(context, values, x);
      copied = context.record();
    }
    if (waits) context.wait(copied);
    ops::add(context, x, x, y);
    return ops::copy_to_host<float>(context, y)[7];
  };
  int early = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    CHECK(sum_of(seed, true) == 6.0f);
    early += sum_of(seed, false) == 0.0f;
  }
  CHECK(early > 5);  // a missing wait is detected
}

TEST_CASE("an event that is asked for gets there, and a stream waits for what goes on beside it") {
  struct Beside final : Awaited {
    int left = 5, waits = 0;
    bool poll() override { return left == 0 || --left == 0; }
    void wait() override { ++waits, left = 0; }
  };
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    ExecutionContext context(1);
    Tensor x = context.zeros(DType::f32, {8}), y = context.zeros(DType::f32, {8});
    context.defer(seed);
    ops::fill(context, 2.0, x);
    const Event filled = context.record();
    int asked = 1;
    while (!filled.poll()) ++asked;
    CHECK(asked < 1000);
    CHECK(x.data<float>()[0] == 2.0f);  // without a synchronize()
    const auto beside = std::make_shared<Beside>();
    context.wait(beside);
    ops::add(context, x, x, y);
    const Event added = context.record();
    {
      const auto stream = context.with_stream(StreamKind::copy);  // runs meanwhile
      ops::fill(context, 3.0, x);
    }
    while (beside->left > 0) CHECK_FALSE((added.poll() && beside->left > 0));
    CHECK(ops::copy_to_host<float>(context, y)[0] > 0.0f);
    CHECK(added.poll());
    // Without other work, synchronize() makes the host wait for it.
    const auto slow = std::make_shared<Beside>();
    slow->left = 1000;
    context.wait(slow);
    context.synchronize();
    CHECK(slow->left == 0);
  }
  ExecutionContext direct(1);
  const auto beside = std::make_shared<Beside>();
  direct.wait(beside);
  CHECK(beside->waits == 1);
  CHECK(direct.record().poll());
}

TEST_CASE("work that is late has its operands: they are kept until then") {
  ExecutionContext context(1);
  context.defer(3);
  Tensor y = context.empty(DType::f32, {100});
  {
    std::vector<float> values(100, 1.0f);
    Tensor x = ops::tensor_from_host<float>(context, values, {100});
    values.assign(100, 9.0f);  // the copy does not see this
    ops::add(context, x, x, y);
  }
  Tensor other = context.zeros(DType::f32, {100});  // does not reuse memory that is still needed
  CHECK(ops::copy_to_host<float>(context, y) == std::vector<float>(100, 2.0f));
}

}  // namespace sortie::trainer
