// Which CPUs each rank of a host runs on. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/cpu/topology.h"

namespace sortie::cpu {

enum class Policy {
  none,
  automatic,  // core for two ranks or more; one rank alone keeps the whole host
  core,       // whole cores for each rank alone
  numa,       // whole NUMA nodes, shared by the ranks that are on them
};

struct Share {
  CpuList cpus;
  std::uint32_t threads = 1;  // its fair part of them, for OMP_NUM_THREADS
};

struct Binding {
  std::vector<Share> ranks;  // empty = nobody is bound
  std::string note;          // "core: 2 ranks on 8 cores, 1 node" or "none: <why>"
};

/// One share per slot, in their order. Contiguous and within one NUMA node wherever that leaves no
/// rank much less than its fair share; on the node of the slot's GPU where every slot has one that
/// says where it is. More ranks than cores: nobody is bound.
Binding bind_ranks(const Topology& topology, Policy policy, std::span<const std::uint32_t> slots);

}  // namespace sortie::cpu
