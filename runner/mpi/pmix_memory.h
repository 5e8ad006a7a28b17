// Requests of sortie-pmix that the launcher has not answered: they are sent again over a new
// connection to the same or another launcher. Also keeps the last few answered fences, because
// other hosts may still wait for theirs, and the names that ranks of this host have published,
// because the launcher held their table. Pure state.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/wire/message.h"

namespace sortie::runner {

class PmixMemory {
 public:
  /// Records a message that is sent to the launcher.
  void asked(const wire::Message& message);
  /// Records an answer of the launcher. Returns false if sortie-pmix has already received it.
  bool answered(const wire::Message& message);
  /// Messages for the same launcher: the unanswered requests, in order.
  std::vector<wire::Message> unanswered() const;
  /// Messages for another launcher: the published names first, then the answered fences and the
  /// unanswered requests. `rank` is any rank of this host.
  std::vector<wire::Message> open(std::uint32_t rank) const;

 private:
  void add_unanswered(std::vector<wire::Message>& out, bool with_answered_fences) const;
  std::map<std::string, wire::PmixFence> fences_;
  std::deque<wire::PmixFence> done_;
  std::size_t done_bytes_ = 0;
  std::map<std::uint64_t, wire::PmixModexRequest> requests_;
  std::vector<wire::PmixAbort> aborts_;
  struct Name {
    std::uint32_t rank = 0;
    std::string value;
  };
  void take(const wire::PmixNames& question, const wire::PmixNamesDone& answer);
  std::map<std::uint64_t, wire::PmixNames> questions_;
  std::map<std::string, Name> names_;
};

}  // namespace sortie::runner
