// SocketCoordinator: the coordinator as a leader reaches it, over a connection of its own to
// SORTIE_SOCKET: the runner passes questions on to the launcher, and its answers back.
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
  /// A question is repeated after `repeat`, then after twice that and so on up to `most`.
  std::chrono::milliseconds repeat{1000}, most{5000};
  /// Silence after which the log says that this leader waits. A launcher may be gone for a while.
  std::chrono::milliseconds say{60000};
};

class SocketCoordinator : public Coordinator {
 public:
  /// ErrorCode::lost: nobody listens at `socket_path`.
  static Result<std::unique_ptr<SocketCoordinator>> make(std::string socket_path,
                                                         CoordinatorTimes times = {});
  ~SocketCoordinator() override;

  /// Waits as long as the runner lives, which ends the ranks when it gives the launcher up.
  /// ErrorCode::lost: the runner is gone.
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
  /// Error: the runner is gone.
  Result<> write_line(const std::string& line);
  void read_lines();
  void take_line(const std::string& line);

  const Fd socket_, wake_;
  const CoordinatorTimes times_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t number_;                          // of the last question
  std::optional<training::OuterAnswer> answer_;   // to it
  bool asking_ = false;                           // and it is waited for
  std::string left_out_;                          // why the answer was taken back
  std::map<std::uint64_t, std::string> aborted_;  // epochs that were called off
  bool cancelled_ = false, gone_ = false, stopping_ = false;
  std::thread reader_;
};

}  // namespace sortie::trainer::outer
