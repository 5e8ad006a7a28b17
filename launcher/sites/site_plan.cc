#include "launcher/sites/site_plan.h"

#include <fmt/format.h>

#include <iterator>

#include "common/config/outer.h"
#include "common/config/validate.h"

namespace sortie::launcher {

Result<LaunchPlan> make_site_plan(const config::JobConfig& job,
                                  const std::vector<config::HostSlots>& hosts,
                                  const LauncherFacts& facts, const SitePlace& place) {
  config::JobConfig site = job;
  site.topology = config::topology_of_site(job.topology, place.count);
  auto plan = make_plan(site, hosts, facts);
  if (!plan) return std::unexpected(with_context(std::move(plan).error(), "site " + place.name));
  plan->env.emplace_back("SORTIE_SITE", place.name);
  plan->env.emplace_back("SORTIE_SITE_INDEX", fmt::format("{}", place.index));
  plan->env.emplace_back("SORTIE_SITES", fmt::format("{}", place.count));
  return plan;
}

Result<std::vector<config::HostSlots>> hosts_of_added(const std::string& site,
                                                      const std::string& lines, int default_slots) {
  SORTIE_ASSIGN_OR_RETURN(std::vector<config::HostSlots> hosts,
                          config::parse_host_file(lines, "sites add", default_slots));
  if (hosts.empty())
    return fail(ErrorCode::usage, fmt::format("sites add {}: no host is named", site));
  for (config::HostSlots& host : hosts) {
    if (!host.site.empty() && host.site != site)
      return fail(ErrorCode::usage,
                  fmt::format("sites add {}: its host {} has site={}; leave site= out of the host "
                              "lines, or use `sortie sites add {}`",
                              site, host.name, host.site, host.site));
    host.site = site;
  }
  return hosts;
}

Result<std::vector<PlannedSite>> plan_sites(const config::JobConfig& job,
                                            const std::vector<config::HostSlots>& hosts,
                                            const std::vector<config::HostSlots>& spares,
                                            const LauncherFacts& facts) {
  std::vector<PlannedSite> sites;
  const std::vector<std::string> names = config::sites_of(hosts);
  for (const std::string& name : names) {
    PlannedSite& site = sites.emplace_back();
    site.place = {name, static_cast<std::int64_t>(sites.size()) - 1,
                  static_cast<std::int64_t>(names.size())};
    for (const config::HostSlots& host : hosts)
      if (host.site == name) site.hosts.push_back(host);
    for (const config::HostSlots& spare : spares)
      if (spare.site == name) site.spares.push_back(spare);
    SORTIE_ASSIGN_OR_RETURN(site.plan, make_site_plan(job, site.hosts, facts, site.place));
  }
  return sites;
}

LaunchPlan plan_of_all(const std::vector<PlannedSite>& sites) {
  LaunchPlan all = sites.front().plan;
  if (sites.size() == 1) return all;
  std::erase_if(all.env, [](const auto& entry) { return entry.first.starts_with("SORTIE_SITE"); });
  all.hosts.clear();
  all.nodes.clear();
  all.world_size = 0;
  for (const PlannedSite& site : sites) {
    for (HostPlan host : site.plan.hosts) {
      host.node_rank = static_cast<std::uint32_t>(all.hosts.size());
      for (RankPlan& rank : host.ranks) rank.rank = all.world_size++;
      all.hosts.push_back(std::move(host));
    }
    if (site.place.index == 0) continue;
    for (const std::string& warning : warnings_of(site.plan))
      all.warnings.push_back(site.place.name + ": " + warning);
  }
  return all;
}

std::int64_t batch_of_sites(const config::TopologyConfig& topology, std::int64_t sites,
                            std::int64_t ranks) {
  if (topology.global_batch_size > 0) return topology.global_batch_size;
  const config::BatchOutcome batch =
      config::resolve_batch(config::topology_of_site(topology, sites), ranks);
  return batch.violations.empty() ? batch.plan.global_batch_size * sites : 0;
}

std::string run_id_of_site(const std::string& run, std::int64_t index) {
  return fmt::format("{}-s{}", run, index);
}

}  // namespace sortie::launcher
