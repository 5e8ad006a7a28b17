// Coordinator: what a leader of a site asks the launcher's supervisor, which alone decides who
// takes part in a round and which rounds count (common/training/outer.h has the rules).
#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.h"
#include "common/training/outer.h"

namespace sortie::trainer::outer {

/// Each call blocks until it is answered; of one leader, used by one thread at a time.
/// ErrorCode::interrupted after cancel(), ErrorCode::config for a refusal, ErrorCode::lost
/// when nobody answers any more.
class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual Result<training::OuterJoined> join(const training::OuterJoin& join) = 0;
  virtual Result<training::OuterWork> next(const training::OuterNext& next) = 0;
  virtual Result<training::OuterExchange> ready(const training::OuterReady& ready) = 0;
  virtual Result<training::OuterDecision> vote(const training::OuterVote& vote) = 0;
  virtual void leave(const training::OuterLeave& leave) = 0;
  /// Whether the exchange of that epoch was called off. From any thread.
  virtual bool aborted(std::uint64_t epoch) = 0;
  /// Why the newest answer was taken back (OuterRefused): the run goes on without this site, which
  /// is to join again. Until the next call; empty = it holds. From any thread.
  virtual std::string left_out() = 0;
  /// Ends a call that waits, and all later ones. From any thread.
  virtual void cancel() = 0;
};

}  // namespace sortie::trainer::outer
