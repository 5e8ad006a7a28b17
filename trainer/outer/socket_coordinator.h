// SocketCoordinator: reaches the coordinator over a separate connection to SORTIE_SOCKET. The
// runner forwards questions to the launcher, and its answers back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "trainer/outer/coordinator.h"

namespace sortie::trainer::outer {

struct CoordinatorTimes {
  /// A question is repeated after `repeat`; the interval then doubles up to `most`.
  std::chrono::milliseconds repeat{1000}, most{5000};
  /// Time without an answer after which a warning is logged. A launcher may be gone for a while.
  std::chrono::milliseconds say{60000};
};

class SocketCoordinator : public Coordinator {
 public:
  /// ErrorCode::config if `socket_path` is no path of a socket. ErrorCode::lost if nothing listens
  /// there.
  static Result<std::unique_ptr<SocketCoordinator>> make(std::string socket_path,
                                                         CoordinatorTimes times = {});
  ~SocketCoordinator() override;

  /// Questions block as long as the runner lives, which ends the ranks when it gives up the
  /// launcher. ErrorCode::lost if the runner is gone.
  Result<training::OuterJoined> join(const training::OuterJoin& join) override;
  Result<training::OuterWork> next(const training::OuterNext& next) override;
  Result<training::OuterExchange> ready(const training::OuterReady& ready) override;
  Result<training::OuterDecision> vote(const training::OuterVote& vote) override;
  void leave(const training::OuterLeave& leave) override;
  bool aborted(std::uint64_t epoch) override;
  std::string left_out() override;
  void cancel() override;

 private:
  SocketCoordinator(Fd socket, Fd wake, CoordinatorTimes times);

  template <class Answer>
  Result<Answer> ask(const training::OuterQuestion& question);
  /// ErrorCode::lost if the runner is gone.
  Result<> write_line(const std::string& line);
  void read_lines();
  void take_line(const std::string& line);

  const Fd socket_, wake_;
  const CoordinatorTimes times_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t number_;                          // of the last question
  std::optional<training::OuterAnswer> answer_;   // to it
  bool asking_ = false;                           // a call waits for it
  std::string left_out_;                          // why the answer was revoked
  std::map<std::uint64_t, std::string> aborted_;  // aborted epochs, with reasons
  bool cancelled_ = false, gone_ = false, stopping_ = false;
  std::thread reader_;
};

}  // namespace sortie::trainer::outer
