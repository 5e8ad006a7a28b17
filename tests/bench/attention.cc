// bench_attention THREADS bf16|f32 BATCH TOKENS HEADS KEY_HEADS DIMS: times attention's forward and
// backward pass on a packed QKV buffer. Makes one measurement (a JSON line) for every line of
// standard input, so that another program can run in between.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <string>

#include "tests/bench/filled_tensor.h"
#include "trainer/ops/attention.h"

namespace {

using namespace sortie::trainer;
using sortie::bench::filled;

/// Seconds: wall time, and CPU time of all threads.
struct Clock {
  double wall, cpu;
};
Clock now() {
  timespec cpu{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  return {
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(),
      static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    fmt::print(stderr,
               "usage: bench_attention THREADS bf16|f32 BATCH TOKENS HEADS KEY_HEADS DIMS\n");
    return 2;
  }
  const auto number = [&](int index) { return static_cast<std::int64_t>(std::atoi(argv[index])); };
  ExecutionContext context(static_cast<int>(number(1)));
  const DType dtype = std::string_view(argv[2]) == "f32" ? DType::f32 : DType::bf16;
  const std::int64_t batch = number(3), tokens = number(4), heads = number(5),
                     key_heads = number(6), dims = number(7);
  const Shape packed{batch, tokens, (heads + 2 * key_heads) * dims};
  const auto part = [&](const Tensor& all, std::int64_t first, std::int64_t count) {
    return all.slice(2, first * dims, count * dims).view({batch, tokens, count, dims});
  };
  const Tensor qkv = filled(context, dtype, packed, 1), dqkv = filled(context, dtype, packed, 2);
  const Tensor q = part(qkv, 0, heads), k = part(qkv, heads, key_heads),
               v = part(qkv, heads + key_heads, key_heads);
  Tensor dq = part(dqkv, 0, heads), dk = part(dqkv, heads, key_heads),
         dv = part(dqkv, heads + key_heads, key_heads);
  const Shape result{batch, tokens, heads, dims};
  Tensor out = context.empty(dtype, result),
         lse = context.empty(DType::f32, {batch, heads, tokens});
  const Tensor dout = filled(context, dtype, result, 3);
  const ops::AttentionMask mask{.scale = 0.125f};
  std::string line;
  while (std::getline(std::cin, line)) {
    const Clock begin = now();
    ops::attention_forward(context, q, k, v, mask, out, lse);
    const Clock middle = now();
    ops::attention_backward(context, q, k, v, out, lse, dout, mask, dq, dk, dv);
    const Clock end = now();
    fmt::print("{{\"forward\": {}, \"backward\": {}, \"forward_cpu\": {}, \"backward_cpu\": {}}}\n",
               middle.wall - begin.wall, end.wall - middle.wall, middle.cpu - begin.cpu,
               end.cpu - middle.cpu);
    std::fflush(stdout);
  }
}
