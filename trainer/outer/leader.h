// Leader: a thread of the rank that leads a part. It exchanges changes with the leaders of the same
// part on other sites, one after another, and repeats each exchange until the coordinator has
// committed it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "trainer/outer/exchange.h"
#include "trainer/outer/outer_state.h"
#include "trainer/outer/site.h"
#include "trainer/outer/state_exchange.h"

namespace sortie::trainer::outer {

/// A change to exchange.
struct ExchangeTask {
  std::int64_t round = 0, fragment = 0;
  std::int64_t tokens = 0;  // that it was trained on; 0 with `abstains`
  bool abstains = false;
  std::string reason;
  std::vector<float> change;  // of the fragment's elements
  /// Whether the round has outer weights, to which the mean will be applied. Otherwise the change
  /// is the gradients of a plain step.
  bool outer = true;
};

struct ExchangeReport {
  std::int64_t round = 0, fragment = 0;
  std::uint64_t epoch = 0;
  std::int64_t members = 0, contributors = 0;
  std::int64_t aborted = 0;                           // earlier orders that were aborted
  double wait_seconds = 0.0, exchange_seconds = 0.0;  // for other sites; of the order
  double signal = 0.0, noise = 0.0;                   // of the encoding, sums of squares
  std::uint64_t payload_sent = 0, payload_received = 0, wire_sent = 0, wire_received = 0;
};

struct ExchangeOutcome {
  ExchangeReport report;
  std::vector<float> values;  // the committed mean
  std::string copied_from;    // site whose state was copied; empty = none
  bool feeds = false;         // call keep_error() when the mean is applied
};

using LeaderTask = std::variant<training::OuterJoin, training::OuterNext, ExchangeTask>;
using LeaderAnswer = std::variant<training::OuterJoined, training::OuterWork, ExchangeOutcome>;

/// Memory that the links may still read after a failed exchange. Must outlive them.
struct LeaderMemory {
  ExchangeMemory exchange;
  StateMessages states;
};

/// The result of everything that is requested after cancel(): ErrorCode::interrupted.
std::unexpected<Error> exchange_ended();

/// What a leader needs from the loop. All references must outlive it.
struct LeaderParts {
  const Site& site;
  Coordinator& coordinator;
  SiteLinks& links;
  OuterState& state;  // used by the thread while exchanges are in flight; a copy may replace it
  LeaderMemory& memory;
  int threads = 1;  // for encoding
};

class Leader {
 public:
  /// `fragments`: number of elements of each.
  Leader(LeaderParts parts, const std::vector<std::int64_t>& fragments);
  /// Calls cancel() and joins the thread.
  ~Leader();

  /// Makes the next exchange begin with a copy of the state from another site: one of `donors`, in
  /// this order of preference. Only while nothing is in flight.
  void set_lacks_state(std::vector<std::string> donors);

  /// Encoding error of a fragment's elements; empty without error feedback. Only while nothing is
  /// in flight.
  std::span<const float> error(std::size_t fragment) const;
  void restore_error(std::size_t fragment, std::span<const float> error);
  /// Makes the error of the fragment's last exchange the current one. Only while nothing is in
  /// flight.
  void keep_error(std::size_t fragment);

  /// Queues a question or an exchange; they are processed in order. After cancel() the answer is an
  /// error.
  void start(LeaderTask task);
  /// Blocks until has_answer() or wants_state(), but at most for `limit`.
  void wait(std::chrono::milliseconds limit);
  bool has_answer() const;
  /// Returns the next answer, in the order of start(). Requires has_answer() (checked). If a task
  /// fails, all tasks that are queued then get the same error. ErrorCode::config: refused, so the
  /// site must join again; ErrorCode::interrupted after cancel().
  Result<LeaderAnswer> take();

  /// Whether the thread waits for give_state(): in a plain step, this site or another member lacks
  /// the state. The memory that is given must stay valid, and otherwise unused, until the exchange
  /// has its answer.
  bool wants_state() const;
  void give_state(CopiedState state);

  /// Whether cancel() was called.
  bool cancelled() const;
  /// Whether the state is being copied from another site, or must be.
  bool lacks_state() const { return lacks_state_; }

  /// Coordinator::left_out().
  std::string left_out() const { return parts_.coordinator.left_out(); }
  void leave(const std::string& reason);
  /// Ends the current task and all later ones with ErrorCode::interrupted. Thread-safe.
  void cancel();
  LinkCounters counters() const { return parts_.links.counters(); }

 private:
  void run();
  Result<LeaderAnswer> answer_to(const LeaderTask& task);
  Result<ExchangeOutcome> exchange_task(const ExchangeTask& task);
  /// Performs one order. An error says why it failed.
  Result<> attempt(const ExchangeTask& task, const training::OuterExchange& order, std::size_t self,
                   ExchangeOutcome& outcome);
  Result<CopiedState> state_to_copy(const ExchangeTask& task);

  LeaderParts parts_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LeaderTask> tasks_;
  bool ends_ = false, ended_ = false;  // asked to end; the thread has ended
  bool wants_state_ = false;
  std::optional<CopiedState> given_;
  std::deque<Result<LeaderAnswer>> answers_;
  // Used by the thread.
  LeaderTask current_;  // has the change, which links may read until they are opened again
  std::atomic<bool> lacks_state_ = false;
  std::vector<std::string> donors_;
  std::vector<float> mean_;
  std::vector<ErrorFeedback> feedback_;  // by fragment; empty if it is off
  ExchangeFigures figures_;
  std::string suspect_;
  std::thread thread_;
};

}  // namespace sortie::trainer::outer
