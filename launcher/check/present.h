// Output of a check as text and JSON. Everything received from hosts is printable already.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "launcher/check/evaluate.h"

namespace sortie::launcher::check {

struct PresentOptions {
  bool color = false;
  bool verbose = false;  // also show what passed
  std::size_t width = 100;
};

/// Returns the table (checks x hosts; hosts with equal verdicts share a column), then each WARN and
/// FAIL with reason and fix (equal ones once), then a summary line.
std::string check_text(const std::vector<HostResult>& hosts,
                       const std::vector<std::vector<Finding>>& findings,
                       const PresentOptions& options);

/// Returns {"schema":"sortie/check/1", ...}; README.md has the members. `comm`: measurements
/// between hosts (comm.h); `sites`: between sites (sites.h); nullptr if not requested.
std::string check_json_text(const std::vector<HostResult>& hosts,
                            const std::vector<std::vector<Finding>>& findings, double seconds,
                            const nlohmann::ordered_json* comm = nullptr,
                            const nlohmann::ordered_json* sites = nullptr);

/// 0 all passed, 1 warnings, 2 failures.
int check_exit_code(Verdict verdict);

}  // namespace sortie::launcher::check
