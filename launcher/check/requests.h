// Requests to hosts, as JSON (runner/check/README.md), and the expectations that the answers are
// compared with.
#pragma once

#include <string>
#include <vector>

#include "launcher/check/evaluate.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher::check {

/// Derives the expectations from a job. `only_hosts`: no program was named, so there are none about
/// it.
Expectations expectations(const PlannedJob& job, bool only_hosts);

/// Asks a host about itself. `first`: it is the host of rank 0, where MASTER_PORT must be free.
/// A `host` without ranks is a spare.
std::string look_request(const PlannedJob& job, const Expectations& expect, const HostPlan& host,
                         bool first);

/// Asks for what its trainer sees there, with the environment of ranks but without secrets.
std::string trainer_request(const PlannedJob& job, const Expectations& expect, const HostPlan& host,
                            std::uint64_t limit_ms);

/// `port`: 0 = any free one.
std::string listen_request(const std::string& token, const std::string& address,
                           std::int64_t port = 0);

struct PeerAddress {
  std::string name, address;
  std::uint64_t port = 0;
};
std::string reach_request(const std::vector<PeerAddress>& peers, std::uint64_t limit_ms);
std::string bandwidth_request(const PeerAddress& peer, std::uint64_t duration_ms);
/// Measures each direction for `duration_ms`; 0: only checks that the peer can be reached.
std::string link_request(const PeerAddress& peer, std::uint64_t limit_ms, std::uint64_t duration_ms,
                         std::int64_t streams);

/// Returns 32 random hex digits, cryptographically secure.
std::string random_token();

/// Returns the address at which other hosts connect to this one. With `interface`
/// (runner.network.interface): its address there, "" if it has none. Otherwise: for this machine,
/// its address towards `others`; else the address at which the launcher reached the host; behind a
/// jump host, the address that its sshd saw; behind another transport, the address that a run would
/// choose.
std::string reach_address(const HostResult& host, const std::vector<const HostResult*>& others,
                          const std::string& interface);

/// Returns the first address of `addresses` ("NAME ADDRESS/BITS") on an interface (`wanted` is a
/// name or pattern) or in a network (CIDR); "" if there is none.
std::string address_on(const std::vector<std::string>& addresses, const std::string& wanted);

}  // namespace sortie::launcher::check
