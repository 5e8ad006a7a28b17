// Coordinator: interface through which a leader of a site asks the launcher's supervisor. Only the
// supervisor decides which sites take part in a round and which rounds are committed
// (common/training/outer.h has the rules).
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "common/training/outer.h"

namespace sortie::trainer::outer {

/// Serves one leader. Questions (join, next, ready, vote) block until they are answered; one thread
/// at a time asks them. ErrorCode::interrupted after cancel(), ErrorCode::config for a refusal,
/// ErrorCode::lost if no answer can arrive any more.
class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual Result<training::OuterJoined> join(const training::OuterJoin& join) = 0;
  virtual Result<training::OuterWork> next(const training::OuterNext& next) = 0;
  virtual Result<training::OuterExchange> ready(const training::OuterReady& ready) = 0;
  virtual Result<training::OuterDecision> vote(const training::OuterVote& vote) = 0;
  virtual void leave(const training::OuterLeave& leave) = 0;
  /// Whether the exchange of that epoch was aborted. Thread-safe.
  virtual bool aborted(std::uint64_t epoch) = 0;
  /// Why the newest answer was revoked (OuterRefused): the run continues without this site, which
  /// must join again. Empty if it is valid. Cleared by the next question. Thread-safe.
  virtual std::string left_out() = 0;
  /// Ends a blocked call and all later ones. Thread-safe.
  virtual void cancel() = 0;
};

}  // namespace sortie::trainer::outer
