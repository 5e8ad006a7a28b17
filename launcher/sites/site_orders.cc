// `sortie sites` for an active run: lists, adds and removes sites.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json_member.h"
#include "common/base/printable.h"
#include "common/config/hostlist.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/sites/site_runs.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using OrderedJson = nlohmann::ordered_json;

static std::unexpected<Error> stalled(std::string_view what) {
  return fail(ErrorCode::timeout,
              fmt::format("the site is not {}: the disk of the run folder does not answer; repeat "
                          "the order when it does",
                          what));
}

OrderedJson SiteRuns::site_list() const {
  OrderedJson list = OrderedJson::array();
  const auto states = outer_->coordinator().sites();
  for (const Site& site : sites_) {
    const std::string& name = site.what.planned.place.name;
    const auto known = std::ranges::find(states, name, &OuterCoordinator::SiteState::name);
    std::vector<std::string> hosts;
    // The loop knows which spares have taken the place of hosts.
    const LaunchPlan& plan = site.loop ? site.loop->plan() : site.what.planned.plan;
    for (const HostPlan& host : plan.hosts) hosts.push_back(host.name);
    OrderedJson entry = {{"site", name},
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

asio::awaitable<Result<OrderedJson>> SiteRuns::sites_order(nlohmann::json order) {
  const std::string what = json_member::text(order, "do"), name = json_member::text(order, "site");
  Result<> done;
  if (what == "add")
    done = co_await add(name, json_member::text(order, "hosts"));
  else if (what == "remove")
    done = co_await remove(name);
  else if (what != "ls")
    done = fail(ErrorCode::usage, "sites: no such order; there are: ls, add, remove");
  if (!done) co_return std::unexpected(done.error());
  co_return OrderedJson{{"round", outer_->coordinator().round()},
                        {"epoch", outer_->coordinator().epoch()},
                        {"sites", site_list()}};
}

Result<> SiteRuns::may_add(const std::string& name) {
  if (stopped_ || early_end_ || running_ == 0) return fail(ErrorCode::usage, "the run is ending");
  if (find(name))
    return fail(ErrorCode::usage,
                fmt::format("the run has a site {} already; give the new one another name", name));
  return {};
}

asio::awaitable<Result<>> SiteRuns::add(std::string name, std::string hosts) {
  if (const std::string wrong = config::check_site_name(name); !wrong.empty())
    co_return fail(ErrorCode::usage, wrong);
  if (const Result<> may = may_add(name); !may) co_return may;
  if (adding_)
    co_return fail(ErrorCode::usage, "another site is being added; repeat the order after that");
  adding_ = true;
  Result<> added = co_await add_planned(std::move(name), std::move(hosts));
  adding_ = false;
  co_return added;
}

asio::awaitable<Result<>> SiteRuns::add_planned(std::string name, std::string hosts) {
  const std::function<Result<SiteOfRun>()> plan =
      [plan = parts_.plan_site, name, hosts, index = static_cast<std::int64_t>(sites_.size())] {
        return plan(name, hosts, index);
      };
  auto planned = co_await file_calls_.call(plan, nullptr);
  if (!planned) co_return stalled("planned");
  if (!*planned) co_return std::unexpected(std::move(*planned).error());
  for (const config::HostSlots& host : (*planned)->planned.hosts)
    for (const Site& site : sites_)
      if (!site.verdict && site.loop && site.loop->has_host(host.name))
        co_return fail(ErrorCode::usage, fmt::format("host {} is at site {}", printable(host.name),
                                                     site.what.planned.place.name));
  const std::function<Result<>()> write = [&folder = parts_.folder, all = names() + name + "\n"] {
    return folder.write(kSiteNamesFile, all);
  };
  const auto written = co_await file_calls_.call(write, nullptr);
  if (!written) co_return stalled("added");
  if (!*written) co_return *written;
  if (const Result<> may = may_add(name); !may) co_return may;
  Site& site = sites_.emplace_back(Site{std::move(**planned), {}, {}, {}});
  outer_->add_site(name);
  parts_.folder.event(JournalEvent::site, {{"site", name}, {"state", "added"}});
  parts_.console.message(fmt::format("site {} is added, by `sortie sites add`", name));
  start(site);
  co_return Result<>();
}

asio::awaitable<Result<>> SiteRuns::remove(std::string name) {
  Site* const site = find(name);
  if (!site)
    co_return fail(ErrorCode::usage, fmt::format("the run has no site {}", printable(name)));
  const Result<> over = fail(ErrorCode::usage, fmt::format("site {} has ended already", name));
  // A site that has failed can be removed: then its exit code does not count.
  const auto is_over = [site] {
    return site->verdict && (site->stopped || site->verdict->exit_code == 0);
  };
  if (is_over()) co_return over;
  if (running_ == 1 && !site->verdict)
    co_return fail(ErrorCode::usage,
                   fmt::format("site {} is the last one; use `sortie stop`", name));
  const std::function<Result<>()> write = [&folder = site->what.folder] {
    return folder.write("removed", "");
  };
  const auto written = co_await file_calls_.call(write, nullptr);
  if (!written) co_return stalled("removed");
  if (!*written) co_return *written;
  if (is_over()) co_return over;
  if (running_ == 0) co_return fail(ErrorCode::usage, "the run is ending");
  site->stopped = true;
  parts_.folder.event(JournalEvent::site, {{"site", name}, {"state", "removed"}});
  parts_.console.message(fmt::format("site {} is removed, by `sortie sites remove`", name));
  outer_->remove_site(name);
  if (site->loop && !site->verdict) site->loop->stop(false, "`sortie sites remove`");
  co_return Result<>();
}

}  // namespace sortie::launcher
