// Measurements of a check between sites. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/check/evaluate.h"
#include "launcher/plan/site_links.h"

namespace sortie::launcher::check {

/// Returns both directions of each measured pair of sites. `now`: Unix seconds.
std::vector<SiteLink> site_links(const std::vector<HostResult>& hosts, double now);

/// One line per link; "" if there are none.
std::string site_links_text(const std::vector<SiteLink>& links);
nlohmann::ordered_json site_links_json(const std::vector<SiteLink>& links);

}  // namespace sortie::launcher::check
