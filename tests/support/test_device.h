// The device that tests compute on.
#pragma once

#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer::test {

/// What OnDevice has chosen.
inline std::optional<Device>& chosen_device() {
  static std::optional<Device> chosen;
  return chosen;
}
/// Another device than the one that is tested, for what is made while it lives.
class OnDevice {
 public:
  explicit OnDevice(Device device) : before_(std::exchange(chosen_device(), device)) {}
  ~OnDevice() { chosen_device() = before_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  std::optional<Device> before_;
};

/// For cases that are about a GPU: skipped where none is tested.
inline bool no_gpu_is_tested() {
  const char* text = std::getenv("SORTIE_TEST_DEVICE");
  return text == nullptr || std::string_view(text) != "cuda";
}

/// SORTIE_TEST_DEVICE=guarded: memory that only ops can touch; cuda: a GPU, by the module that
/// SORTIE_CUDA_MODULE names: the emulation's, or that of a real one; unset: the CPU.
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
/// The emulated one, whose products sum exactly as C++ does.
inline bool on_emulated_gpu() {
  return on_gpu() && cuda_module().gpus().value().at(0).name == "emulated GPU";
}

}  // namespace sortie::trainer::test
