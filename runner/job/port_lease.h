// A TCP port for MASTER_PORT that no other job of Sortie on this host gets while this one runs. The
// lease is an abstract Unix socket named after the port: it is per network namespace as ports are,
// needs no file, and is gone with the process that holds it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner {

struct PortRange {
  std::uint32_t first = 0, last = 0;  // both belong to it
};

/// The ports to try: above the well-known ones and outside the range from which the kernel takes
/// the local ports of connections (else within it), without the reserved ones. Pure; the texts
/// are those of net.ipv4.ip_local_port_range ("32768\t60999") and ip_local_reserved_ports ("8080,
/// 9000-9010").
std::vector<std::uint16_t> port_candidates(std::string_view ephemeral, std::string_view reserved);

class PortLease {
 public:
  PortLease() = default;
  explicit operator bool() const { return port_ != 0; }
  std::uint16_t port() const { return port_; }

  /// Holds the lease of `port` and the port itself, for IPv4 and IPv6. An error says who has it.
  static Result<PortLease> take(std::uint16_t port);
  /// The first that can be had of `candidates`, from one on that `seed` decides.
  static Result<PortLease> take_any(std::span<const std::uint16_t> candidates, std::uint64_t seed);

  /// Gives the port free for the rank that will listen there; the lease stays.
  void release_port() { bound_.reset(); }

 private:
  std::uint16_t port_ = 0;
  Fd name_, bound_;
};

/// The job's port: `wanted`, or any for wire::kAnyPort.
Result<PortLease> lease_master_port(std::uint32_t wanted, std::string_view run_id);

}  // namespace sortie::runner
