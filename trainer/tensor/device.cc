#include "trainer/tensor/device.h"

#include <fmt/core.h>

namespace sortie::trainer {
namespace {

const char* kind_name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::guarded:
      return "guarded";
    case DeviceKind::meta:
      return "meta";
    case DeviceKind::cuda:
      return "cuda";
  }
  return "?";
}

}  // namespace

std::string Device::to_string() const {
  return fmt::format("{}:{}", kind_name(kind), index);
}

}  // namespace sortie::trainer
