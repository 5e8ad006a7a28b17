// The part of `sortie plan` about sites: their links, and what each level of gradient compression
// sends and how long it waits (outer_plan.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/plan/outer_plan.h"
#include "launcher/plan/plan.h"
#include "launcher/plan/site_links.h"

namespace sortie::launcher {

/// Values given by the user, which override measured ones.
struct SiteOptions {
  std::optional<double> byte_s{};      // --site-rate
  std::optional<double> round_trip{};  // --site-round-trip, seconds
  std::optional<double> step_time{};   // --step-time, seconds
  std::string check_command{};         // the command that measures the links, for a shell
};

/// The plan of one site, with a separate world of ranks.
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
  OuterLoad load;  // byte_s and step_seconds are 0 if unknown
  std::vector<LevelPlan> levels;
  std::string level;          // level of the job; "configured" if it is none of the named ones
  std::string check_command;  // SiteOptions::check_command
};

/// Makes the part about sites. `known`: measured links, also of other hosts. `plans`: those of all
/// sites, each with a model if the trainer answered.
SitesPlan plan_between_sites(const config::JobConfig& job,
                             const std::vector<config::HostSlots>& hosts,
                             const std::vector<SitePlan>& plans, const std::vector<SiteLink>& known,
                             const SiteOptions& options);

/// As text: links, levels, memory, and unknown values with the command that measures them.
std::string sites_text(const SitesPlan& plan);
nlohmann::ordered_json sites_json(const SitesPlan& plan);

}  // namespace sortie::launcher
