#include "trainer/tensor/device.h"

#include <fmt/core.h>

namespace sortie::trainer {

std::string Device::to_string() const {
  const char* name = kind == DeviceKind::cpu       ? "cpu"
                     : kind == DeviceKind::guarded ? "guarded"
                                                   : "meta";
  return fmt::format("{}:{}", name, index);
}

}  // namespace sortie::trainer
