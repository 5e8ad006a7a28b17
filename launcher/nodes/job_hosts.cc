#include "launcher/nodes/job_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "launcher/nodes/node_store.h"
#include "launcher/recovery/spares.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {

using Hosts = std::vector<config::HostSlots>;

Result<SoundHosts> without_cordoned(const Hosts& hosts, const Hosts& spares, const NodeState& state,
                                    double now) {
  SoundHosts out;
  Hosts free;
  for (const config::HostSlots& spare : spares)
    if (!state.find(spare.name)) free.push_back(spare);
  std::vector<std::string> stuck, names;
  for (const config::HostSlots& host : hosts) {
    const Cordon* cordon = state.find(host.name);
    if (!cordon) {
      out.hosts.push_back(host);
      continue;
    }
    const std::string why = fmt::format("{} is cordoned {}", host.name, cordon_text(*cordon, now));
    const auto spare = std::ranges::find_if(free, [&](const config::HostSlots& one) {
      return one.site == host.site && one.slots.size() >= host.slots.size();
    });
    if (spare == free.end()) {
      stuck.push_back(why);
      names.push_back(host.name);
      continue;
    }
    out.hosts.push_back(in_place_of(host, *spare));
    out.notes.push_back(
        fmt::format("spare {} takes the place of {}: {}", spare->name, host.name, why));
    free.erase(spare);
  }
  if (stuck.empty()) return out;
  const std::string folded = config::fold_host_names(names);
  return fail(
      ErrorCode::config,
      fmt::format("{}\nsortie: leave {} out (--exclude '{}'), name a spare "
                  "(recovery.spares), or, once well: `sortie nodes uncordon '{}'`",
                  fmt::join(stuck, "\n"), names.size() == 1 ? "it" : "them", folded, folded));
}

Result<> leave_cordoned_out(config::LoadedJob& loaded, Hosts& hosts) {
  SORTIE_ASSIGN_OR_RETURN(const Hosts spares, job_spares(loaded.job, hosts));
  SORTIE_ASSIGN_OR_RETURN(const NodeState state, cordoned_hosts());
  SORTIE_ASSIGN_OR_RETURN(SoundHosts sound, without_cordoned(hosts, spares, state, unix_time()));
  if (sound.notes.empty()) return {};
  hosts = std::move(sound.hosts);
  loaded.job.runner.hosts = config::host_lines(hosts);
  loaded.job.runner.hosts_file.clear();
  // Spares that are now hosts of the job are no longer spares.
  Hosts left;
  for (const config::HostSlots& spare : spares)
    if (std::ranges::find(hosts, spare.name, &config::HostSlots::name) == hosts.end())
      left.push_back(spare);
  loaded.job.recovery.spares = config::host_lines(left);
  std::ranges::move(sound.notes, std::back_inserter(loaded.warnings));
  return {};
}

}  // namespace sortie::launcher
