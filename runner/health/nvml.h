// libnvidia-ml, loaded at run time: the functions that sortie-health calls, as a table of pointers.
// The declarations are our own, after NVIDIA's public interface, which is stable: no header is
// needed to build, and a host without the library is one without NVIDIA GPUs.
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
  int result;  // as the functions return it
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
  // Those of a newer or older driver may be missing.
  int (*event_set)(NvmlEventSet*) = nullptr;
  int (*supported_events)(NvmlDevice, unsigned long long*) = nullptr;
  int (*register_events)(NvmlDevice, unsigned long long, NvmlEventSet) = nullptr;
  int (*wait)(NvmlEventSet, NvmlEvent*, unsigned ms) = nullptr;
  int (*fields)(NvmlDevice, int, NvmlField*) = nullptr;
  int (*throttle)(NvmlDevice, unsigned long long*) = nullptr;
  int (*ecc)(NvmlDevice, int type, int counter, unsigned long long*) = nullptr;
  int (*remapped)(NvmlDevice, unsigned*, unsigned*, unsigned* pending, unsigned* failed) = nullptr;
  int (*link)(NvmlDevice, unsigned, int* active) = nullptr;

  /// Not initialized. Never unloaded. Error: not found, or it has not the first functions.
  static Result<Nvml> load(const std::string& path);
  /// In the library's words.
  std::string text(int error) const;
};

/// A library that somebody names instead of the system's: an absolute path to a file of this user
/// or of root that nobody else may write. Error: why it is none.
Result<> check_named_library(const std::string& path);

}  // namespace sortie::runner::health
