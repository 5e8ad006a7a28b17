// OuterLoop: what training over several sites adds to the loop of a rank: the work of a round, the
// exchange of what came of it, and what all ranks of the site make of the result at the same step.
// README.md has the order of a round.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
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
/// A change counts as an outlier beyond so many times the median of those before it,
inline constexpr double kOutlierNorm = 10.0;
/// and a site ends that has had no fit one for so many rounds.
inline constexpr std::int64_t kMostAbstentions = 3;

class OuterLoop {
 public:
  /// Of an allocated step. Collective; all references must outlive it. `batch` is that of this
  /// site. `stop`: whether this rank is told to stop, asked while the loop waits for other sites.
  OuterLoop(const Site& site, const config::JobConfig& job, const config::BatchPlan& batch,
            const Layout& layout, TrainingStep& step, std::function<bool()> stop);
  ~OuterLoop();

  /// What the job has that can not be had with several sites: ErrorCode::config.
  static Result<> check(const Site& site, const config::JobConfig& job);

  /// What checkpoints have beside the weights, to be saved as of now, or before start() to be read
  /// into; of leaders.
  std::vector<ExtraPiece> pieces_to_save();
  std::vector<ExtraPiece> pieces_to_load();
  /// Elements of the most pieces that this rank will save.
  std::int64_t most_elements() const;

  /// After the weights of `progress` are in the store. Collective.
  Result<> start(TrainingProgress& progress);

  /// The next step's work; joins and waits for other sites where that is due, and brings `progress`
  /// to where the site goes on. None: the run has its last round without this site (missed_end()).
  /// Collective. ErrorCode::interrupted where a rank was told to stop.
  Result<std::optional<StepOrder>> next_step(TrainingProgress& progress);
  /// Whether this rank has heard that the run goes on without this site: the round that it works
  /// at comes to nothing.
  bool left_out() const;
  /// After that step. Collective. `left_out`: some rank has heard so before it; the site joins
  /// again with the next one.
  Result<> step_taken(const StepReport& report, TrainingProgress& progress, bool left_out = false);
  /// A step that failed with ErrorCode::config: the run has gone on without this site, which joins
  /// again with the next one. Collective.
  Result<> step_lost(const Error& error, TrainingProgress& progress);

  /// Between two rounds: what is saved now goes on with the bits of a run that never stopped.
  bool at_border() const { return work_.steps == 0 || done_ == 0; }

  /// Whether the run came to its end while this site was not in. It has nothing to train then, and
  /// no weights worth an evaluation or a checkpoint. Alike on all ranks.
  bool missed_end() const { return missed_end_; }

  /// Whether the weights here are not those of any round that this site could name: it has them of
  /// an older one, and is told to take those of another site. Nothing is saved then. Collective.
  bool lacks_state() const;

  /// Has the store show the outer weights, as after a round, and then what it had before; between
  /// the two nobody trains. Collective.
  void show_outer_weights(TrainingProgress& progress);
  void show_own_weights(TrainingProgress& progress);

  /// Of rounds that have ended since the last call: on rank 0.
  std::vector<training::RoundEvent> take_events() { return std::exchange(events_, {}); }
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }
  /// The site's training has come to its end.
  void leave(const std::string& reason);

  /// Of the outer weights and the momentum of this rank's part; 0 where it leads none. For tests.
  std::uint64_t hash() const { return map_.leads() ? state_.hash() : 0; }
  const OuterState& state() const { return state_; }
  const PartMap& map() const { return map_; }

 private:
  struct FragmentState {
    std::vector<PartRange> ranges;
    std::vector<double> norms{};  // of the last changes
    std::int64_t abstained = 0;   // in a row
    bool sent = false, applied = false, abstains = false;
  };
  /// What goes with the weights of a plain step, for a site that joins.
  struct PlainNumbers {
    std::int64_t updates = 0, consecutive_skips = 0;
    OutlierState losses, gradient_norms;
  };
  bool plain(std::int64_t round) const {
    return !site_.settings.rounds || round <= site_.settings.start_after;
  }
  std::int64_t first_step_of(std::int64_t round) const;
  std::int64_t steps_of(std::int64_t round) const;
  void make_outer_state();
  void weights_written();
  /// Collective. Sees to what the leaders' threads need meanwhile.
  void await_leaders(const TrainingProgress& progress);
  /// Of this rank's leader, where it is one; the first error of any of them, alike on all ranks.
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
  std::vector<float> errors_;          // of the encoding, as a checkpoint has them
  std::vector<float> vector_, shown_;  // scratch; the own weights while others are shown
  std::vector<float> first_moments_, second_moments_;  // of plain steps, where somebody joins
  PlainNumbers numbers_;
  std::unique_ptr<Coordinator> coordinator_;
  LeaderMemory memory_;
  std::unique_ptr<SiteLinks> links_;
  std::unique_ptr<Leader> leader_;  // null: this rank leads no part
  bool fresh_ = false, joined_ = false, lacks_state_ = false, cancelled_ = false;
  bool missed_end_ = false;
  std::int64_t refusals_ = 0;          // in a row
  std::int64_t pending_ = 0;           // tasks of the leaders whose answers were not taken
  std::int64_t steps_in_vain_ = 0;     // since the site was in
  std::unique_lock<std::mutex> held_;  // while the outer weights are shown
  std::int64_t warm_steps_ = 0;
  training::OuterWork work_;           // of the round under way; steps 0 = none
  OuterProgress progress_, resumed_;   // the latter: of the checkpoint, until it is made use of
  std::int64_t done_ = 0, total_ = 0;  // inner steps of it
  std::int64_t tokens_ = 0;
  bool own_differs_ = false;  // the site's weights are not the outer ones
  bool shows_outer_ = false;  // but the store has these
  std::optional<double> step_seconds_;
  // Of the round, for its event.
  training::RoundEvent event_;
  double signal_ = 0.0, noise_ = 0.0;
  double seconds_in_steps_ = 0.0, seconds_waited_ = 0.0;
  std::chrono::steady_clock::time_point step_begun_, round_begun_;
  std::vector<training::RoundEvent> events_;
  std::vector<std::string> notes_;
};

}  // namespace sortie::trainer::outer
