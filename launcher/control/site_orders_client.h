// `sortie sites`: the sites of a living run, and orders about them.
#pragma once

#include <string>
#include <vector>

namespace sortie::launcher {

struct SitesRequest {
  std::string run, log_dir;
  std::string order = "ls";        // ls, add, remove
  std::string site;                // of add and remove
  std::vector<std::string> hosts;  // of add: host lines
  bool json = false;               // of ls
};

/// Returns the exit code. 5 when nobody supervises the run.
int order_sites(const SitesRequest& request);

}  // namespace sortie::launcher
