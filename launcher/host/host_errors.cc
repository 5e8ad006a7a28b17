#include "launcher/host/host_errors.h"

#include <fmt/format.h>

#include "common/config/hostlist.h"
#include "launcher/host/fold_failures.h"

namespace sortie::launcher {

std::string fold_errors(const std::vector<std::pair<std::string, Error>>& errors) {
  std::vector<std::pair<std::string, std::string>> failures;
  for (const auto& [host, error] : errors)
    failures.emplace_back(host, fmt::format("{}: {}", error_code_name(error.code), error.message));
  std::string out;
  for (const FoldedFailure& failure : fold_failures(failures))
    out += fmt::format("{}{}: {}", out.empty() ? "" : "\n", config::fold_host_names(failure.hosts),
                       failure.text);
  return out;
}

}  // namespace sortie::launcher
