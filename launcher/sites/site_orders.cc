// `sortie sites` for an active run: lists, adds and removes sites.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json_member.h"
#include "common/base/printable.h"
#include "common/config/hostlist.h"
#include "launcher/sites/site_runs.h"

namespace sortie::launcher {
using SiteJson = nlohmann::ordered_json;

SiteJson SiteRuns::site_list() const {
  SiteJson list = SiteJson::array();
  const auto states = outer_->coordinator().sites();
  for (const Site& site : sites_) {
    const std::string& name = site.what.planned.place.name;
    const auto known = std::ranges::find(states, name, &OuterCoordinator::SiteState::name);
    std::vector<std::string> hosts;
    // The loop knows which spares have taken the place of hosts.
    const LaunchPlan& plan = site.loop ? site.loop->plan() : site.what.planned.plan;
    for (const HostPlan& host : plan.hosts) hosts.push_back(host.name);
    SiteJson entry = {{"site", name},
                      {"hosts", hosts},
                      {"ranks", plan.world_size},
                      {"state", site.verdict ? "ended"
                                : site.loop  ? site.loop->state()
                                             : "ended"},
                      {"attempt", site.loop ? site.loop->attempt() : 1}};
    if (known != states.end()) {
      entry["rounds"] = known->state;
      entry["round"] = known->round;
      if (known->step_seconds > 0) entry["step_seconds"] = known->step_seconds;
      if (known->steps_in_vain > 0) entry["steps_in_vain"] = known->steps_in_vain;
    }
    if (site.verdict) entry["exit_code"] = site.verdict->exit_code;
    list.push_back(std::move(entry));
  }
  return list;
}

Result<SiteJson> SiteRuns::sites_order(const nlohmann::json& order) {
  const std::string what = json_member::text(order, "do"), name = json_member::text(order, "site");
  if (what == "add")
    SORTIE_TRY(add(name, json_member::text(order, "hosts")));
  else if (what == "remove")
    SORTIE_TRY(remove(name));
  else if (what != "ls")
    return fail(ErrorCode::usage, "sites: no such order; there are: ls, add, remove");
  return SiteJson{{"round", outer_->coordinator().round()},
                  {"epoch", outer_->coordinator().epoch()},
                  {"sites", site_list()}};
}

Result<> SiteRuns::add(const std::string& name, const std::string& hosts) {
  if (const std::string wrong = config::check_site_name(name); !wrong.empty())
    return fail(ErrorCode::usage, wrong);
  if (stopped_ || too_few_ || running_ == 0) return fail(ErrorCode::usage, "the run is ending");
  if (find(name))
    return fail(ErrorCode::usage,
                fmt::format("the run has a site {} already; give the new one another name", name));
  const auto index = static_cast<std::int64_t>(sites_.size());
  auto planned = parts_.plan_site(name, hosts, index);
  if (!planned) return std::unexpected(std::move(planned).error());
  for (const config::HostSlots& host : planned->planned.hosts)
    for (const Site& site : sites_)
      if (!site.verdict && site.loop && site.loop->has_host(host.name))
        return fail(ErrorCode::usage, fmt::format("host {} is at site {}", printable(host.name),
                                                  site.what.planned.place.name));
  Site& site = sites_.emplace_back(Site{std::move(*planned), {}, {}, {}});
  if (auto written = write_names(); !written) {
    sites_.pop_back();
    return written;
  }
  outer_->add_site(name);
  parts_.folder.event(JournalEvent::site, {{"site", name}, {"state", "added"}});
  parts_.console.message(fmt::format("site {} is added, by `sortie sites add`", name));
  start(site);
  return {};
}

Result<> SiteRuns::remove(const std::string& name) {
  Site* const site = find(name);
  if (!site) return fail(ErrorCode::usage, fmt::format("the run has no site {}", printable(name)));
  if (site->verdict) return fail(ErrorCode::usage, fmt::format("site {} has ended already", name));
  if (running_ == 1)
    return fail(ErrorCode::usage, fmt::format("site {} is the last one; use `sortie stop`", name));
  site->stopped = true;
  SORTIE_TRY(site->what.folder.write("removed", ""));
  parts_.folder.event(JournalEvent::site, {{"site", name}, {"state", "removed"}});
  parts_.console.message(fmt::format("site {} is removed, by `sortie sites remove`", name));
  outer_->remove_site(name);
  if (site->loop) site->loop->stop(false, "`sortie sites remove`");
  return {};
}

}  // namespace sortie::launcher
