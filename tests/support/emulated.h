// Whether the tested GPU is the emulated one (tests/support/cuda).
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/base/check.h"

namespace sortie::trainer::test {

inline bool gpu_is_emulated() {
  const char* device = std::getenv("SORTIE_TEST_DEVICE");
  const char* module = std::getenv("SORTIE_CUDA_MODULE");
  return device != nullptr && std::string_view(device) == "cuda" && module != nullptr &&
         std::string_view(module).find("emulated") != std::string_view::npos;
}

/// Value of a counter of the emulated GPU ("sortie_emulated_waits" ...); 0 if the module is not
/// loaded.
inline std::uint64_t emulated_count(const char* name) {
  void* const loaded = ::dlopen(std::getenv("SORTIE_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
  if (loaded == nullptr) return 0;
  auto* const count = reinterpret_cast<std::uint64_t (*)()>(::dlsym(loaded, name));
  ::dlclose(loaded);
  SORTIE_CHECK(count != nullptr, "the module has no {}", name);
  return count();
}

}  // namespace sortie::trainer::test
