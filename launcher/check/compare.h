// Comparing hosts with each other: the value that most of them have.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/config/hostlist.h"
#include "launcher/check/evaluate.h"

namespace sortie::launcher::check {

/// Findings without a verdict, one for each host.
inline std::vector<Finding> blank(const std::vector<HostResult>& hosts, const char* check) {
  return std::vector<Finding>(hosts.size(), Finding{check, Verdict::none, "", ""});
}

/// The value that most hosts have, among equally common ones the alphabetically first, and these
/// hosts.
class Usual {
 public:
  /// Sites are separate jobs, so hosts of different sites may differ in what one job needs alike.
  enum class Among { site, all };

  /// `get` returns the value of a host; "" = it has none.
  template <class Get>
  Usual(const std::vector<HostResult>& hosts, Get get, Among among = Among::site) : among_(among) {
    std::map<std::string, std::map<std::string, std::vector<std::string>>> votes;
    for (const HostResult& host : hosts)
      if (const std::string value = get(host); !value.empty())
        votes[group_of(host)][value].push_back(host.host);
    for (auto& [group, values] : votes) {
      const auto most =
          std::ranges::max_element(values, {}, [](const auto& vote) { return vote.second.size(); });
      groups_[group] = {most->first, std::move(most->second)};
    }
  }

  /// "" if none of the hosts that `host` is compared with has a value.
  std::string value(const HostResult& host) const {
    const auto found = groups_.find(group_of(host));
    return found == groups_.end() ? "" : found->second.value;
  }
  /// "h[01-03]"
  std::string hosts(const HostResult& host) const {
    const auto found = groups_.find(group_of(host));
    return found == groups_.end() ? "" : config::fold_host_names(found->second.hosts);
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
  std::string group_of(const HostResult& host) const {
    return among_ == Among::site ? host.site : "";
  }

  const Among among_;
  std::map<std::string, Most> groups_;
};

}  // namespace sortie::launcher::check
