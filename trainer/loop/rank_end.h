// RankEnd: ends a rank that fails, and with it the job.
//
// Other ranks may wait for this one in a collective without knowing of its error. So a rank that
// fails alone reports the reason, on stderr and as an event, and ends the whole job: under Sortie
// by its exit code, which makes the runner stop the others, elsewhere by MPI_Abort. It exits
// without destroying its communicator, because MPI_Finalize would wait for the others.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "trainer/loop/rank_context.h"
#include "trainer/metrics/event_sink.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// At most one exists in a process. During its lifetime, an uncaught exception (a compute thread
/// has run out of memory) ends the rank in the same way.
class RankEnd {
 public:
  RankEnd();
  ~RankEnd();
  RankEnd(const RankEnd&) = delete;
  RankEnd& operator=(const RankEnd&) = delete;

  /// Facts that become known while the rank starts. An error before that is reported with what is
  /// known.
  void set_rank(const RankContext& rank) { rank_ = rank; }
  /// Bytes that the rank was planned to use on its GPU; for the message when it runs out of memory.
  void set_planned_on_gpu(std::int64_t bytes) { planned_on_gpu_ = bytes; }
  void set_events(EventSink events) { events_ = std::move(events); }
  void set_communicator(std::unique_ptr<Communicator> communicator) {
    communicator_ = std::move(communicator);
  }
  /// Takes it back, until the next one is set; nullptr if none of several ranks was set.
  std::unique_ptr<Communicator> take_communicator() {
    if (communicator_->size() == 1) return nullptr;
    return std::exchange(communicator_, make_single_communicator());
  }
  /// Result of the last save, after a collective has failed.
  struct LastSave {
    std::string text;    // appended to the error: "; what it held is in ..."
    bool asked = false;  // the rank was asked to end before
    bool saved = false;
  };
  /// `save` is called once, on the thread on which a collective has failed, before the process
  /// ends. It must not call collectives. Empty = nothing can be saved.
  void set_last_save(std::function<LastSave()> save) { last_save_ = std::move(save); }
  EventSink& events() { return *events_; }
  Communicator& communicator() { return *communicator_; }

  /// Runs `body`. In a job of several ranks an exception ends the job, and this does not return. In
  /// a job of one rank it is returned as an Error: CommunicatorError as `lost`, std::bad_alloc as
  /// `unsupported`, others as `internal`.
  Result<> guard(const std::function<Result<>()>& body);

  /// Returns an `outcome` that is the same on all ranks; only rank 0 reports its error.
  Result<> shared(Result<> outcome) {
    shared_ = !outcome;
    return outcome;
  }

  /// Runs `body` under guard() and returns the exit code for its outcome. After an Error it returns
  /// only if all ranks end with one within a second, such as after a failed start-up check.
  /// Otherwise it ends the job.
  int exit_code_of(const std::function<Result<>()>& body);

 private:
  static void on_terminate();
  void report(const Error& error);
  /// Tries the last save, if there is one. Returns the exit code if that save determines it.
  std::optional<int> save_last(Error& error);
  /// Reports the error and ends the job, without cleaning up what ranks share.
  [[noreturn]] void leave(const Error& error, std::optional<int> code = {});

  RankContext rank_;
  std::int64_t planned_on_gpu_ = 0;
  bool shared_ = false;  // all ranks end with this error
  std::optional<EventSink> events_;
  std::unique_ptr<Communicator> communicator_;  // of one rank until it is set
  std::function<LastSave()> last_save_;
  std::unique_ptr<std::byte[]> reserve_;  // freed before an out-of-memory error is reported
  std::terminate_handler old_terminate_;
};

}  // namespace sortie::trainer
