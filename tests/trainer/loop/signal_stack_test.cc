// Tests of signals that arrive during products: some kernels of oneDNN then have the stack pointer
// on the heap (trainer/metrics/signal_stack.h).
#include <doctest/doctest.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/temp_dir.h"
#include "trainer/loop/signals.h"
#include "trainer/metrics/stack_writer.h"
#include "trainer/ops/cpu/matmul.h"
#include "trainer/random/random.h"
#include "trainer/tensor/context.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

/// Returns the size of the calling thread's alternate signal stack, or 0 if it has none.
std::size_t signal_stack_bytes() {
  stack_t stack{};
  REQUIRE(::sigaltstack(nullptr, &stack) == 0);
  return (stack.ss_flags & SS_DISABLE) != 0 ? 0 : stack.ss_size;
}

/// Returns the bytes that one of our handlers needs, plus the kernel's frame.
std::size_t enough() {
  return (std::size_t{16} << 10) + static_cast<std::size_t>(::sysconf(_SC_MINSIGSTKSZ));
}

std::vector<float> values(std::size_t count, std::uint64_t seed) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(random_bits(seed, i) % 1000) / 1000.0f - 0.5f;
  return out;
}

}  // namespace

TEST_CASE("handlers have a stack of their own in every thread, whoever has started it") {
  const SaveSignals signals(60.0);
  const StackSignal stacks;
  CHECK(signal_stack_bytes() >= enough());
  std::size_t in_thread = 0;
  std::thread([&] { in_thread = signal_stack_bytes(); }).join();
  CHECK(in_thread >= enough());
  constexpr int kThreads = 3;
  std::size_t in_team[kThreads] = {};
#pragma omp parallel num_threads(kThreads)
  in_team[omp_get_thread_num()] = signal_stack_bytes();
  for (const std::size_t bytes : in_team) CHECK(bytes >= enough());
  for (const int number : {SIGTERM, SIGUSR1, SIGALRM, SIGQUIT}) {
    CAPTURE(number);
    struct sigaction action {};
    REQUIRE(::sigaction(number, nullptr, &action) == 0);
    CHECK((action.sa_flags & SA_ONSTACK) != 0);
  }
}

TEST_CASE("signals change nothing that products of f32 compute") {
  const test::ScopedTempDir folder;
  SaveSignals signals(60.0);
  const StackSignal stacks;
  // Rows that are part of longer ones, like those of logits and heads, and a sum that is longer
  // than such a kernel has room for on the stack.
  constexpr std::int64_t kRows = 256, kIn = 256, kLine = 320, kOut = 64;
  const std::vector<float> a = values(kRows * kLine, 1), b = values(kIn * kOut, 2);
  const ops::MatmulSpec spec{
      .m = kRows, .n = kOut, .k = kIn, .a_row = kLine, .b_row = kOut, .c_row = kOut};
  // The buffer that the stack pointer is set to is allocated between these blocks.
  constexpr std::uint64_t kPattern = 0x5a5a'a5a5'0ff0'f00f;
  std::vector<std::vector<std::uint64_t>> around(64);
  std::atomic<pid_t> computing{0};
  std::int64_t products = 0, different = 0;
  // Not on the main thread, to which doctest has given a signal stack.
  std::thread computer([&] {
    for (auto& block : around) block.assign(8 << 10, kPattern);
    for (std::size_t i = 0; i < around.size(); i += 2) around[i] = {};
    ExecutionContext context(/*threads=*/1);
    std::vector<float> expected(kRows * kOut), c(expected.size());
    const auto multiply = [&](std::vector<float>& out) {
      ops::run_matmul(context, spec, a.data(), b.data(), out.data(), nullptr);
    };
    multiply(expected);
    computing = static_cast<pid_t>(::syscall(SYS_gettid));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    for (; std::chrono::steady_clock::now() < end; ++products) {
      multiply(c);
      different += std::memcmp(c.data(), expected.data(), c.size() * sizeof(float)) != 0;
    }
    computing = -1;
  });
  int sent = 0;
  for (pid_t thread = 0; (thread = computing) >= 0;) {
    if (thread > 0 && ++sent % 100 == 0) write_stacks(folder.str("stacks"));
    if (thread > 0) ::syscall(SYS_tgkill, ::getpid(), thread, SIGUSR1);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  computer.join();
  MESSAGE(sent, " signals in ", products, " products");
  CHECK(different == 0);
  for (const auto& block : around)
    CHECK(std::ranges::all_of(block, [](std::uint64_t value) { return value == kPattern; }));
  CHECK(sent > 100);
  CHECK(signals.take_save_request());
}
