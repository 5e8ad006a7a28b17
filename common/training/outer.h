// What a site's leaders and the coordinator (the launcher's supervisor) say to each other: JSON
// objects of type "outer", one a line, to SORTIE_SOCKET and back from there (wire::RankAnswer).
//
// A part is what one leader of each site holds of the model: with tensor or pipeline parallelism
// each rank of the first replica leads a part; parts of the same number are the same weights on all
// sites. Every leader asks for itself; the coordinator answers a site when all of its parts have
// asked. A question has a number that grows with each question of a leader; it is repeated, with
// the same number, until it is answered, and an answer names it. The coordinator answers a repeated
// question as it did before.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "common/base/result.h"

namespace sortie::training {

/// Before the address of a leader that is reached through the launcher.
inline constexpr std::string_view kThroughLauncher = "launcher/";

/// First question of a leader, and after it has lost its state: who it is and what it has.
struct OuterJoin {
  std::string site;
  std::int64_t part = 0, parts = 1;
  std::int64_t round = 0;     // rounds that are in its outer weights
  std::uint64_t hash = 0;     // XXH3 of its outer weights and momentum
  bool fresh = false;         // initial weights, no checkpoint
  std::int64_t position = 0;  // samples of the data that all sites together have used up
  std::int64_t elements = 0;  // of the part
  /// Where it listens: "10.0.0.1:40000", numeric; "launcher/HOST:40000" by way of the launcher,
  /// HOST as that one calls it; empty = nowhere.
  std::string address;
  std::int64_t steps_in_vain = 0;  // since it was in: inner steps that are in no round
};
/// Begin from own state (`donors` is empty), or get that of `round` from one of `donors`, in their
/// order. `over`: training came to its end at that round, and no site is there any more.
struct OuterJoined {
  std::int64_t round = 0;
  std::vector<std::string> donors{};
  bool over = false;
};

/// Before the inner steps of a round. `step_seconds`: how long one takes there, 0 = not known.
struct OuterNext {
  std::int64_t round = 0;  // to begin; one more than it has
  double step_seconds = 0.0;
};
/// The work of a site in a round: so many inner steps, on samples [first_sample, first_sample +
/// steps x batch) of the data's order. Never the same samples for two sites.
struct OuterWork {
  std::int64_t round = 0;
  std::int64_t steps = 0;
  std::int64_t batch = 0;  // samples of an inner step of this site
  std::int64_t first_sample = 0;
};

/// The change of a fragment is there to be exchanged. `abstains`: it is not fit (not finite, an
/// outlier), `reason` says why; the site takes what the others come to.
struct OuterReady {
  std::int64_t round = 0, fragment = 0;
  std::int64_t tokens = 0;  // that the change was trained on
  bool abstains = false;
  std::string reason;
};
struct OuterMember {
  std::string site;
  std::string address;  // of the same part's leader; empty: through the launcher
  double weight = 0.0;  // of its change in the mean; 0: abstains. They sum up to 1
};
/// Exchange it with these, in this order. `epoch` grows with each order; what belongs to an earlier
/// one is dropped. `key`: 32 bytes in hexadecimal, for the links of this epoch.
struct OuterExchange {
  std::int64_t round = 0, fragment = 0;
  std::uint64_t epoch = 0;
  std::vector<OuterMember> members;
  std::string key;
};

/// How the exchange went here. `hash`: XXH3 of the mean; all members must have the same.
struct OuterVote {
  std::int64_t round = 0, fragment = 0;
  std::uint64_t epoch = 0;
  bool done = false;
  std::uint64_t hash = 0;
  std::string reason;   // why it is not done
  std::string suspect;  // the site that it waited for; empty = none
};
/// `commit`: apply it; on disk at the coordinator before it is said. Else the change is kept and
/// OuterReady asked again.
struct OuterDecision {
  std::int64_t round = 0, fragment = 0;
  std::uint64_t epoch = 0;
  bool commit = false;
  std::string reason;
};

/// A site leaves in order; no answer.
struct OuterLeave {
  std::string reason;
};
/// Unasked, number 0: the exchange of this epoch will not come to an end (a member is gone).
struct OuterAbort {
  std::uint64_t epoch = 0;
  std::string reason;
};
/// An answer to any question: it can not be granted, and asking again does not help. To one that is
/// answered already: what was granted is taken back, as the run has gone on without the site. So it
/// hears of that before it asks for anything, and does no more steps that come to nothing. Number
/// 0: whatever was asked last (of another supervisor).
struct OuterRefused {
  std::string reason;
};

using OuterQuestion = std::variant<OuterJoin, OuterNext, OuterReady, OuterVote, OuterLeave>;
using OuterAnswer =
    std::variant<OuterJoined, OuterWork, OuterExchange, OuterDecision, OuterAbort, OuterRefused>;

/// {"type":"outer","number":7,"do":"next", members...}; 64-bit hashes are strings of hexadecimal
/// digits. ErrorCode::protocol for what is malformed, out of range, or not finite.
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
