// The part of `sortie plan` about sites: their links, what each level of gradient compression sends
// and how long it waits there (outer_plan.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/outer_plan.h"
#include "launcher/plan/plan.h"
#include "launcher/plan/site_links.h"

namespace sortie::launcher {

/// What the user says instead of what was measured.
struct SiteOptions {
  std::optional<double> byte_s{};      // --site-rate
  std::optional<double> round_trip{};  // --site-round-trip, seconds
  std::optional<double> step_time{};   // --step-time, seconds
  std::string config{};                // the config file, for the command that measures
};

/// What one site starts: a world of its own.
struct SitePlan {
  std::string name;
  std::vector<config::HostSlots> hosts;
  LaunchPlan plan;
};

struct SitesPlan {
  struct Site {
    std::string name;
    std::size_t hosts = 0, ranks = 0;
  };
  std::vector<Site> sites;
  std::vector<SiteLink> links;          // measured ones
  std::vector<std::string> unmeasured;  // "oslo -> rome"
  bool rate_given = false;
  OuterLoad load;  // byte_s and step_seconds 0 where they are not known
  std::vector<LevelPlan> levels;
  std::string level;  // that the job has; "configured" for settings of its own
  std::string config;
};

/// `known`: what was measured, for whatever hosts. The plans are those of all sites, each with a
/// model where the trainer was asked.
SitesPlan plan_between_sites(const config::JobConfig& job,
                             const std::vector<config::HostSlots>& hosts,
                             const std::vector<SitePlan>& plans, const std::vector<SiteLink>& known,
                             const SiteOptions& options);

/// For people: links, levels, memory, and what is not known with the command that measures it.
std::string sites_text(const SitesPlan& plan);
nlohmann::ordered_json sites_json(const SitesPlan& plan);

}  // namespace sortie::launcher
