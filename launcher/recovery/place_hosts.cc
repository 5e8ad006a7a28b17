#include "launcher/recovery/place_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "launcher/recovery/grow_hosts.h"

namespace sortie::launcher {
namespace {

/// The machine on which sortie runs. It is never cordoned: every run of this user needs it.
constexpr std::string_view kThisMachine = "localhost";

using Names = std::vector<std::string>;

class Placing {
 public:
  Placing(const config::RecoveryConfig& recovery, const std::vector<AttemptEnd>& history,
          const HostPool& pool)
      : recovery_(recovery),
        history_(history),
        pool_(pool),
        slow_(slow_hosts_of(history)),
        hosts_(pool.hosts) {}

  Placement place() {
    find_leavers();
    replace(must_go_);
    replace(ought_to_go_);
    replace(may_go_);
    for (const std::string& host : may_go_)
      changes_.push_back(fmt::format("{} is slow, but no spare is left: it stays", host));
    Placement out;
    if (!drop()) {
      out.text = fmt::format(
          "{} can not be used, no spare is left for {}, and recovery.min_hosts = {} does not allow "
          "the run to continue without",
          fmt::join(must_go_, ", "), must_go_.size() == 1 ? "it" : "them", recovery_.min_hosts);
      return out;
    }
    take_in();
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
    return blames_left(history_, host, pool_.forgiven) >= kBlamesOfASickHost;
  }

  /// Blamed often enough in this run, or blamed in several runs.
  bool ought_to_go(const std::string& host) const {
    return is_sick(host) || pool_.chronic.contains(host);
  }

  bool is_broken(const std::string& host) const {
    return history_.back().broken && history_.back().blamed_host == host;
  }

  bool is_unusable(const std::string& host) const {
    const AttemptEnd& last = history_.back();
    // A failure before the ranks ran means that the host did not answer.
    const bool not_set_up = last.failure == FailureClass::setup && last.blamed_host == host;
    if (pool_.fit.contains(host)) return false;
    return last.unusable_hosts.contains(host) || not_set_up;
  }

  void find_leavers() {
    for (const std::string& host : hosts_) {
      if (is_unusable(host) || pool_.cordoned.contains(host))
        must_go_.push_back(host);
      else if (ought_to_go(host))
        ought_to_go_.push_back(host);
      else if (history_.back().slow_hosts.contains(host))
        may_go_.push_back(host);
    }
  }

  std::string why(const std::string& host) const {
    if (is_unusable(host)) return "can not be used";
    if (pool_.cordoned.contains(host)) return "is cordoned";
    if (is_sick(host)) return "was blamed twice";
    return pool_.chronic.contains(host) ? "was blamed in several runs" : "is slow";
  }

  bool may_join(const std::string& host) const {
    return !pool_.cordoned.contains(host) && !is_unusable(host) && !ought_to_go(host) &&
           !slow_.contains(host) && !holds(hosts_, host) && !holds(pool_.hosts, host);
  }

  /// Spares, and, if grow_at allows it, hosts of the job that are fit again.
  Names joiners() const {
    Names out;
    for (const std::string& spare : pool_.spares)
      if (may_join(spare)) out.push_back(spare);
    if (recovery_.grow_at == "never") return out;
    for (const std::string& host : pool_.places)
      if (pool_.fit.contains(host) && !holds(out, host) && may_join(host)) out.push_back(host);
    return out;
  }

  /// Replaces `leavers` by spares. Hosts without a spare stay in the list.
  void replace(Names& leavers) {
    std::erase_if(leavers, [&](const std::string& host) {
      const Names free = joiners();
      const auto spare = std::ranges::find_if(
          free, [&](const std::string& name) { return fits_place(pool_, name, host); });
      if (spare == free.end()) return false;
      *std::ranges::find(hosts_, host) = *spare;
      replaced_[*spare] = host;
      changes_.push_back(fmt::format("{} {}: {}{} takes its place", host, why(host),
                                     holds(pool_.spares, *spare) ? "spare " : "", *spare));
      return true;
    });
  }

  /// Replaces the names of spares by the names of the hosts whose places and slots they take.
  Names places_of(Names hosts) const {
    for (std::string& host : hosts)
      if (const auto place = replaced_.find(host); place != replaced_.end()) host = place->second;
    return hosts;
  }

  /// Returns `hosts_` without `leavers`, and without as many of the last hosts as it takes to make
  /// the job legal. Empty if fewer than min_hosts hosts remain.
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

  /// Returns false if a host must leave and the job can not continue without it.
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
        changes_.push_back(fmt::format("{} {}, but no spare is left and the run needs it: it stays",
                                       host, why(host)));
    if (left.empty()) return true;
    for (const std::string& host : all)
      changes_.push_back(fmt::format("{} {} and no spare is left", host, why(host)));
    changes_.push_back(fmt::format("{} of {} hosts continue", left.size(), hosts_.size()));
    hosts_ = std::move(left);
    return true;
  }

  void take_in() {
    if (recovery_.grow_at == "never") return;
    Growth growth = grow_hosts(pool_, places_of(hosts_), hosts_, joiners());
    if (growth.joined.empty()) return;
    for (const auto& [host, place] : growth.joined) {
      const bool is_spare = holds(pool_.spares, host);
      changes_.push_back(fmt::format("{}{} is fit and takes part{}", is_spare ? "spare " : "", host,
                                     is_spare ? "" : " again"));
      if (host != place) replaced_[host] = place;
    }
    hosts_ = std::move(growth.hosts);
    changes_.push_back(fmt::format("{} of {} hosts continue", hosts_.size(), pool_.places.size()));
  }

  Names to_cordon() const {
    Names out;
    if (!recovery_.cordon || pool_.breaker_open) return out;
    for (const std::string& host : pool_.hosts)
      if ((ought_to_go(host) || is_broken(host)) && !holds(hosts_, host) &&
          !pool_.cordoned.contains(host) && host != kThisMachine)
        out.push_back(host);
    return out;
  }

  const config::RecoveryConfig& recovery_;
  const std::vector<AttemptEnd>& history_;
  const HostPool& pool_;
  const std::set<std::string> slow_;  // hosts that have left or will leave
  Names hosts_, must_go_, ought_to_go_, may_go_;
  std::map<std::string, std::string> replaced_;
  std::vector<std::string> changes_;
};

/// The placement as if the running attempt had ended with a planned restart, with nothing wrong
/// except slow hosts.
Placement place_now(const config::RecoveryConfig& recovery, std::vector<AttemptEnd> history,
                    const HostPool& pool, std::set<std::string> slow_hosts) {
  AttemptEnd end;
  end.failure = FailureClass::planned;
  end.slow_hosts = std::move(slow_hosts);
  history.push_back(std::move(end));
  return place_hosts(recovery, history, pool);
}

}  // namespace

std::vector<std::string> broken_hosts(const config::RecoveryConfig& recovery,
                                      const std::vector<AttemptEnd>& history,
                                      const HostPool& pool) {
  const AttemptEnd& last = history.back();
  const bool may = recovery.cordon && !pool.breaker_open && last.blamed_host != kThisMachine &&
                   !pool.cordoned.contains(last.blamed_host);
  if (!last.broken || !may) return {};
  return {last.blamed_host};
}

Placement place_hosts(const config::RecoveryConfig& recovery,
                      const std::vector<AttemptEnd>& history, const HostPool& pool) {
  return Placing(recovery, history, pool).place();
}

std::optional<Placement> larger(const config::RecoveryConfig& recovery,
                                const std::vector<AttemptEnd>& history, const HostPool& pool) {
  Placement placement = place_now(recovery, history, pool, {});
  if (placement.hosts.size() <= pool.hosts.size()) return std::nullopt;
  return placement;
}

std::optional<std::string> swap_for_slow(const config::RecoveryConfig& recovery,
                                         const std::vector<AttemptEnd>& history,
                                         const HostPool& pool, const std::set<std::string>& leaving,
                                         const std::string& host) {
  std::set<std::string> slow = slow_hosts_of(history);
  slow.insert(leaving.begin(), leaving.end());
  if (slow.contains(host) || static_cast<std::int64_t>(slow.size()) >= recovery.slow_swaps)
    return std::nullopt;
  std::set<std::string> leave_now = leaving;
  leave_now.insert(host);
  const Placement placement = place_now(recovery, history, pool, std::move(leave_now));
  for (const auto& [spare, place] : placement.replaced)
    if (place == host) return spare;
  return std::nullopt;
}

}  // namespace sortie::launcher
