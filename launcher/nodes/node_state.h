// State of faulty hosts: which hosts are cordoned by which user, when and why, and the breaker that
// stops runs from cordoning too many. Pure; node_store.h stores it in a file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

/// A cordoned host: no run of this user starts on it.
struct Cordon {
  std::string host;  // name in configs
  std::string reason;
  std::string by;            // "ana@bastion"
  std::string run;           // the run that cordoned it; empty = a person did
  double time = 0;           // seconds since 1970
  std::uint32_t blames = 0;  // failures of that run attributed to the host
  bool operator==(const Cordon&) const = default;
};

/// Failures of one run attributed to a host; the fields describe the latest.
struct Blame {
  std::string host;
  std::string run;
  std::string failure;      // class as in failure_class_name()
  std::string cause;        // one line
  std::uint32_t times = 0;  // number in that run
  double time = 0;          // of the latest; seconds since 1970
  bool operator==(const Blame&) const = default;
};

/// Time for which blames are kept, and upper limit of recovery.blame_window.
inline constexpr double kBlamesKeptSeconds = 90 * 86400.0;

/// Cordons by runs within this time count towards the breaker.
inline constexpr double kBreakerWindowSeconds = 600;

struct NodeState {
  std::vector<Cordon> cordons;         // sorted by host
  std::vector<double> recent;          // times of cordons by runs; seconds since 1970
  std::set<std::string> seen;          // hosts of runs that have cordoned a host
  std::optional<double> breaker_open;  // time of opening; nullopt = closed
  std::vector<Blame> blames;           // sorted by host, then time; one per run and host
  bool operator==(const NodeState&) const = default;

  const Cordon* find(std::string_view host) const;
  std::set<std::string> hosts() const;
  /// Blames of a host since `since`, oldest first.
  std::vector<Blame> blames_of(std::string_view host, double since) const;
};

/// Number of hosts that runs may cordon within kBreakerWindowSeconds: the larger of 2 and a tenth
/// of NodeState::seen.
std::size_t most_cordons(const NodeState& state);

/// Cordons a host on behalf of a person, regardless of the breaker. If it is cordoned already,
/// replaces the reason.
void cordon(NodeState& state, const Cordon& cordon);
/// Returns whether the host was cordoned. Removes its blames: the user considers it healthy.
bool uncordon(NodeState& state, std::string_view host);

enum class RunCordon {
  done,
  there_already,
  breaker_open,  // limit reached: not cordoned; the breaker is now open
};
/// Cordons a host on behalf of a run, at `cordon.time`. `hosts`: all hosts that the run knows,
/// including spares.
RunCordon cordon_by_run(NodeState& state, const Cordon& cordon,
                        const std::vector<std::string>& hosts);

/// Replaces the blames of a run against the hosts in `blames` (`times` 0: removes them), and drops
/// old blames.
void note_blames(NodeState& state, const std::string& run, const std::vector<Blame>& blames,
                 double now);
/// Returns the hosts blamed by at least `runs` runs within `window` seconds; none if `runs` is 0.
std::set<std::string> chronic_hosts(const NodeState& state, std::int64_t runs, double window,
                                    double now);
/// Text about the blames of one host: "blamed by 3 runs within 14d: hang, software (2 times); last
/// 3h02m ago: rank 3 ...".
std::string blames_text(const std::vector<Blame>& blames, double window, double now);

/// Content of the file: {"schema": "sortie/nodes/1", "cordoned": [...], "breaker": {...}, ...}.
nlohmann::ordered_json to_json(const NodeState& state);
/// ErrorCode::data if the text is malformed or has another schema.
Result<NodeState> parse_node_state(std::string_view text);

/// Returns "by ana@bastion 3h02m ago: disk errors"; printable.
std::string cordon_text(const Cordon& cordon, double now);

}  // namespace sortie::launcher
