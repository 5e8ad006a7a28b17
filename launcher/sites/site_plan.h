// What is started on each site of a run over several: a job of its own on the hosts of that site.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/hostlist.h"
#include "common/config/schema.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Which site of how many; what ranks find in SORTIE_SITE, SORTIE_SITE_INDEX and SORTIE_SITES.
struct SitePlace {
  std::string name;
  std::int64_t index = 0;
  std::int64_t count = 0;  // that are configured; those that are added later do not count
};

struct PlannedSite {
  SitePlace place;
  LaunchPlan plan;
  std::vector<config::HostSlots> hosts, spares;
};

/// The plan of one site: its own world, with its share of the global batch of `job`.
Result<LaunchPlan> make_site_plan(const config::JobConfig& job,
                                  const std::vector<config::HostSlots>& hosts,
                                  const LauncherFacts& facts, const SitePlace& place);

/// One for each site of `hosts`, in the order in which they first appear.
Result<std::vector<PlannedSite>> plan_sites(const config::JobConfig& job,
                                            const std::vector<config::HostSlots>& hosts,
                                            const std::vector<config::HostSlots>& spares,
                                            const LauncherFacts& facts);

/// Hosts and ranks of all of them, in one row: what people are shown of the run as a whole.
LaunchPlan plan_of_all(const std::vector<PlannedSite>& sites);

/// By which the hosts of a site know its part of the run: what one site leaves behind on a host is
/// not what another one may end. "ID-s0".
std::string run_id_of_site(const std::string& run, std::int64_t index);

}  // namespace sortie::launcher
