// OuterLoop: what training over several sites adds to a rank's training loop: it gets the work of a
// round, exchanges the result, and applies the outcome on all ranks of the site at the same step.
// README.md has the order of a round.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/training/event.h"
#include "trainer/loop/training_step.h"
#include "trainer/outer/fragments.h"
#include "trainer/outer/leader.h"
#include "trainer/outer/part_map.h"
#include "trainer/outer/site.h"
#include "trainer/state/extra_pieces.h"

namespace sortie::trainer::outer {

/// Steps over which the learning rate of a site that has joined rises to the schedule's.
inline constexpr std::int64_t kJoinWarmUp = 10;
/// A change is an outlier if its norm exceeds this multiple of the median of the previous norms.
inline constexpr double kOutlierNorm = 10.0;
/// A site ends with an error after this many consecutive rounds in which it abstained.
inline constexpr std::int64_t kMostAbstentions = 3;

class OuterLoop {
 public:
  /// `step` must be allocated. `batch` is that of this site. `stop` returns whether this rank was
  /// asked to stop; it is called while the loop waits for other sites. Collective. All references
  /// must outlive it.
  OuterLoop(const Site& site, const config::JobConfig& job, const config::BatchPlan& batch,
            const Layout& layout, TrainingStep& step, std::function<bool()> stop);
  ~OuterLoop();

  /// ErrorCode::config if the job has settings that are not supported with several sites.
  static Result<> check(const Site& site, const config::JobConfig& job);

  /// What checkpoints contain in addition to the weights: the current values to save, or the
  /// buffers to load into before start(). Empty on ranks that lead no part.
  std::vector<ExtraPiece> pieces_to_save();
  std::vector<ExtraPiece> pieces_to_load();
  /// Maximum number of elements of the pieces that this rank will save.
  std::int64_t most_elements() const;

  /// Call after the weights of `progress` are in the store. Collective.
  Result<> start(TrainingProgress& progress);

  /// Returns the work of the next step. If necessary, joins the run, waits for other sites, and
  /// sets `progress` to where the site continues. Returns nullopt if the run has completed its last
  /// round without this site (missed_end()). ErrorCode::interrupted if a rank was asked to stop.
  /// Collective.
  Result<std::optional<StepOrder>> next_step(TrainingProgress& progress);
  /// Whether this rank knows that the run continues without this site, so that work on the current
  /// round is wasted.
  bool left_out() const;
  /// Call after the step. `left_out`: whether left_out() was true on any rank before the step; the
  /// site then joins again with the next one. Collective.
  Result<> step_taken(const StepReport& report, TrainingProgress& progress, bool left_out = false);
  /// Call after a step has failed. ErrorCode::config: the run continues without this site, which
  /// joins again with the next step, or fails with ErrorCode::lost after too many refusals in a
  /// row. Other errors are returned. Collective.
  Result<> step_lost(const Error& error, TrainingProgress& progress);

  /// Whether the site is between two rounds, or has done no step of a new one: a run that resumes
  /// from what is saved now has the bits of a run that never stopped.
  bool at_border() const { return work_.steps == 0 || done_ == 0; }

  /// Whether the run ended while this site was not part of it. The site then has nothing to train,
  /// and no weights worth an evaluation or a checkpoint. The same on all ranks.
  bool missed_end() const { return missed_end_; }

  /// Whether the loop has ended its waits for other sites because a rank was asked to stop. The
  /// same on all ranks.
  bool cancelled() const { return cancelled_; }

  /// Whether the site's weights are outdated and will be replaced by a copy of another site's.
  /// Nothing may be saved then. Collective.
  bool lacks_state() const;

  /// Puts the outer weights into the store, as after a round; show_own_weights() restores the
  /// site's own. There must be no training in between. Collective.
  void show_outer_weights(TrainingProgress& progress);
  void show_own_weights(TrainingProgress& progress);

  /// Events of rounds that have ended since the last call; on rank 0 only.
  std::vector<training::RoundEvent> take_events() { return std::exchange(events_, {}); }
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }
  /// Reports to the coordinator that the site's training has ended.
  void leave(const std::string& reason);

  /// Hash of the outer weights and the momentum of this rank's part; 0 if it leads none. For tests.
  std::uint64_t hash() const { return map_.leads() ? state_.hash() : 0; }
  const OuterState& state() const { return state_; }
  const PartMap& map() const { return map_; }

 private:
  struct FragmentState {
    std::vector<PartRange> ranges;
    std::vector<double> norms{};  // of the last changes
    std::int64_t abstained = 0;   // in a row
    bool sent = false, applied = false, abstains = false;
    std::vector<float> mean{};  // committed; empty if it is in the outer state
    bool feeds = false;         // the encoding error is kept with it
    void begin_round() {
      sent = applied = false;
      mean = {};
    }
  };
  /// Numbers that a joining site gets together with the weights of a plain step.
  struct PlainNumbers {
    std::int64_t updates = 0, consecutive_skips = 0;
    OutlierState losses, gradient_norms;
  };
  bool plain(std::int64_t round) const {
    return !site_.settings.rounds || round <= site_.settings.start_after;
  }
  std::int64_t first_step_of(std::int64_t round) const;
  std::int64_t steps_of(std::int64_t round) const;
  std::int64_t steps_to_do(std::int64_t round, std::int64_t granted) const;
  std::int64_t scheduled_step(std::int64_t round, std::int64_t number, std::int64_t total) const;
  Result<> check_same_rounds(const TrainingProgress& progress) const;
  bool can_resume_round() const;
  void begin_round_again(TrainingProgress& progress);
  Result<> resume_round(TrainingProgress& progress);
  void note_dropped_steps(const char* what, std::int64_t step);
  void set_saved_steps(std::int64_t step);
  void make_outer_state();
  void weights_written();
  /// Blocks until every leader has an answer, and serves requests of the leaders' threads
  /// meanwhile. Collective.
  void await_leaders(const TrainingProgress& progress);
  /// Returns the answer of this rank's leader; nullopt if it leads no part. An error of any leader
  /// is returned on all ranks.
  template <class T>
  Result<std::optional<T>> next_answer(const TrainingProgress& progress);
  void start(LeaderTask task);
  Result<> drop_answers(const TrainingProgress& progress);
  Result<> join_again(const Error& error, TrainingProgress& progress);
  Result<> join(TrainingProgress& progress);
  Result<> sit_out(TrainingProgress& progress);
  Result<> ask_for_work(TrainingProgress& progress);
  Result<double> mean_gradients(double loss, std::int64_t targets, TrainingProgress& progress);
  Result<> exchange_due(std::int64_t at, TrainingProgress& progress);
  Result<> send(std::int64_t fragment);
  Result<> apply(std::int64_t fragment, const TrainingProgress& progress);
  void keep_mean(FragmentState& fragment, ExchangeOutcome outcome);
  void take_outer_step();
  void end_round(TrainingProgress& progress);
  void gather_plain_state(const TrainingProgress& progress);
  void take_plain_state(TrainingProgress& progress);
  void add_report(const ExchangeReport& report);
  void tell_round(const TrainingProgress& progress);

  const Site& site_;
  const config::JobConfig& job_;
  const config::BatchPlan batch_;
  const Layout& layout_;
  TrainingStep& step_;
  const std::function<bool()> stop_;
  PartMap map_;
  std::vector<FragmentState> fragments_;
  OuterState state_;
  bool has_outer_state_ = false;
  std::vector<float> errors_;          // of the encoding, as in a checkpoint
  std::vector<float> vector_, shown_;  // scratch; own weights while the outer ones are shown
  std::vector<float> first_moments_, second_moments_;  // of plain steps, for joining
  PlainNumbers numbers_;
  std::unique_ptr<Coordinator> coordinator_;
  LeaderMemory memory_;
  std::unique_ptr<SiteLinks> links_;
  std::unique_ptr<Leader> leader_;  // nullptr: this rank leads no part
  bool fresh_ = false, joined_ = false, lacks_state_ = false, cancelled_ = false;
  bool missed_end_ = false;
  std::int64_t refusals_ = 0;          // in a row
  std::int64_t pending_ = 0;           // tasks of the leaders whose answers are not taken yet
  std::int64_t steps_in_vain_ = 0;     // since the site last joined
  training::OuterWork work_;           // of the current round; steps 0 = none
  OuterProgress progress_, resumed_;   // current; of the checkpoint, until used
  std::int64_t next_position_ = 0;     // progress_.position once the round is committed
  std::int64_t done_ = 0, total_ = 0;  // inner steps of the round
  std::int64_t done_before_ = 0;       // of those done: by an earlier process
  std::int64_t tokens_ = 0;
  bool own_differs_ = false;  // the site's weights are not the outer ones
  bool shows_outer_ = false;  // but the store has the outer ones
  std::optional<double> step_seconds_;
  // Of the current round, for its event.
  training::RoundEvent event_;
  double signal_ = 0.0, noise_ = 0.0;
  double seconds_in_steps_ = 0.0, seconds_waited_ = 0.0;
  std::chrono::steady_clock::time_point step_begun_, round_begun_;
  std::vector<training::RoundEvent> events_;
  std::vector<std::string> notes_;
};

}  // namespace sortie::trainer::outer
