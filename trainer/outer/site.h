// Site: what a rank knows of its site, and how the site's leaders reach the others.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/config/outer.h"
#include "trainer/outer/coordinator.h"
#include "trainer/outer/site_links.h"

namespace sortie::trainer::outer {

struct Site {
  std::string name;
  std::int64_t index = 0, count = 1;  // of the sites of the run, in config order
  config::OuterSettings settings;
  /// Called once by the leader of each part, when training starts.
  std::function<Result<std::unique_ptr<Coordinator>>(std::int64_t part)> make_coordinator;
  std::function<Result<std::unique_ptr<SiteLinks>>(std::int64_t part)> make_links;
};

}  // namespace sortie::trainer::outer
