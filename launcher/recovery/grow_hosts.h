// A run that went on with fewer hosts takes hosts in again: which of them, in which places. A part
// of place_hosts(); pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/recovery/decide.h"

namespace sortie::launcher {

bool holds(const std::vector<std::string>& names, const std::string& name);

/// Whether `host` can take the place of `place`: a spare with at least as many slots, a host of the
/// job with exactly as many. Hosts whose slots are not known fit everywhere.
bool fits_place(const HostPool& pool, const std::string& host, const std::string& place);

struct Growth {
  std::vector<std::string> hosts;                           // in the order of the places
  std::vector<std::pair<std::string, std::string>> joined;  // host, and the place that it takes
};

/// `hosts` and as many of `joiners` as there are empty places in `pool.places` and as the job may
/// run with (`pool.legal`); each host of the job in its own place where that is empty. `held`: for
/// each of `hosts` the place that it is known to have, or its own name. Nothing joins where there
/// are no places.
Growth grow_hosts(const HostPool& pool, const std::vector<std::string>& held,
                  const std::vector<std::string>& hosts, std::vector<std::string> joiners);

}  // namespace sortie::launcher
