#include "launcher/recovery/place_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

namespace sortie::launcher {
namespace {

constexpr std::size_t kBlamesOfASickHost = 2;
/// The machine on which sortie runs: no other run could do without it.
constexpr std::string_view kThisMachine = "localhost";

using Names = std::vector<std::string>;

bool holds(const Names& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

class Placing {
 public:
  Placing(const config::RecoveryConfig& recovery, const std::vector<AttemptEnd>& history,
          const HostPool& pool)
      : recovery_(recovery), history_(history), pool_(pool), hosts_(pool.hosts) {}

  Placement place() {
    find_leavers();
    replace(must_go_);
    replace(ought_to_go_);
    Placement out;
    if (!drop()) {
      out.text = fmt::format(
          "{} can not be used, no spare is left for {}, and recovery.min_hosts = {} does not let "
          "the run go on without",
          fmt::join(must_go_, ", "), must_go_.size() == 1 ? "it" : "them", recovery_.min_hosts);
      return out;
    }
    out.cordon = to_cordon();
    for (const std::string& host : out.cordon)
      changes_.push_back(fmt::format("{} is cordoned", host));
    std::erase_if(replaced_, [&](const auto& entry) { return !holds(hosts_, entry.first); });
    out.replaced = std::move(replaced_);
    out.hosts = std::move(hosts_);
    out.text = fmt::format("{}", fmt::join(changes_, "; "));
    return out;
  }

 private:
  bool is_sick(const std::string& host) const {
    return blames_of(history_, host) >= kBlamesOfASickHost;
  }

  bool is_broken(const std::string& host) const {
    return history_.back().broken && history_.back().blamed_host == host;
  }

  bool is_unusable(const std::string& host) const {
    const AttemptEnd& last = history_.back();
    // Where it failed before its ranks ran, it is the host that did not answer.
    const bool not_set_up = last.failure == FailureClass::setup && last.blamed_host == host;
    return last.unusable_hosts.contains(host) || not_set_up;
  }

  void find_leavers() {
    for (const std::string& host : hosts_) {
      if (is_unusable(host) || pool_.cordoned.contains(host))
        must_go_.push_back(host);
      else if (is_sick(host))
        ought_to_go_.push_back(host);
    }
  }

  std::string why(const std::string& host) const {
    if (is_unusable(host)) return "can not be used";
    return pool_.cordoned.contains(host) ? "is cordoned" : "was blamed twice";
  }

  bool fits(const std::string& spare, const std::string& host) const {
    if (pool_.cordoned.contains(spare) || is_unusable(spare) || is_sick(spare) ||
        holds(hosts_, spare) || holds(pool_.hosts, spare))
      return false;
    const auto has = pool_.slots.find(spare), needs = pool_.slots.find(host);
    return has == pool_.slots.end() || needs == pool_.slots.end() || has->second >= needs->second;
  }

  /// Puts spares in the places of `leavers`; those without one stay in the list.
  void replace(Names& leavers) {
    std::erase_if(leavers, [&](const std::string& host) {
      const auto spare = std::ranges::find_if(
          pool_.spares, [&](const std::string& name) { return fits(name, host); });
      if (spare == pool_.spares.end()) return false;
      *std::ranges::find(hosts_, host) = *spare;
      replaced_[*spare] = host;
      changes_.push_back(fmt::format("{} {}: spare {} takes its place", host, why(host), *spare));
      return true;
    });
  }

  /// Spares under the names of the hosts whose places, and slots, they take.
  Names places_of(Names hosts) const {
    for (std::string& host : hosts)
      if (const auto place = replaced_.find(host); place != replaced_.end()) host = place->second;
    return hosts;
  }

  /// `hosts_` without `leavers`, and without as many of the last ones as makes the job legal; empty
  /// where that is too few.
  Names fewer(const Names& leavers) const {
    Names left;
    for (const std::string& host : hosts_)
      if (!holds(leavers, host)) left.push_back(host);
    if (recovery_.min_hosts == 0) return {};
    const auto least = static_cast<std::size_t>(recovery_.min_hosts);
    for (; left.size() >= least && !left.empty(); left.pop_back())
      if (!pool_.legal || pool_.legal(places_of(left))) return left;
    return {};
  }

  /// False where a host that has to go can not be done without.
  bool drop() {
    if (must_go_.empty() && ought_to_go_.empty()) return true;
    Names all = must_go_;
    all.insert(all.end(), ought_to_go_.begin(), ought_to_go_.end());
    Names left = fewer(all);
    if (left.empty() && !ought_to_go_.empty()) {
      all = must_go_;
      if (!must_go_.empty()) left = fewer(all);
    }
    if (left.empty() && !must_go_.empty()) return false;
    for (const std::string& host : ought_to_go_)
      if (left.empty() || holds(left, host))
        changes_.push_back(fmt::format(
            "{} was blamed twice, but no spare is left and the run needs it: it stays", host));
    if (left.empty()) return true;
    for (const std::string& host : all)
      changes_.push_back(fmt::format("{} {} and no spare is left", host, why(host)));
    changes_.push_back(fmt::format("{} of {} hosts go on", left.size(), hosts_.size()));
    hosts_ = std::move(left);
    return true;
  }

  Names to_cordon() const {
    Names out;
    if (!recovery_.cordon || pool_.breaker_open) return out;
    for (const std::string& host : pool_.hosts)
      if ((is_sick(host) || is_broken(host)) && !holds(hosts_, host) &&
          !pool_.cordoned.contains(host) && host != kThisMachine)
        out.push_back(host);
    return out;
  }

  const config::RecoveryConfig& recovery_;
  const std::vector<AttemptEnd>& history_;
  const HostPool& pool_;
  Names hosts_, must_go_, ought_to_go_;
  std::map<std::string, std::string> replaced_;
  std::vector<std::string> changes_;
};

}  // namespace

Placement place_hosts(const config::RecoveryConfig& recovery,
                      const std::vector<AttemptEnd>& history, const HostPool& pool) {
  return Placing(recovery, history, pool).place();
}

}  // namespace sortie::launcher
