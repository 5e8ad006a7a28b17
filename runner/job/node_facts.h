// Facts about this host that JobReady reports, among them the number of cores that ranks share.
#pragma once

#include <cstdint>
#include <string>

namespace sortie::runner {

struct NodeFacts {
  std::string hostname;
  std::uint32_t cpus = 1;  // on which this process may be scheduled
  std::uint64_t memory_bytes = 0;
  std::string kernel;  // "Linux 6.1.0 x86_64"
  /// Boot id and process namespace. Equal for two logins to one machine; different for two
  /// machines, and for two containers of one machine. Empty = unknown.
  std::string machine_id;
};

NodeFacts read_node_facts();
/// NodeFacts::machine_id. Read once per process; forked processes inherit it.
const std::string& machine_id();

}  // namespace sortie::runner
