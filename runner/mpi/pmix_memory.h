// What sortie-pmix has asked of the launcher and not been answered: over a new connection the
// launcher, the same or another one, is asked again. Of the fences that were answered the last few
// are kept too, because other hosts may still wait for theirs; and the names that ranks of this
// host have published, because the table of them was the launcher's. Pure state.
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
  /// On its way to the launcher.
  void asked(const wire::Message& message);
  /// From the launcher; false when sortie-pmix has had this answer before.
  bool answered(const wire::Message& message);
  /// For the launcher that was asked already, in order.
  std::vector<wire::Message> unanswered() const;
  /// For another launcher: the same, after what was published; `rank` is one of this host.
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
