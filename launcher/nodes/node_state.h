// What is known of sick hosts: who cordoned which one, when and why, and the breaker that stops
// runs from cordoning too many. Pure; node_store.h keeps it in a file.
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

/// A host that no run of this user starts on.
struct Cordon {
  std::string host;  // as configs name it
  std::string reason;
  std::string by;            // "ana@bastion"
  std::string run;           // that did it by itself; empty = a person did
  double time = 0;           // seconds since 1970
  std::uint32_t blames = 0;  // failures of that run that spoke against the host
  bool operator==(const Cordon&) const = default;
};

/// What failures of one run say against a host: its last blame there.
struct Blame {
  std::string host;
  std::string run;
  std::string failure;      // class, as failure_class_name has it
  std::string cause;        // a line
  std::uint32_t times = 0;  // in that run
  double time = 0;          // of the last one; seconds since 1970
  bool operator==(const Blame&) const = default;
};

/// How long blames are kept, whatever recovery.blame_window is; it can not be longer.
inline constexpr double kBlamesKeptSeconds = 90 * 86400.0;

/// Cordons by runs within this time count for the breaker.
inline constexpr double kBreakerWindowSeconds = 600;

struct NodeState {
  std::vector<Cordon> cordons;         // by name of the host
  std::vector<double> recent;          // when runs cordoned a host; seconds since 1970
  std::set<std::string> seen;          // hosts of runs that cordoned one
  std::optional<double> breaker_open;  // since when; none = closed
  std::vector<Blame> blames;           // by host, then by time; one for each run and host
  bool operator==(const NodeState&) const = default;

  const Cordon* find(std::string_view host) const;
  std::set<std::string> hosts() const;
  /// Of a host, not before `since`; the newest last.
  std::vector<Blame> blames_of(std::string_view host, double since) const;
};

/// How many hosts runs may cordon within kBreakerWindowSeconds: 2, or a tenth of those that were
/// ever seen.
std::size_t most_cordons(const NodeState& state);

/// By a person: always. A host that is cordoned already gets the new reason.
void cordon(NodeState& state, const Cordon& cordon);
/// Whether it was cordoned. Its blames are forgotten: somebody says that it is well.
bool uncordon(NodeState& state, std::string_view host);

enum class RunCordon {
  done,
  there_already,
  breaker_open,  // one too many: not done; the breaker is open from now on
};
/// By a run, at `cordon.time`. `hosts`: all that the run knows, spares too.
RunCordon cordon_by_run(NodeState& state, const Cordon& cordon,
                        const std::vector<std::string>& hosts);

/// Takes what a run has against hosts in the place of what it had against the same ones before
/// (`times` 0: nothing any more), and forgets old blames.
void note_blames(NodeState& state, const std::string& run, const std::vector<Blame>& blames,
                 double now);
/// Hosts that `runs` runs within `window` seconds blame; none for 0 runs.
std::set<std::string> chronic_hosts(const NodeState& state, std::int64_t runs, double window,
                                    double now);
/// "blamed by 3 runs within 14d: hang, software (2 times); last 3h02m ago: rank 3 ..."; of one
/// host.
std::string blames_text(const std::vector<Blame>& blames, double window, double now);

/// The file: {"schema": "sortie/nodes/1", "cordoned": [...], "breaker": {...}, ...}.
nlohmann::ordered_json to_json(const NodeState& state);
/// ErrorCode::data for text that is not of this form or of a later version.
Result<NodeState> parse_node_state(std::string_view text);

/// "by ana@bastion 3h02m ago: disk errors"; printable.
std::string cordon_text(const Cordon& cordon, double now);

}  // namespace sortie::launcher
