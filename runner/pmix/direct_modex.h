// What other hosts ask of the ranks of this one (direct modex). libpmix has no word of a rank's
// second commit, and hands out what the rank has committed so far: an answer without the key that
// was asked for would be "not found" at the asker. So the key is looked for until it is there,
// until the asker's PMIX_TIMEOUT has passed, or until the rank has finalized. Pure state: says what
// is to be done next.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/wire/message.h"

namespace sortie::runner {

class DirectModex {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The key of a request is to be looked for in what its rank has committed: on_looked().
  struct Look {
    std::uint64_t id = 0;
    std::uint32_t rank = 0;
    std::string key;
  };
  /// All that the rank has committed is to be fetched, as soon as it has: on_fetched().
  struct Fetch {
    std::uint64_t id = 0;
    std::uint32_t rank = 0;
  };
  struct Steps {
    std::vector<Look> look;
    std::vector<Fetch> fetch;
    std::vector<wire::PmixModexReply> reply;
  };

  /// A request that is known already (asked again over a new connection) changes nothing.
  Steps ask(const wire::PmixModexRequest& request, Time now);
  Steps on_looked(std::uint64_t id, bool found, Time now);
  Steps on_fetched(std::uint64_t id, std::int32_t status, std::string data);
  /// The rank has called PMIx_Finalize: it commits nothing more, until it has initialised again.
  Steps on_finalized(std::uint32_t rank, Time now);
  void on_connected(std::uint32_t rank) { finalized_.erase(rank); }

  /// When due() has something to do.
  std::optional<Time> next() const;
  Steps due(Time now);

  static constexpr std::chrono::milliseconds kFirstPause{2}, kLongestPause{200};

 private:
  struct Asked {
    std::uint32_t rank = 0;
    std::string key;
    std::optional<Time> deadline;
    enum class State : std::uint8_t {
      looking,
      first_fetch,  // held by libpmix until the rank's first commit
      pausing,      // until `again`
      last_fetch,   // what it brings is the answer
    } state = State::looking;
    bool has_committed = false;
    Time again;
    std::chrono::milliseconds pause{kFirstPause};
  };
  using Requests = std::map<std::uint64_t, Asked>;
  void answer(Steps& steps, Requests::iterator request, std::int32_t status, std::string data = {});
  void look(Steps& steps, Requests::iterator request);
  void fetch(Steps& steps, Requests::iterator request, Asked::State state);

  Requests requests_;
  std::set<std::pair<Time, std::uint64_t>> timers_;  // deadlines and pauses
  std::set<std::uint32_t> finalized_;
};

}  // namespace sortie::runner
