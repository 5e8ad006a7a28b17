// bench_step_floor [THREADS] [bf16|f32]: times the matrix products of one GPT-124M training step
// alone (B4 T256).
#include <fmt/core.h>

#include <cstdlib>
#include <string_view>

#include "tests/bench/step_floor_cpu.h"
#include "trainer/tensor/context.h"

int main(int argc, char** argv) {
  using namespace sortie;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const auto dtype =
      argc > 2 && std::string_view(argv[2]) == "f32" ? trainer::DType::f32 : trainer::DType::bf16;
  if (threads < 1) {
    fmt::print(stderr, "usage: bench_step_floor [THREADS] [bf16|f32]\n");
    return 2;
  }
  const auto facts = trainer::cpu_facts();
  fmt::print("{}, oneDNN uses {}, {} threads, {}\n", facts.model, facts.isa, threads,
             trainer::dtype_name(dtype));
  bench::print_floor(bench::measure_step_floor({}, dtype, threads));
  return 0;
}
