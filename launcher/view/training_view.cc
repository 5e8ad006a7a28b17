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
    view.start = e;
    view.first_step = view.step = e.step;
    view.steps = e.steps;
    view.time = when;
    if (!e.resumed_from.empty())
      view.checkpoint = TrainingView::Checkpoint{e.step, printable(e.resumed_from), 0};
    lower(e.best_step, e.best_loss);
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
    view.validation = TrainingView::Validation{e.step, e.loss};
    lower(e.best_step, e.best_loss);
    lower(e.step, e.loss);
  }
  void operator()(const CheckpointEvent& e) const {
    (e.best ? view.best_checkpoint : view.checkpoint) =
        TrainingView::Checkpoint{e.step, printable(e.path), when};
  }
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
  void lower(std::int64_t step, double loss) const {
    if (std::isfinite(loss) && (!view.best || loss < view.best->loss))
      view.best = TrainingView::Validation{step, loss};
  }
};

}  // namespace

void TrainingView::take(const training::Event& event, double when) {
  std::visit(Taker{*this, when}, event);
}

double TrainingView::eta_at(double now) const {
  return std::isfinite(eta_s) ? std::max(0.0, eta_s - std::max(0.0, now - time)) : eta_s;
}

}  // namespace sortie::launcher
