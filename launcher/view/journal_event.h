// The names of the events of events.jsonl: one JSON object per line,
// {"schema":"sortie/events/1","time": seconds since 1970,"event":NAME, ...}. README.md lists the
// fields of each event.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace sortie::launcher {

enum class JournalEvent {
  begin,
  attempt,
  connected,
  staged,
  image,
  ready,
  tunnel,
  master,
  started,
  rank_started,
  rank_exited,
  notice,
  resumed,
  cause,
  stop,
  host_failed,
  host_lost,
  link_lost,
  link_restored,
  health,
  event_refused,
  metrics_dropped,
  not_ended,
  swept,
  unconfirmed,
  adopted,
  fault,
  hang,
  straggler,
  stalled,
  host_fit,
  planned,
  attempt_end,
  decision,
  site,
  round,
  end,
};

/// Names in the order of the enumeration.
inline constexpr std::array<std::string_view, 37> kJournalEvents = {
    "begin",         "attempt",         "connected",     "staged",
    "image",         "ready",           "tunnel",        "master",
    "started",       "rank_started",    "rank_exited",   "notice",
    "resumed",       "cause",           "stop",          "host_failed",
    "host_lost",     "link_lost",       "link_restored", "health",
    "event_refused", "metrics_dropped", "not_ended",     "swept",
    "unconfirmed",   "adopted",         "fault",         "hang",
    "straggler",     "stalled",         "host_fit",      "planned",
    "attempt_end",   "decision",        "site",          "round",
    "end",
};
static_assert(kJournalEvents.size() == static_cast<std::size_t>(JournalEvent::end) + 1);

constexpr std::string_view journal_event_name(JournalEvent event) {
  return kJournalEvents[static_cast<std::size_t>(event)];
}

/// Returns nullopt for an unknown name, as from another version.
constexpr std::optional<JournalEvent> journal_event(std::string_view name) {
  for (std::size_t i = 0; i < kJournalEvents.size(); ++i)
    if (kJournalEvents[i] == name) return static_cast<JournalEvent>(i);
  return std::nullopt;
}

}  // namespace sortie::launcher
