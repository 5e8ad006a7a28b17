// Plans of a run over several sites: a separate job on the hosts of each site.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/hostlist.h"
#include "common/config/schema.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Name and index of a site, as ranks see them in SORTIE_SITE, SORTIE_SITE_INDEX and SORTIE_SITES.
struct SitePlace {
  std::string name;
  std::int64_t index = 0;
  std::int64_t count = 0;  // number of configured sites, without sites added later
};

struct PlannedSite {
  SitePlace place;
  LaunchPlan plan;
  std::vector<config::HostSlots> hosts, spares;
};

/// Plans one site: a separate world with its share of the global batch of `job`.
Result<LaunchPlan> make_site_plan(const config::JobConfig& job,
                                  const std::vector<config::HostSlots>& hosts,
                                  const LauncherFacts& facts, const SitePlace& place);

/// The hosts of a site that `sortie sites add` adds, from their host lines. ErrorCode::usage if
/// they are those of another site.
Result<std::vector<config::HostSlots>> hosts_of_added(const std::string& site,
                                                      const std::string& lines, int default_slots);

/// Plans each site of `hosts`, in the order in which they first appear.
Result<std::vector<PlannedSite>> plan_sites(const config::JobConfig& job,
                                            const std::vector<config::HostSlots>& hosts,
                                            const std::vector<config::HostSlots>& spares,
                                            const LauncherFacts& facts);

/// Lists hosts and ranks of all sites in sequence: the plan of the run as shown to the user.
LaunchPlan plan_of_all(const std::vector<PlannedSite>& sites);

/// Samples of a step over all `sites` configured sites, of which each trains with the batch of a
/// site with `ranks` ranks: topology.global_batch_size if it is set. 0 if the topology does not fit
/// these ranks, as it may for a job of another program.
std::int64_t batch_of_sites(const config::TopologyConfig& topology, std::int64_t sites,
                            std::int64_t ranks);

/// Run id under which the hosts of a site know its part of the run, "ID-s0". It is unique per site,
/// so that a site can not kill what another site has left on a host.
std::string run_id_of_site(const std::string& run, std::int64_t index);

}  // namespace sortie::launcher
