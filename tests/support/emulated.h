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

/// A function of the emulated GPU's module; nullptr if the module is not loaded.
template <class Function>
Function* emulated_function(const char* name) {
  void* const loaded = ::dlopen(std::getenv("SORTIE_CUDA_MODULE"), RTLD_NOW | RTLD_NOLOAD);
  if (loaded == nullptr) return nullptr;
  auto* const function = reinterpret_cast<Function*>(::dlsym(loaded, name));
  ::dlclose(loaded);
  SORTIE_CHECK(function != nullptr, "the module has no {}", name);
  return function;
}

/// Value of a counter of the emulated GPU ("sortie_emulated_waits" ...); 0 if the module is not
/// loaded.
inline std::uint64_t emulated_count(const char* name) {
  auto* const count = emulated_function<std::uint64_t()>(name);
  return count == nullptr ? 0 : count();
}

/// Calls one of the functions at the end of tests/support/cuda/streams.h. The module must be
/// loaded.
inline constexpr std::uint64_t kNeverHangs = ~std::uint64_t{0};
inline void set_emulated(const char* name, int gpu, std::uint64_t value) {
  auto* const set = emulated_function<void(int, std::uint64_t)>(name);
  SORTIE_CHECK(set != nullptr, "{}: the module is not loaded", name);
  set(gpu, value);
}

}  // namespace sortie::trainer::test
