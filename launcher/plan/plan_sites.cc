#include "launcher/plan/plan_sites.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/base/quantity.h"
#include "common/config/validate.h"

namespace sortie::launcher {
namespace {

std::string rate_text(double byte_s) {
  const double mbit = byte_s * 8e-6;
  return mbit >= 1000.0 ? fmt::format("{:.3g} Gbit/s", mbit / 1000.0)
                        : fmt::format("{:.3g} Mbit/s", mbit);
}

std::string seconds_text(double seconds) {
  return seconds < 60.0 ? fmt::format("{:.3g} s", seconds) : short_time(seconds);
}

std::string bytes_text(double bytes) {
  return short_number(bytes) + "B";
}

std::string day_text(double unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", parts);
}

const SiteLink* way_back(const std::vector<SiteLink>& links, const SiteLink& link) {
  const auto found = std::ranges::find_if(
      links, [&](const SiteLink& other) { return other.from == link.to && other.to == link.from; });
  return found == links.end() ? nullptr : &*found;
}

std::string link_line(const SiteLink& link, const std::vector<SiteLink>& links) {
  if (!link.works)
    return fmt::format("no way: {}; bytes go through the launcher, at a rate that is not measured",
                       link.error);
  const SiteLink* back = way_back(links, link);
  std::string text =
      fmt::format("{}, round trip {:.3g} ms", rate_text(link.byte_s), link.round_trip * 1e3);
  if (link.loss > 0.0) text += fmt::format(", {:.2g} % sent again", link.loss * 100.0);
  if (link.mtu > 0) text += fmt::format(", MTU {}", link.mtu);
  if (!link.reached && back != nullptr && back->reached)
    text += fmt::format(", opened by {}", link.to);
  return text + fmt::format("  ({}, {} -> {})", day_text(link.time), link.from_host, link.to_host);
}

/// Uses the slowest link and the longest round trip: every round waits for them.
void take_site_links(const SiteOptions& options, SitesPlan& out) {
  for (const SiteLink& link : out.links) {
    if (!link.works || link.byte_s <= 0.0) {
      out.load.byte_s = 0.0;
      out.unmeasured.push_back(fmt::format("{} -> {}", link.from, link.to));
      continue;
    }
    out.load.byte_s = out.load.byte_s > 0.0 ? std::min(out.load.byte_s, link.byte_s) : link.byte_s;
    out.load.round_trip = std::max(out.load.round_trip, link.round_trip);
  }
  for (const SitesPlan::Site& from : out.sites)
    for (const SitesPlan::Site& to : out.sites)
      if (from.name != to.name && std::ranges::none_of(out.links, [&](const SiteLink& link) {
            return link.from == from.name && link.to == to.name;
          }))
        out.unmeasured.push_back(fmt::format("{} -> {}", from.name, to.name));
  if (!out.unmeasured.empty()) out.load.byte_s = 0.0;
  out.rate_given = options.byte_s.has_value();
  if (options.byte_s) out.load.byte_s = *options.byte_s;
  if (options.round_trip) out.load.round_trip = *options.round_trip;
  if (options.step_time) out.load.step_seconds = *options.step_time;
}

std::string settings_text(const config::OuterSettings& outer) {
  if (!outer.rounds) return fmt::format("every step, {}", config::outer_wire_name(outer.wire));
  std::string text = fmt::format("{} steps, {}", outer.every, config::outer_wire_name(outer.wire));
  if (outer.fragments > 1) text += fmt::format(", {} fragments", outer.fragments);
  if (outer.overlap > 0) text += fmt::format(", {} steps late", outer.overlap);
  return text;
}

std::string level_row(const SitesPlan& plan, const LevelPlan& level, std::size_t width) {
  const OuterLoad& load = plan.load;
  const OuterPrediction found = predict_outer(level.settings, load);
  const bool has_rate = load.byte_s > 0.0, has_step = load.step_seconds > 0.0;
  std::string needed = "-";
  if (has_step) {
    const auto rate = rate_for(level.settings, load, kUsefulEnough);
    needed = rate ? rate_text(*rate) : "none is";
  }
  return fmt::format(
      "  {} {:<10}  {:<{}}  {:>9}  {:>9}  {:>9}  {:>7}  {:>12}\n",
      level.level == plan.level ? '*' : ' ', level.level, settings_text(level.settings), width,
      bytes_text(found.bytes), has_rate ? seconds_text(found.exchange) : "-",
      has_rate && has_step ? seconds_text(found.round) : "-",
      has_rate && has_step ? fmt::format("{:.1f} %", 100.0 * found.useful) : "-", needed);
}

std::string levels_text(const SitesPlan& plan) {
  std::size_t width = 6;
  for (const LevelPlan& level : plan.levels)
    width = std::max(width, settings_text(level.settings).size());
  std::string text =
      fmt::format("\n    {:<10}  {:<{}}  {:>9}  {:>9}  {:>9}  {:>7}  {:>12}\n", "level", "round",
                  width, "bytes", "exchange", "time", "useful", "90 % needs");
  for (const LevelPlan& level : plan.levels) text += level_row(plan, level, width);
  text +=
      "    * this job's; bytes: that a site sends in a round; useful: share of a round's time that "
      "trains\n";
  return text;
}

const LevelPlan& own_level(const SitesPlan& plan) {
  return *std::ranges::find(plan.levels, plan.level, &LevelPlan::level);
}

/// Missing values, with the command or option that provides them.
std::string missing_text(const SitesPlan& plan) {
  std::string text;
  if (plan.load.byte_s <= 0.0 && !plan.unmeasured.empty())
    text += fmt::format("    {}: not measured; run `{}`, or give --site-rate 100Mbit/s\n",
                        fmt::join(plan.unmeasured, ", "), plan.check_command);
  if (plan.load.step_seconds <= 0.0)
    text +=
        "    the time of a step is not known; give --step-time SECONDS, which `sortie status` "
        "shows of a run\n";
  return text;
}

}  // namespace

SitesPlan plan_between_sites(const config::JobConfig& job,
                             const std::vector<config::HostSlots>& hosts,
                             const std::vector<SitePlan>& plans, const std::vector<SiteLink>& known,
                             const SiteOptions& options) {
  SitesPlan out;
  for (const SitePlan& site : plans)
    out.sites.push_back({site.name, site.hosts.size(), site.plan.world_size});
  const auto count = static_cast<std::int64_t>(out.sites.size());
  out.load.sites = count;
  out.load.leaders = config::ranks_of_replica(job.topology) / job.topology.context_parallel_size;
  if (!plans.empty() && plans.front().plan.model) {
    const ModelPlan& model = *plans.front().plan.model;
    out.load.elements = static_cast<double>(model.cost.trained_parameters);
    out.load.threads = std::max<std::int64_t>(model.asked.threads, 1);
  }
  out.links = links_between(known, hosts);
  take_site_links(options, out);
  out.levels = levels_of(job, count);
  out.level = out.levels.back().level;
  if (out.level != "configured")
    out.level = config::gradient_compression_level(job.topology, count);
  out.check_command = options.check_command;
  return out;
}

std::string sites_text(const SitesPlan& plan) {
  std::string text = fmt::format("\n{} sites, one model\n\n", plan.sites.size());
  for (const SitesPlan::Site& site : plan.sites)
    text += fmt::format("    {:<12}  {} host{}, {} rank{}\n", site.name, site.hosts,
                        site.hosts == 1 ? "" : "s", site.ranks, site.ranks == 1 ? "" : "s");
  for (const SiteLink& link : plan.links)
    text += fmt::format("    {} -> {}  {}\n", link.from, link.to, link_line(link, plan.links));
  if (plan.rate_given)
    text += fmt::format("    between sites  {}, as given\n", rate_text(plan.load.byte_s));
  if (plan.load.elements <= 0.0)
    return text + "    what sites send is not known: the number of parameters is unknown\n";
  text += levels_text(plan);
  text += missing_text(plan);
  if (plan.load.byte_s > 0.0 && plan.load.step_seconds > 0.0) {
    const std::string level = smallest_level(plan.levels, plan.load);
    text += level.empty()
                ? "    no level trains 90 % of the time; more steps a round (outer.every) do, or a "
                  "faster link\n"
                : fmt::format(
                      "    topology.gradient_compression = \"{}\" is the smallest level that "
                      "trains 90 % of the time\n",
                      level);
  }
  const OuterMemory memory = outer_memory(own_level(plan).settings, plan.load);
  text +=
      fmt::format("    memory of each of {} leader{} a site: outer weights and momentum {}, ",
                  plan.load.leaders, plan.load.leaders == 1 ? "" : "s", bytes_text(memory.state));
  if (memory.error_feedback > 0.0)
    text += fmt::format("error feedback {}, ", bytes_text(memory.error_feedback));
  return text + fmt::format("{} while they exchange\n", bytes_text(memory.exchange));
}

nlohmann::ordered_json sites_json(const SitesPlan& plan) {
  nlohmann::ordered_json out = {{"sites", nlohmann::ordered_json::array()},
                                {"links", nlohmann::ordered_json::array()},
                                {"levels", nlohmann::ordered_json::array()}};
  for (const SitesPlan::Site& site : plan.sites)
    out["sites"].push_back({{"name", site.name}, {"hosts", site.hosts}, {"ranks", site.ranks}});
  for (const SiteLink& link : plan.links) out["links"].push_back(site_link_json(link));
  out["not_measured"] = plan.unmeasured;
  const bool has_rate = plan.load.byte_s > 0.0, has_step = plan.load.step_seconds > 0.0;
  out["mbit_s"] =
      has_rate ? nlohmann::ordered_json(plan.load.byte_s * 8e-6) : nlohmann::ordered_json();
  out["round_trip_ms"] = plan.load.round_trip * 1e3;
  out["step_seconds"] =
      has_step ? nlohmann::ordered_json(plan.load.step_seconds) : nlohmann::ordered_json();
  out["parameters"] = plan.load.elements;
  for (const LevelPlan& level : plan.levels) {
    const OuterPrediction found = predict_outer(level.settings, plan.load);
    const auto needed =
        has_step ? rate_for(level.settings, plan.load, kUsefulEnough) : std::nullopt;
    out["levels"].push_back(
        {{"level", level.level},
         {"this_job", level.level == plan.level},
         {"every", level.settings.every},
         {"wire", config::outer_wire_name(level.settings.wire)},
         {"fragments", level.settings.fragments},
         {"overlap", level.settings.overlap},
         {"bytes_per_round", found.bytes},
         {"exchange_seconds",
          has_rate ? nlohmann::ordered_json(found.exchange) : nlohmann::ordered_json()},
         {"round_seconds",
          has_rate && has_step ? nlohmann::ordered_json(found.round) : nlohmann::ordered_json()},
         {"useful",
          has_rate && has_step ? nlohmann::ordered_json(found.useful) : nlohmann::ordered_json()},
         {"mbit_s_for_90_percent",
          needed ? nlohmann::ordered_json(*needed * 8e-6) : nlohmann::ordered_json()}});
  }
  if (has_rate && has_step) out["smallest_level"] = smallest_level(plan.levels, plan.load);
  const OuterMemory memory = outer_memory(own_level(plan).settings, plan.load);
  out["leader_memory_bytes"] = {{"leaders", plan.load.leaders},
                                {"outer_weights_and_momentum", memory.state},
                                {"error_feedback", memory.error_feedback},
                                {"exchange", memory.exchange}};
  return out;
}

}  // namespace sortie::launcher
