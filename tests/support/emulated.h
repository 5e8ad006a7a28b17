// Whether the GPU that is tested is the emulated one (tests/support/cuda).
#pragma once

#include <cstdlib>
#include <string_view>

namespace sortie::trainer::test {

inline bool gpu_is_emulated() {
  const char* device = std::getenv("SORTIE_TEST_DEVICE");
  const char* module = std::getenv("SORTIE_CUDA_MODULE");
  return device != nullptr && std::string_view(device) == "cuda" && module != nullptr &&
         std::string_view(module).find("emulated") != std::string_view::npos;
}

}  // namespace sortie::trainer::test
