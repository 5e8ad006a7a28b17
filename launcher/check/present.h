// A check for people and for programs. Everything that came from a host is printable already.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/check/evaluate.h"

namespace sortie::launcher::check {

struct PresentOptions {
  bool color = false;
  bool verbose = false;  // what passed as well
  std::size_t width = 100;
};

/// The table (checks x hosts, hosts with the same verdicts folded), then each WARN and FAIL with
/// its reason and fix, hosts with the same folded, then a line that sums it up.
std::string check_text(const std::vector<HostResult>& hosts,
                       const std::vector<std::vector<Finding>>& findings,
                       const PresentOptions& options);

/// {"schema":"sortie/check/1", ...}: README.md has the members. `comm`: what was measured between
/// the hosts (comm.h), where that was asked for; `sites`: between sites (sites.h).
std::string check_json_text(const std::vector<HostResult>& hosts,
                            const std::vector<std::vector<Finding>>& findings, double seconds,
                            const nlohmann::ordered_json* comm = nullptr,
                            const nlohmann::ordered_json* sites = nullptr);

/// 0 all passed, 1 warnings, 2 failures.
int check_exit_code(Verdict verdict);

}  // namespace sortie::launcher::check
