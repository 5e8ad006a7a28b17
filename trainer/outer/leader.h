// Leader: the thread of a part's leader that exchanges changes with the leaders of the same part on
// other sites, one after the other, until the coordinator has committed each of them.
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

/// A change that is there to be exchanged.
struct ExchangeTask {
  std::int64_t round = 0, fragment = 0;
  std::int64_t tokens = 0;  // that it was trained on; 0 with `abstains`
  bool abstains = false;
  std::string reason;
  std::vector<float> change;        // of the elements of `ranges`
  std::vector<PartRange> ranges{};  // of the part's vector; of outer weights
  /// Of rounds with outer weights: what is committed is applied to them at once. Else the task is
  /// gradients of a plain step.
  bool outer = true;
};

struct ExchangeReport {
  std::int64_t round = 0, fragment = 0;
  std::uint64_t epoch = 0;
  std::int64_t members = 0, contributors = 0;
  std::int64_t aborted = 0;                           // orders before it that were called off
  double wait_seconds = 0.0, exchange_seconds = 0.0;  // for the others; of the order
  double signal = 0.0, noise = 0.0;                   // of the encoding, sums of squares
  std::uint64_t payload_sent = 0, payload_received = 0, wire_sent = 0, wire_received = 0;
};

struct ExchangeOutcome {
  ExchangeReport report;
  std::vector<float> values;  // the mean of the gradients; of outer weights see Leader::apply()
  std::string copied_from;    // the state of that site was taken; empty = own
};

using LeaderTask = std::variant<training::OuterJoin, training::OuterNext, ExchangeTask>;
using LeaderAnswer = std::variant<training::OuterJoined, training::OuterWork, ExchangeOutcome>;

/// What the links may still read when an exchange has failed: it outlives them.
struct LeaderMemory {
  ExchangeMemory exchange;
  StateMessages states;
};

/// What is asked after cancel() comes to: ErrorCode::interrupted.
std::unexpected<Error> exchange_ended();

/// What a leader needs of the loop. All references outlive it.
struct LeaderParts {
  const Site& site;
  Coordinator& coordinator;
  SiteLinks& links;
  OuterState& state;  // the thread's, as long as exchanges are under way
  LeaderMemory& memory;
  int threads = 1;  // for encoding
};

class Leader {
 public:
  /// `fragments`: elements of each.
  Leader(LeaderParts parts, const std::vector<std::int64_t>& fragments);
  /// cancel(), and waits for the thread.
  ~Leader();

  /// The state is to be had from others, in this order, before anything is exchanged; while
  /// nothing is under way.
  void set_lacks_state(std::vector<std::string> donors);

  /// Where errors of the encoding are fed back: of a fragment, its elements; empty where they are
  /// not. While nothing is under way.
  std::span<const float> error(std::size_t fragment) const;
  void restore_error(std::size_t fragment, std::span<const float> error);

  /// Asks or exchanges, in the order of these calls. After cancel() the answer is an error.
  void start(LeaderTask task);
  /// Waits for an answer, or until somebody wants the state of a plain step, at most so long.
  void wait(std::chrono::milliseconds limit);
  bool has_answer() const;
  /// After has_answer(): in the order of the calls; an error is that of all that was started before
  /// it came. ErrorCode::config: refused, so the site is to join again; interrupted after cancel().
  Result<LeaderAnswer> take();

  /// Of plain steps: a member lacks the state, or this one gets it; give_state() is waited for. The
  /// memory stays as it is until the exchange has its answer.
  bool wants_state() const;
  void give_state(CopiedState state);

  /// What the exchange that was taken has come to becomes a part of the state, unless it is by now:
  /// the thread does that itself when the next exchange is ordered. Till then a site whose other
  /// leaders have not heard that the exchange counts can be saved as if it had not been.
  void apply(const ExchangeOutcome& outcome);
  /// Whether cancel() was called.
  bool cancelled() const;
  /// Whether the state is being copied from another site, or is to be.
  bool lacks_state() const { return lacks_state_; }
  /// What was committed and not applied is as if it had not been: the site takes another state.
  void drop_committed();
  /// While it is held the thread applies nothing to the state.
  std::unique_lock<std::mutex> hold_state() { return std::unique_lock(state_mutex_); }

  /// Coordinator::left_out().
  std::string left_out() const { return parts_.coordinator.left_out(); }
  void leave(const std::string& reason);
  /// Ends what is under way and all that follows, with ErrorCode::interrupted.
  void cancel();
  LinkCounters counters() const { return parts_.links.counters(); }

 private:
  void run();
  Result<LeaderAnswer> answer_to(const LeaderTask& task);
  Result<ExchangeOutcome> exchange_task(const ExchangeTask& task);
  /// One order; an error says why it is not done.
  Result<> attempt(const ExchangeTask& task, const training::OuterExchange& order, std::size_t self,
                   ExchangeOutcome& outcome);
  Result<CopiedState> state_to_copy(const ExchangeTask& task);

  /// A mean that is committed and not applied.
  struct Committed {
    std::int64_t round = 0, fragment = 0;
    std::vector<PartRange> ranges;
    std::vector<float> mean;
    bool feeds = false;  // what the encoding has lost is kept
  };
  void apply_committed();

  LeaderParts parts_;
  std::mutex state_mutex_;
  std::optional<Committed> committed_;  // with the lock of the state
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<LeaderTask> tasks_;
  bool ends_ = false, ended_ = false;  // is to; its thread has
  bool wants_state_ = false;
  std::optional<CopiedState> given_;
  std::deque<Result<LeaderAnswer>> answers_;
  // Of the thread.
  LeaderTask current_;  // with the change, which is on its way until the links are opened again
  std::atomic<bool> lacks_state_ = false;
  std::vector<std::string> donors_;
  std::vector<float> mean_;
  std::vector<ErrorFeedback> feedback_;  // by fragment; none where it is off
  ExchangeFigures figures_;
  std::string suspect_;
  std::thread thread_;
};

}  // namespace sortie::trainer::outer
