#include "launcher/host/host_errors.h"

#include <fmt/format.h>

#include <map>

#include "common/config/hostlist.h"

namespace sortie::launcher {

std::string fold_errors(const std::vector<std::pair<std::string, Error>>& errors) {
  std::map<std::string, std::vector<std::string>> hosts_by_text;
  std::vector<std::string> order;
  for (const auto& [host, error] : errors) {
    const std::string text = fmt::format("{}: {}", error_code_name(error.code), error.message);
    if (hosts_by_text[text].empty()) order.push_back(text);
    hosts_by_text[text].push_back(host);
  }
  std::string out;
  for (const std::string& line : order)
    out += fmt::format("{}{}: {}", out.empty() ? "" : "\n",
                       config::fold_host_names(hosts_by_text[line]), line);
  return out;
}

}  // namespace sortie::launcher
