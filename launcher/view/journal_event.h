// The vocabulary of events.jsonl: one JSON object a line, {"schema":"sortie/events/1","time":
// seconds since 1970,"event":NAME, ...}. README.md lists the members of each.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace sortie::launcher {

enum class JournalEvent {
  begin,
  connected,
  staged,
  image,
  ready,
  master,
  started,
  rank_started,
  rank_exited,
  notice,
  cause,
  stop,
  host_failed,
  host_lost,
  link_lost,
  link_restored,
  event_refused,
  metrics_dropped,
  not_ended,
  swept,
  unconfirmed,
  adopted,
  end,
};

inline constexpr std::array<std::pair<std::string_view, JournalEvent>, 23> kJournalEvents = {{
    {"begin", JournalEvent::begin},
    {"connected", JournalEvent::connected},
    {"staged", JournalEvent::staged},
    {"image", JournalEvent::image},
    {"ready", JournalEvent::ready},
    {"master", JournalEvent::master},
    {"started", JournalEvent::started},
    {"rank_started", JournalEvent::rank_started},
    {"rank_exited", JournalEvent::rank_exited},
    {"notice", JournalEvent::notice},
    {"cause", JournalEvent::cause},
    {"stop", JournalEvent::stop},
    {"host_failed", JournalEvent::host_failed},
    {"host_lost", JournalEvent::host_lost},
    {"link_lost", JournalEvent::link_lost},
    {"link_restored", JournalEvent::link_restored},
    {"event_refused", JournalEvent::event_refused},
    {"metrics_dropped", JournalEvent::metrics_dropped},
    {"not_ended", JournalEvent::not_ended},
    {"swept", JournalEvent::swept},
    {"unconfirmed", JournalEvent::unconfirmed},
    {"adopted", JournalEvent::adopted},
    {"end", JournalEvent::end},
}};

/// Nothing for a name of another version.
constexpr std::optional<JournalEvent> journal_event(std::string_view name) {
  for (const auto& [known, event] : kJournalEvents)
    if (known == name) return event;
  return std::nullopt;
}

}  // namespace sortie::launcher
