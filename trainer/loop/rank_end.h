// RankEnd: the one way out of a rank that fails.
//
// The other ranks may be waiting for this one in a collective, and none of them knows of its error.
// So a rank that fails alone says why, on stderr and as an event, and ends the whole job: under
// Sortie by its exit code, which makes the runner stop the others, elsewhere by MPI_Abort. It never
// waits for the others in MPI_Finalize, and unwinds no stack that has a collective in flight.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "trainer/loop/rank_context.h"
#include "trainer/metrics/event_sink.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// One at a time in a process: while it lives, an exception that nobody catches (a compute thread
/// has run out of memory) ends the rank in the same way.
class RankEnd {
 public:
  RankEnd();
  ~RankEnd();
  RankEnd(const RankEnd&) = delete;
  RankEnd& operator=(const RankEnd&) = delete;

  /// What the rank learns while it starts; an error before that is told with what is known.
  void set_rank(const RankContext& rank) { rank_ = rank; }
  /// What the rank was planned to have on its GPU; for the message when there is no more.
  void set_planned_on_gpu(std::int64_t bytes) { planned_on_gpu_ = bytes; }
  void set_events(EventSink events) { events_ = std::move(events); }
  void set_communicator(std::unique_ptr<Communicator> communicator) {
    communicator_ = std::move(communicator);
  }
  /// What can be saved when a collective has failed.
  struct LastSave {
    std::string text;    // for people, to be added to the error: "; what it held is in ..."
    bool asked = false;  // the rank was asked to end before
    bool saved = false;
  };
  /// Called once, on the thread on which a collective has failed, before the process ends; may call
  /// no collective. Empty = nothing can be saved.
  void set_last_save(std::function<LastSave()> save) { last_save_ = std::move(save); }
  EventSink& events() { return *events_; }
  Communicator& communicator() { return *communicator_; }

  /// Runs `body`. An exception is the end of a job of several ranks: this does not return then. In
  /// a job of one rank it comes back as an Error: CommunicatorError as `lost`, std::bad_alloc as
  /// `unsupported`, others as `internal`.
  Result<> guard(const std::function<Result<>()>& body);

  /// Passes on an `outcome` that is the same on all ranks: of its error rank 0 alone reports.
  Result<> shared(Result<> outcome) {
    shared_ = !outcome;
    return outcome;
  }

  /// Runs `body` under guard() and returns the exit code for its outcome. After an Error it returns
  /// only when all ranks end with one within a second, such as after a failed start-up check.
  int exit_code_of(const std::function<Result<>()>& body);

 private:
  static void on_terminate();
  void report(const Error& error);
  /// The last save, where there is one to try, and what the process ends with then.
  std::optional<int> save_last(Error& error);
  /// Ends the job; all that ranks share is left as it is.
  [[noreturn]] void leave(const Error& error, std::optional<int> code = {});

  RankContext rank_;
  std::int64_t planned_on_gpu_ = 0;
  bool shared_ = false;  // the error that ends this rank ends all, and they know it
  std::optional<EventSink> events_;
  std::unique_ptr<Communicator> communicator_;  // of one rank until there is another
  std::function<LastSave()> last_save_;
  std::unique_ptr<std::byte[]> reserve_;  // given back before the lack of memory is reported
  std::terminate_handler old_terminate_;
};

}  // namespace sortie::trainer
