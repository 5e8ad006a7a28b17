// What a check has found between sites. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/check/evaluate.h"
#include "launcher/plan/site_links.h"

namespace sortie::launcher::check {

/// Both ways of every pair of sites whose hosts were asked. `now`: Unix seconds.
std::vector<SiteLink> site_links(const std::vector<HostResult>& hosts, double now);

/// A line each; empty for none.
std::string site_links_text(const std::vector<SiteLink>& links);
nlohmann::ordered_json site_links_json(const std::vector<SiteLink>& links);

}  // namespace sortie::launcher::check
