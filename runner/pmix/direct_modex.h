// Requests of other hosts for data of this host's ranks (direct modex). libpmix does not report a
// rank's later commits and returns what the rank has committed so far: an answer without the
// requested key would be "not found" for the requester. So the key is looked up repeatedly until it
// exists, the requester's PMIX_TIMEOUT has passed, or the rank has finalized. Pure state: each
// function returns the next steps.
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

  /// Look up the request's key in what its rank has committed; report the result to on_looked().
  struct Look {
    std::uint64_t id = 0;
    std::uint32_t rank = 0;
    std::string key;
  };
  /// Fetch everything that the rank has committed, as soon as it has; report the result to
  /// on_fetched().
  struct Fetch {
    std::uint64_t id = 0;
    std::uint32_t rank = 0;
  };
  struct Steps {
    std::vector<Look> look;
    std::vector<Fetch> fetch;
    std::vector<wire::PmixModexReply> reply;
  };

  /// Adds a request. No-op for a known one (sent again over a new connection).
  Steps ask(const wire::PmixModexRequest& request, Time now);
  Steps on_looked(std::uint64_t id, bool found, Time now);
  Steps on_fetched(std::uint64_t id, std::int32_t status, std::string data);
  /// The rank has called PMIx_Finalize: it commits nothing more until it is initialised again.
  Steps on_finalized(std::uint32_t rank, Time now);
  void on_connected(std::uint32_t rank) { finalized_.erase(rank); }

  /// When to call due(); nullopt if nothing is scheduled.
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
      first_fetch,  // libpmix answers after the rank's first commit
      pausing,      // until `again`
      last_fetch,   // its result is the answer
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
