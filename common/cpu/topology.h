// What of a machine decides where ranks run: cores, NUMA nodes, and the nodes of its GPUs. Read
// from /sys and /proc by hand, because the runner is static and hwloc is not (libudev, dlopen).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/cpu/cpu_list.h"

namespace sortie::cpu {

struct Core {
  std::uint32_t node = 0;  // NUMA node
  CpuList cpus;            // its allowed hardware threads, at least one
};

struct Gpu {
  enum class Vendor { nvidia, amd };
  Vendor vendor = Vendor::nvidia;
  std::string pci;  // "0000:17:00.0"
  int node = -1;    // NUMA node, -1 = the machine does not say
};

struct Topology {
  std::vector<Core> cores;  // with an allowed CPU; by node, then by their first CPU
  std::vector<Gpu> gpus;    // in the order in which device numbers count them
};

/// Reads below `root` ("/", or a recorded tree). What can not be read is as on a plain machine: one
/// node, a core per CPU, no GPU. Of two vendors the NVIDIA devices are taken.
Topology read_topology(const std::filesystem::path& root, const CpuList& allowed);
/// Its GPUs alone: no file is read for each CPU.
std::vector<Gpu> read_gpus(const std::filesystem::path& root);

}  // namespace sortie::cpu
