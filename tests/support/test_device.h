// The device that tests compute on.
#pragma once

#include <cstdlib>
#include <string_view>

#include "common/base/check.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer::test {

/// SORTIE_TEST_DEVICE=guarded: memory that only ops can touch; cuda: a GPU, by the module that
/// SORTIE_CUDA_MODULE names: the emulation's, or that of a real one; unset: the CPU.
inline Device device() {
  const char* text = std::getenv("SORTIE_TEST_DEVICE");
  if (text == nullptr) return {};
  const std::string_view name = text;
  if (name == "guarded") return {.kind = DeviceKind::guarded};
  SORTIE_CHECK(name == "cuda", "SORTIE_TEST_DEVICE is \"{}\"; set guarded or cuda", name);
  const auto module = load_cuda_module();
  SORTIE_CHECK(module.has_value(), "{}", module.error().message);
  return {.kind = DeviceKind::cuda};
}
inline bool on_gpu() {
  return device().kind == DeviceKind::cuda;
}

}  // namespace sortie::trainer::test
