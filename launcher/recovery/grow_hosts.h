// Lets hosts rejoin a run that continued with fewer hosts: which hosts, in which places. Part of
// place_hosts(). Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/recovery/decide.h"

namespace sortie::launcher {

bool holds(const std::vector<std::string>& names, const std::string& name);

/// Whether `host` can take the place of `place`: a spare needs at least as many slots, a host of
/// the job exactly as many. A host or place whose number of slots is unknown always fits.
bool fits_place(const HostPool& pool, const std::string& host, const std::string& place);

struct Growth {
  std::vector<std::string> hosts;  // in the order of the places, if any host joined
  std::vector<std::pair<std::string, std::string>> joined;  // {host, its place}
};

/// Returns `hosts` plus as many of `joiners` as there are empty places in `pool.places` and as
/// `pool.legal` allows. A host of the job takes its own place if that is empty. `held`: for each of
/// `hosts` the name of the place that it is known to hold, or its own name. No host joins if
/// `pool.places` is empty.
Growth grow_hosts(const HostPool& pool, const std::vector<std::string>& held,
                  const std::vector<std::string>& hosts, std::vector<std::string> joiners);

}  // namespace sortie::launcher
