#include "launcher/view/training_view.h"

#include <algorithm>
#include <cmath>

#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

using namespace training;

struct Taker {
  TrainingView& view;
  double when;

  void operator()(const StartEvent& e) const {
    const bool from_memory = e.resumed_from == kFromMemory;
    // Memory checkpoints end with the run, so the next run can only resume from what this one
    // could.
    if (!from_memory) view.first_step = e.step;
    view.memory_step = from_memory ? std::optional(e.step) : std::nullopt;
    view.start = e;
    view.step = e.step;
    view.steps = e.steps;
    view.time = when;
    if (!e.resumed_from.empty() && !from_memory)
      view.checkpoint = TrainingView::Checkpoint{e.step, printable(e.resumed_from), 0};
    lower({e.best_step, e.best_loss});
  }
  void operator()(const StepEvent& e) const {
    view.step = e.step;
    if (e.steps > 0) view.steps = e.steps;
    view.loss = e.loss;
    view.tokens_per_s = std::isfinite(e.mean_tokens_per_s) ? e.mean_tokens_per_s : e.tokens_per_s;
    view.eta_s = e.eta_s;
    view.time = when;
  }
  void operator()(const EvalEvent& e) const {
    const TrainingView::Validation now{e.step, e.loss, sets_of(e)};
    view.validation = now;
    // The lowest loss may be from an earlier run, of which only the mean is known.
    if (e.best_step != e.step) lower({e.best_step, e.best_loss});
    lower(now);
  }
  void operator()(const CheckpointEvent& e) const {
    const TrainingView::Checkpoint saved{e.step, printable(e.path), when, e.suspect};
    if (e.best) view.best_checkpoint = saved;
    if (e.suspect && view.checkpoint && !view.checkpoint->suspect) {
      view.suspect_step = std::max(view.suspect_step, e.step);
      return;
    }
    view.suspect_step = 0;
    if (!e.best || !view.checkpoint || view.checkpoint->step < e.step) view.checkpoint = saved;
  }
  void operator()(const MemoryCheckpointEvent& e) const { view.memory_step = e.step; }
  void operator()(const RollbackEvent& e) const {
    view.step = e.to;
    view.memory_step = std::nullopt;
    view.suspect_step = 0;
    view.checkpoint = TrainingView::Checkpoint{e.to, printable(e.path), when};
    view.time = when;
    // The run has left these steps and removed their checkpoints. The event of the next
    // validation has the lowest loss before them.
    const auto forget = [&](auto& known) {
      if (known && known->step > e.to) known.reset();
    };
    forget(view.validation);
    forget(view.best);
    forget(view.best_checkpoint);
  }
  void operator()(const RoundEvent& e) const {
    view.step = e.step;
    view.time = when;
  }
  void operator()(const FaultEvent&) const {}
  void operator()(const NoteEvent&) const {}
  void operator()(const ProfileEvent& e) const {
    constexpr std::size_t kMaxProfiles = 4096;
    if (view.profiles.size() < kMaxProfiles)
      view.profiles[e.rank] = e.path.empty() ? "" : printable(e.host + ":" + e.path);
  }
  void operator()(const DoneEvent& e) const {
    view.done = true;
    view.step = std::max(view.step, e.step);
    view.steps = std::max(view.steps, e.steps);
    if (std::isfinite(e.loss)) view.loss = e.loss;
    view.eta_s = 0;
    view.time = when;
  }

 private:
  void lower(const TrainingView::Validation& found) const {
    if (std::isfinite(found.loss) && (!view.best || found.loss < view.best->loss))
      view.best = found;
  }
  static std::map<std::string, double> sets_of(const EvalEvent& e) {
    constexpr std::size_t kMaxSets = 256;
    std::map<std::string, double> sets;
    for (const auto& [name, loss] : e.sets)
      if (sets.size() < kMaxSets) sets[printable(name)] = loss;
    return sets;
  }
};

}  // namespace

void TrainingView::take(const training::Event& event, double when) {
  std::visit(Taker{*this, when}, event);
}

bool TrainingView::finished() const {
  if (steps == 0 || step < steps) return false;
  // A program of the user may save without telling.
  if (!start || start->save_dir.empty()) return true;
  return std::max(checkpoint ? checkpoint->step : 0, suspect_step) >= steps;
}

double TrainingView::eta_at(double now) const {
  return std::isfinite(eta_s) ? std::max(0.0, eta_s - std::max(0.0, now - time)) : eta_s;
}

}  // namespace sortie::launcher
