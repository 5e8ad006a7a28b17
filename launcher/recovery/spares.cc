#include "launcher/recovery/spares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "common/config/hostgroups.h"

namespace sortie::launcher {

using Hosts = std::vector<config::HostSlots>;

namespace {

/// Why the site of `spare` is wrong; empty if it is right. A spare can only replace a host of its
/// own site. Without hosts, as when a run is continued, every site is right.
std::string site_of_spare(const config::HostSlots& spare, const Hosts& hosts) {
  const std::vector<std::string> sites = config::sites_of(hosts);
  if (hosts.empty() || spare.site.empty() == sites.empty()) {
    if (spare.site.empty() || hosts.empty() || std::ranges::find(sites, spare.site) != sites.end())
      return {};
    return fmt::format("{} is in site {}, and no host of the job is; use one of {}", spare.name,
                       spare.site, fmt::join(sites, ", "));
  }
  return spare.site.empty()
             ? fmt::format(
                   "{} has no site, and the hosts of the job have; write site=NAME after it",
                   spare.name)
             : fmt::format("{} is in site {}, and the hosts of the job have none; remove it",
                           spare.name, spare.site);
}

}  // namespace

bool holds(const Hosts& hosts, const std::string& name) {
  return std::ranges::find(hosts, name, &config::HostSlots::name) != hosts.end();
}

Result<Hosts> job_spares(const config::JobConfig& job, const Hosts& hosts) {
  const std::vector<std::string>& lines = job.recovery.spares;
  config::HostGroups groups;
  if (std::ranges::any_of(lines, [](const std::string& line) { return line.contains('@'); })) {
    SORTIE_ASSIGN_OR_RETURN(groups, config::HostGroups::load(job.runner.groups_file));
  }
  std::set<std::string> taken;
  for (const config::HostSlots& host : hosts) taken.insert(host.name);
  Hosts spares;
  for (const std::string& line : lines) {
    auto some = config::parse_host_line(line, static_cast<int>(job.runner.default_slots), &groups);
    if (!some)
      return fail(ErrorCode::config,
                  fmt::format("recovery.spares: '{}': {}", line, some.error().message));
    for (config::HostSlots& spare : *some) {
      if (!taken.insert(spare.name).second)
        return fail(ErrorCode::config,
                    fmt::format("recovery.spares: {} is a host of the job or a spare already; "
                                "name each machine once",
                                spare.name));
      if (std::string wrong = site_of_spare(spare, hosts); !wrong.empty())
        return fail(ErrorCode::config, fmt::format("recovery.spares: {}", wrong));
      spares.push_back(std::move(spare));
    }
  }
  return spares;
}

config::HostSlots in_place_of(const config::HostSlots& host, const config::HostSlots& spare) {
  config::HostSlots out = spare;
  out.slots.resize(std::min(host.slots.size(), spare.slots.size()));
  return out;
}

Hosts with_slots(const std::vector<std::string>& names, const Hosts& before, const Hosts& spares,
                 const std::map<std::string, std::string>& replaced) {
  const auto find = [](const Hosts& hosts, const std::string& name) {
    return std::ranges::find(hosts, name, &config::HostSlots::name);
  };
  Hosts out;
  for (const std::string& name : names) {
    if (const auto known = find(before, name); known != before.end()) {
      out.push_back(*known);
      continue;
    }
    const auto spare = find(spares, name);
    if (spare == spares.end()) continue;
    const auto place = replaced.find(name);
    const auto host = place == replaced.end() ? before.end() : find(before, place->second);
    out.push_back(host == before.end() ? *spare : in_place_of(*host, *spare));
  }
  return out;
}

}  // namespace sortie::launcher
