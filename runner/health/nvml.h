// libnvidia-ml, loaded at run time: a table of pointers to the functions that sortie-health calls.
// We declare NVIDIA's public interface, which is stable, ourselves: so the build needs no header,
// and a host without the library counts as one without NVIDIA GPUs.
#pragma once

#include <string>

#include "common/base/result.h"

namespace sortie::runner::health {

using NvmlDevice = void*;
using NvmlEventSet = void*;

inline constexpr int kNvmlSuccess = 0, kNvmlTimeout = 10, kNvmlGpuIsLost = 15;
inline constexpr unsigned long long kNvmlEventDoubleBit = 0x2, kNvmlEventXid = 0x8;
inline constexpr unsigned kNvmlFieldRecoveryAction = 230;
inline constexpr unsigned kNvmlMaxLinks = 18;

struct NvmlPci {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct NvmlEvent {
  NvmlDevice device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct NvmlField {
  unsigned id, scope;
  long long timestamp, latency_us;
  int type;    // 1 = unsigned int
  int result;  // an error code like those that the functions return
  union {
    double real;
    unsigned number;
    unsigned long long large;
  } value;
};

struct Nvml {
  int (*init)() = nullptr;
  const char* (*error_text)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, NvmlDevice*) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*uuid)(NvmlDevice, char*, unsigned) = nullptr;
  // nullptr if the driver, being older or newer, lacks the function.
  int (*event_set)(NvmlEventSet*) = nullptr;
  int (*supported_events)(NvmlDevice, unsigned long long*) = nullptr;
  int (*register_events)(NvmlDevice, unsigned long long, NvmlEventSet) = nullptr;
  int (*wait)(NvmlEventSet, NvmlEvent*, unsigned ms) = nullptr;
  int (*fields)(NvmlDevice, int, NvmlField*) = nullptr;
  int (*throttle)(NvmlDevice, unsigned long long*) = nullptr;
  int (*ecc)(NvmlDevice, int type, int counter, unsigned long long*) = nullptr;
  int (*remapped)(NvmlDevice, unsigned*, unsigned*, unsigned* pending, unsigned* failed) = nullptr;
  int (*link)(NvmlDevice, unsigned, int* active) = nullptr;

  /// Does not initialize NVML. The library is never unloaded. Error: not found, or one of the first
  /// five required functions is missing.
  static Result<Nvml> load(const std::string& path);
  /// The library's text for an error code.
  std::string text(int error) const;
};

/// Checks a library that the user names instead of the system's: it must be an absolute path to a
/// file of this user or of root that no other user may write. The error says what is wrong.
Result<> check_named_library(const std::string& path);

}  // namespace sortie::runner::health
