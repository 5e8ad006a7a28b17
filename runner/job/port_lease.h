// A TCP port for MASTER_PORT that no other Sortie job on this host gets while this one runs. The
// lease is an abstract Unix socket named after the port: it exists per network namespace, as ports
// do, needs no file, and vanishes with the process that holds it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner {

/// Ports to try: above the well-known ones, and outside the range from which the kernel assigns
/// local ports of connections (within it if nothing is left outside), without the reserved ones.
/// Pure: the arguments are the texts of net.ipv4.ip_local_port_range ("32768\t60999") and
/// ip_local_reserved_ports ("8080,9000-9010").
std::vector<std::uint16_t> port_candidates(std::string_view ephemeral, std::string_view reserved);

class PortLease {
 public:
  PortLease() = default;
  explicit operator bool() const { return port_ != 0; }
  std::uint16_t port() const { return port_; }

  /// Takes the lease of `port` and binds the port, for IPv4 and IPv6. The error says what holds it.
  static Result<PortLease> take(std::uint16_t port);
  /// Takes the first free port of `candidates`, starting at a position that `seed` determines.
  static Result<PortLease> take_any(std::span<const std::uint16_t> candidates, std::uint64_t seed);

  /// Unbinds the port, so that the rank can listen on it. The lease stays.
  void release_port() { bound_.reset(); }

 private:
  std::uint16_t port_ = 0;
  Fd name_, bound_;
};

/// Leases the job's port: `wanted`, or any free one if that is wire::kAnyPort.
Result<PortLease> lease_master_port(std::uint32_t wanted, std::string_view run_id);

}  // namespace sortie::runner
