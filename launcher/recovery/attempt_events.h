// The events of events.jsonl about attempts: one definition for those who write and who read them.
// launcher/view/README.md lists their members. Readers take what is missing or of another type for
// unknown.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "launcher/recovery/decide.h"

namespace sortie::launcher {

/// `attempt`: ranks are about to be started.
struct AttemptBegin {
  std::uint32_t attempt = 1;
  std::vector<std::string> hosts;  // in rank order
  std::size_t ranks = 0;
};
nlohmann::ordered_json event_fields(const AttemptBegin& begin);
AttemptBegin read_attempt_begin(const nlohmann::json& event);

/// `resumed`: where the training of an attempt goes on, as its trainer says.
struct AttemptResumed {
  std::uint32_t attempt = 1;
  std::string from;        // "memory" of the hosts, "disk", or "start": nothing was loaded
  std::uint64_t step = 0;  // steps done before
  std::string path;        // of the checkpoint on the disk
  std::optional<std::uint64_t> lost_steps;  // done before and to be done again; none = not known
};
nlohmann::ordered_json event_fields(const AttemptResumed& resumed);
AttemptResumed read_attempt_resumed(const nlohmann::json& event);

/// `attempt_end`.
nlohmann::ordered_json event_fields(const AttemptEnd& end);
AttemptEnd read_attempt_end(const nlohmann::json& event);

/// `decision`: what was decided after an attempt.
struct DecisionMade {
  std::uint32_t attempt = 1;  // that had ended
  Decision decision;
};
nlohmann::ordered_json event_fields(const DecisionMade& made);
DecisionMade read_decision(const nlohmann::json& event);

}  // namespace sortie::launcher
