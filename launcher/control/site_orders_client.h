// `sortie sites`: lists, adds and removes the sites of a run that is alive.
#pragma once

#include <string>
#include <vector>

namespace sortie::launcher {

struct SitesRequest {
  std::string run, log_dir;
  std::string order = "ls";        // ls, add, remove
  std::string site;                // for add and remove
  std::vector<std::string> hosts;  // for add: host lines
  bool json = false;               // for ls
};

/// Returns the exit code; 5 if the run has no supervisor.
int order_sites(const SitesRequest& request);

}  // namespace sortie::launcher
