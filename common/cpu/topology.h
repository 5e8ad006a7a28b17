// The parts of a machine that matter for binding ranks: cores, NUMA nodes, and the nodes of its
// GPUs. Reads /sys and /proc directly, because the static runner can not use hwloc (libudev,
// dlopen).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/cpu/cpu_list.h"

namespace sortie::cpu {

struct Core {
  std::uint32_t node = 0;  // NUMA node
  CpuList cpus;            // its allowed hardware threads; at least one
};

struct Gpu {
  enum class Vendor { nvidia, amd };
  Vendor vendor = Vendor::nvidia;
  std::string pci;  // "0000:17:00.0"
  int node = -1;    // NUMA node; -1 = unknown
};

struct Topology {
  std::vector<Core> cores;  // that have an allowed CPU; by node, then by first CPU
  std::vector<Gpu> gpus;    // in the order of device numbers
};

/// Reads files below `root` ("/", or a recorded tree). Facts that can not be read default to a
/// simple machine: one node, one core per CPU, no GPU. If there are NVIDIA and AMD GPUs, only the
/// former are returned.
Topology read_topology(const std::filesystem::path& root, const CpuList& allowed);
/// Reads only the GPUs, without files for each CPU.
std::vector<Gpu> read_gpus(const std::filesystem::path& root);
/// Version of the loaded NVIDIA driver, "580.65.06"; empty if there is none, or it is not shown.
std::string nvidia_driver_version(const std::filesystem::path& root);

}  // namespace sortie::cpu
