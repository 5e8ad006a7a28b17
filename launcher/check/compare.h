// Comparing hosts with each other: the value that most of them have.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/config/hostlist.h"
#include "launcher/check/evaluate.h"

namespace sortie::launcher::check {

/// Returns the most common value; among equally common ones the alphabetically first. "" if no host
/// has a value.
template <class Get>
std::string most_common(const std::vector<HostResult>& hosts, Get get) {
  std::map<std::string, std::size_t> votes;
  for (const HostResult& host : hosts)
    if (const std::string value = get(host); !value.empty()) ++votes[value];
  const auto most =
      std::ranges::max_element(votes, {}, [](const auto& vote) { return vote.second; });
  return most == votes.end() ? "" : most->first;
}

/// Findings without a verdict, one for each host.
inline std::vector<Finding> blank(const std::vector<HostResult>& hosts, const char* check) {
  return std::vector<Finding>(hosts.size(), Finding{check, Verdict::none, "", ""});
}

/// The value that most hosts of a site have, and these hosts. Sites are separate jobs, so hosts of
/// different sites may differ.
class Usual {
 public:
  /// `get` returns the value of a host; "" = it has none.
  template <class Get>
  Usual(const std::vector<HostResult>& hosts, Get get) {
    std::map<std::string, std::map<std::string, std::vector<std::string>>> votes;
    for (const HostResult& host : hosts)
      if (const std::string value = get(host); !value.empty())
        votes[host.site][value].push_back(host.host);
    for (auto& [site, values] : votes) {
      const auto most =
          std::ranges::max_element(values, {}, [](const auto& vote) { return vote.second.size(); });
      sites_[site] = {most->first, std::move(most->second)};
    }
  }

  /// "" if no host of the site has a value.
  std::string value(const HostResult& host) const {
    const auto found = sites_.find(host.site);
    return found == sites_.end() ? "" : found->second.value;
  }
  /// "h[01-03]"
  std::string hosts(const HostResult& host) const {
    const auto found = sites_.find(host.site);
    return found == sites_.end() ? "" : config::fold_host_names(found->second.hosts);
  }
  /// Whether the host has a value, and another one than most.
  bool differs(const HostResult& host, const std::string& own) const {
    return !own.empty() && own != value(host);
  }

 private:
  struct Most {
    std::string value;
    std::vector<std::string> hosts;
  };
  std::map<std::string, Most> sites_;
};

}  // namespace sortie::launcher::check
