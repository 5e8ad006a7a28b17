// Device: identifies the device that holds a tensor's memory and computes on it.
#pragma once

#include <cstdint>
#include <string>

namespace sortie::trainer {

enum class DeviceKind : std::uint8_t {
  cpu,
  guarded,  // the CPU, with memory that only ops can access: detects host accesses (tests)
  meta,     // shapes and sizes without memory, for planning
  cuda,     // an NVIDIA GPU, through the device module (device_module.h)
};

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // among the devices of its kind that this process uses

  bool operator==(const Device&) const = default;
  std::string to_string() const;  // "cpu:0"
};

}  // namespace sortie::trainer
