// What this host is: sent in JobReady, and the number of cores that ranks share.
#pragma once

#include <cstdint>
#include <string>

namespace sortie::runner {

struct NodeFacts {
  std::string hostname;
  std::uint32_t cpus = 1;  // that this process may be scheduled on
  std::uint64_t memory_bytes = 0;
  std::string kernel;  // "Linux 6.1.0 x86_64"
  /// Equal for two sign-ins to one machine, different for two machines and for two containers of
  /// one machine: boot id and process namespace. Empty = unknown.
  std::string machine_id;
};

NodeFacts read_node_facts();
/// Read once: forks have it from the process that forked.
const std::string& machine_id();

}  // namespace sortie::runner
