// Decides which CPUs each rank of a host runs on. Pure functions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/cpu/topology.h"

namespace sortie::cpu {

enum class Policy {
  none,
  automatic,  // core for two or more ranks; a single rank keeps the whole host
  core,       // exclusive whole cores for each rank
  numa,       // whole NUMA nodes, shared by the ranks on them
};

struct Share {
  CpuList cpus;
  std::uint32_t threads = 1;  // its fair share of them, for OMP_NUM_THREADS
};

struct Binding {
  std::vector<Share> ranks;  // empty = no rank is bound
  std::string note;          // "core: 2 ranks on 8 cores, 1 node" or "none: <why>"
};

/// Returns one share per slot, in the order of the slots. Shares are contiguous, and within one
/// NUMA node unless a rank would get much less than its fair share. They are on the node of the
/// slot's GPU if that is known for every slot. With more ranks than cores no rank is bound.
Binding bind_ranks(const Topology& topology, Policy policy, std::span<const std::uint32_t> slots);

}  // namespace sortie::cpu
