// The conversation that sets up a WireGuard mesh between the hosts of a job, one exchange of orders
// and reports per host. Included by message.h.
#pragma once

#include <string>

namespace sortie::wire {

/// launcher -> runner, behind JobSpec; answered by one TunnelReport or RunnerError.
/// runner/tunnel/README.md has the objects.
struct TunnelOrder {
  std::string json;  // at most 1 MiB
};
/// runner -> launcher. Never trusted: sizes and contents are checked.
struct TunnelReport {
  std::string json;  // at most 256 KiB
};

}  // namespace sortie::wire
