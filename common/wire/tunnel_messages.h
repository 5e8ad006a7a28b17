// Messages that set up a WireGuard mesh between the hosts of a job: an exchange of orders and
// reports with each host. Included by message.h.
#pragma once

#include <string>

namespace sortie::wire {

/// launcher -> runner, after JobSpec; answered by one TunnelReport or RunnerError.
/// runner/tunnel/README.md specifies the objects.
struct TunnelOrder {
  std::string json;  // at most 1 MiB
};
/// runner -> launcher. Untrusted: sizes and contents are checked.
struct TunnelReport {
  std::string json;  // at most 256 KiB
};

}  // namespace sortie::wire
