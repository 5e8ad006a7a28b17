// Messages between the leaders of a site and the coordinator (in the launcher's supervisor): JSON
// objects of type "outer", one per line. Questions go to SORTIE_SOCKET, answers come from it
// (wire::RankAnswer).
//
// A part is the share of the model that one leader of each site holds. With tensor or pipeline
// parallelism each rank of the first replica leads a part; parts with the same number are the same
// weights on all sites. Every leader asks for itself. The coordinator answers a site when all of
// its parts have asked. The number of a question grows with each question of a leader. A leader
// repeats a question, with the same number, until it is answered; the answer has that number. The
// coordinator answers a repeated question as it did before.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "common/base/result.h"

namespace sortie::training {

/// Prefix of the address of a leader that is reached through the launcher.
inline constexpr std::string_view kThroughLauncher = "launcher/";

/// First question of a leader, also after it has lost its state: its identity and its state.
struct OuterJoin {
  std::string site;
  std::int64_t part = 0, parts = 1;
  std::int64_t round = 0;     // number of rounds in its outer weights
  std::uint64_t hash = 0;     // XXH3 of its outer weights and momentum
  bool fresh = false;         // initial weights, no checkpoint
  std::int64_t position = 0;  // samples of the data that all sites together have consumed
  std::int64_t elements = 0;  // number of weights in the part
  /// Address on which it listens, numeric: "10.0.0.1:40000". Through the launcher
  /// "launcher/HOST:40000", where HOST is the launcher's name for the host. Empty = none.
  std::string address;
  std::int64_t steps_in_vain = 0;  // inner steps since it was last a member that are in no round
  /// The work of the round after `round`, if the site was stopped in that round: the coordinator
  /// grants it again if the run still has this state. 0 steps = none.
  std::int64_t work_steps = 0, first_sample = 0;
};
/// Start from the own state if `donors` is empty; else fetch that of `round` from one of `donors`,
/// tried in this order. `over`: training ended at that round, and no site is running any more.
struct OuterJoined {
  std::int64_t round = 0;
  std::vector<std::string> donors{};
  bool over = false;
};

/// Sent before the inner steps of a round. `step_seconds`: duration of an inner step; 0 = unknown.
struct OuterNext {
  std::int64_t round = 0;  // the round to begin: one more than it has
  double step_seconds = 0.0;
};
/// The work of a site in a round: `steps` inner steps on samples [first_sample, first_sample +
/// steps * batch) in the order of the data. No two sites get the same samples.
struct OuterWork {
  std::int64_t round = 0;
  std::int64_t steps = 0;
  std::int64_t batch = 0;  // samples per inner step of this site
  std::int64_t first_sample = 0;
};

/// The change of a fragment is ready to be exchanged. `abstains`: the change is unusable (not
/// finite, an outlier), for `reason`; the site applies the result of the others.
struct OuterReady {
  std::int64_t round = 0, fragment = 0;
  std::int64_t tokens = 0;  // on which the change was trained
  bool abstains = false;
  std::string reason;
};
struct OuterMember {
  std::string site;
  std::string address;  // of the leader of the same part; empty = through the launcher
  double weight = 0.0;  // of its change in the mean; 0 = abstains. The weights sum up to 1
};
/// Exchange the change with these members, in this order. `epoch` grows with each such order;
/// messages of an earlier epoch are dropped. `key`: 32 bytes in hexadecimal, for this epoch's
/// links.
struct OuterExchange {
  std::int64_t round = 0, fragment = 0;
  std::uint64_t epoch = 0;
  std::vector<OuterMember> members;
  std::string key;
};

/// Result of the exchange at this leader. `hash`: XXH3 of the mean; must be equal on all members.
struct OuterVote {
  std::int64_t round = 0, fragment = 0;
  std::uint64_t epoch = 0;
  bool done = false;
  std::uint64_t hash = 0;
  std::string reason;   // why it failed
  std::string suspect;  // the site for which it waited; empty = none
};
/// `commit`: apply the result. The coordinator writes the decision to disk before it sends it. If
/// false, keep the change and send OuterReady again.
struct OuterDecision {
  std::int64_t round = 0, fragment = 0;
  std::uint64_t epoch = 0;
  bool commit = false;
  std::string reason;
};

/// A site leaves in good order. Has no answer.
struct OuterLeave {
  std::string reason;
};
/// Unsolicited, with number 0: the exchange of this epoch can not complete (a member is gone).
struct OuterAbort {
  std::uint64_t epoch = 0;
  std::string reason;
};
/// Answer to any question: it can not be granted, and repeating it does not help. It may follow
/// another answer to the same question and then revokes it, because the run has continued without
/// the site. So the site learns of that before its next question, and does no more steps in vain.
/// With number 0 it answers the last question (sent by another supervisor).
struct OuterRefused {
  std::string reason;
};

using OuterQuestion = std::variant<OuterJoin, OuterNext, OuterReady, OuterVote, OuterLeave>;
using OuterAnswer =
    std::variant<OuterJoined, OuterWork, OuterExchange, OuterDecision, OuterAbort, OuterRefused>;

/// {"type":"outer","number":7,"do":"next", members...}; 64-bit hashes are strings of hexadecimal
/// digits. The parsers fail with ErrorCode::protocol for input that is malformed, out of range or
/// not finite.
nlohmann::json to_json(const OuterQuestion& question, std::uint64_t number);
nlohmann::json to_json(const OuterAnswer& answer, std::uint64_t number);
struct NumberedQuestion {
  std::uint64_t number = 0;
  OuterQuestion question;
};
struct NumberedAnswer {
  std::uint64_t number = 0;
  OuterAnswer answer;
};
Result<NumberedQuestion> parse_outer_question(const nlohmann::json& object);
Result<NumberedAnswer> parse_outer_answer(const nlohmann::json& object);

}  // namespace sortie::training
