// gpu_facts: prints the GPUs of this machine that libsortie-cuda.so finds. On an error, prints it
// and exits with 1.
#include <fmt/core.h>

#include "trainer/tensor/device_module.h"

int main() {
  const auto module = sortie::trainer::load_cuda_module();
  if (!module.has_value()) {
    fmt::print(stderr, "{}\n", module.error().message);
    return 1;
  }
  const auto gpus = (*module)->gpus();
  if (!gpus.has_value()) {
    fmt::print(stderr, "{}\n", gpus.error().message);
    return 1;
  }
  fmt::print("{}\n", (*module)->libraries());
  for (const auto& gpu : *gpus)
    fmt::print("{}, sm_{}, {} multiprocessors, {:.1f} GiB\n", gpu.name, gpu.compute_capability,
               gpu.multiprocessors, static_cast<double>(gpu.memory_bytes) / (1 << 30));
  return 0;
}
