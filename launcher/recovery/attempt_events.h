// Events of events.jsonl about attempts: one definition for writers and readers.
// launcher/view/README.md lists their fields. Readers treat a field that is missing or has another
// type as unknown.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/recovery/decide.h"

namespace sortie::launcher {

/// Event `attempt`: the launcher is about to start the ranks.
struct AttemptBegin {
  std::uint32_t attempt = 1;
  std::vector<std::string> hosts;  // in rank order
  std::size_t ranks = 0;
};
nlohmann::ordered_json event_fields(const AttemptBegin& begin);
AttemptBegin read_attempt_begin(const nlohmann::json& event);

/// Event `resumed`: where the training of an attempt resumes, as its trainer reports it.
struct AttemptResumed {
  std::uint32_t attempt = 1;
  std::string from;        // "memory" of the hosts, "disk", or "start" if nothing was loaded
  std::uint64_t step = 0;  // number of steps already done
  std::string path;        // of the checkpoint on disk
  std::optional<std::uint64_t> lost_steps;  // done earlier, must be repeated; nullopt = unknown
};
nlohmann::ordered_json event_fields(const AttemptResumed& resumed);
AttemptResumed read_attempt_resumed(const nlohmann::json& event);

/// Event `attempt_end`.
nlohmann::ordered_json event_fields(const AttemptEnd& end);
AttemptEnd read_attempt_end(const nlohmann::json& event);

/// Event `decision`: the decision made after an attempt.
struct DecisionMade {
  std::uint32_t attempt = 1;  // the attempt that ended
  Decision decision;
};
nlohmann::ordered_json event_fields(const DecisionMade& made);
DecisionMade read_decision(const nlohmann::json& event);

}  // namespace sortie::launcher
