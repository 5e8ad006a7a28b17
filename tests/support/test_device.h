// The device on which tests compute.
#pragma once

#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer::test {

/// Device that an OnDevice object has chosen.
inline std::optional<Device>& chosen_device() {
  static std::optional<Device> chosen;
  return chosen;
}
/// Makes device() return another device while this object lives.
class OnDevice {
 public:
  explicit OnDevice(Device device) : before_(std::exchange(chosen_device(), device)) {}
  ~OnDevice() { chosen_device() = before_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  std::optional<Device> before_;
};

/// Whether no GPU is tested; cases that need one are then skipped.
inline bool no_gpu_is_tested() {
  const char* text = std::getenv("SORTIE_TEST_DEVICE");
  return text == nullptr || std::string_view(text) != "cuda";
}

/// The tested device. SORTIE_TEST_DEVICE=guarded: memory that only ops can access. cuda: a GPU,
/// through the module that SORTIE_CUDA_MODULE names (emulated or real). Unset: the CPU.
inline Device device() {
  if (chosen_device()) return *chosen_device();
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
/// Whether the GPU is the emulated one, whose products are summed exactly like C++ code.
inline bool on_emulated_gpu() {
  return on_gpu() && cuda_module().gpus().value().at(0).name == "emulated GPU";
}

}  // namespace sortie::trainer::test
