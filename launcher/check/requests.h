// What the hosts are asked, as JSON (runner/check/README.md), and what the answers are held
// against.
#pragma once

#include <string>
#include <vector>

#include "launcher/check/evaluate.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher::check {

/// With `only_hosts` no program was named: nothing is asked about one.
Expectations expectations(const PlannedJob& job, bool only_hosts);

/// About the host itself. `first`: its the host of rank 0, where MASTER_PORT must be free.
std::string look_request(const PlannedJob& job, const Expectations& expect, bool first);

/// `port`: 0 = any free one.
std::string listen_request(const std::string& token, const std::string& address,
                           std::int64_t port = 0);

struct PeerAddress {
  std::string name, address;
  std::uint64_t port = 0;
};
std::string reach_request(const std::vector<PeerAddress>& peers, std::uint64_t limit_ms);
std::string bandwidth_request(const PeerAddress& peer, std::uint64_t duration_ms);
/// Each way for `duration_ms`; 0: only whether it can be reached.
std::string link_request(const PeerAddress& peer, std::uint64_t limit_ms, std::uint64_t duration_ms,
                         std::int64_t streams);

/// 32 hex digits that nobody can guess.
std::string random_token();

/// Where other hosts are told to reach this one. With runner.network.interface its address there,
/// "" when it has none; else the address that the launcher reached it at; behind a jump host what
/// its sshd saw; behind another transport the address that a run would choose; for this machine the
/// one that faces `others`.
std::string reach_address(const HostResult& host, const std::vector<const HostResult*>& others,
                          const std::string& interface);

/// The first of "NAME ADDRESS/BITS" on an interface (a name or pattern) or in a network (CIDR).
std::string address_on(const std::vector<std::string>& addresses, const std::string& wanted);

}  // namespace sortie::launcher::check
