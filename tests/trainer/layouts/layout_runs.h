// Helpers that run tiny trainings in any layout and assemble the results of all ranks by global
// names.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/state_values.h"
#include "tests/support/tiny_training.h"
#include "trainer/checkpoint/piece.h"
#include "trainer/parallel/thread_ranks.h"
#include "trainer/state/state_view.h"

namespace sortie::trainer::test {

using WholeTensors = std::map<std::string, std::vector<float>>;  // by global name

struct LayoutRun {
  std::vector<double> losses, norms;  // by step
  std::vector<double> dropped;        // by step, if experts have a capacity
  WholeTensors weights;               // after the last step
  WholeTensors gradients;             // of step 1, before clipping
  std::string wrong;                  // how ranks that should agree differ; empty if they agree
};

/// Assembles whole tensors from what ranks hold, and finds ranks that hold different values.
class Assembled {
 public:
  /// Adds the pieces of a rank whose names begin with `prefix`, multiplied by `factor`. Not
  /// thread-safe.
  void add(int rank, ParameterStore& store, const std::string& prefix, float factor = 1.0f) {
    const StateView view(store);
    for (const StatePiece& piece : view.pieces(TiedCopies::include)) {
      if (!piece.name.starts_with(prefix)) continue;
      const Piece whole = Piece::whole(piece.shape);
      const std::vector<float> held = values_of(piece);
      std::vector<float>& values = tensors_[piece.name.substr(prefix.size())];
      values.resize(static_cast<std::size_t>(whole.elements()),
                    std::numeric_limits<float>::quiet_NaN());
      for_each_shared_run(piece.piece, whole,
                          [&](std::int64_t from, std::int64_t to, std::int64_t count) {
                            for (std::int64_t i = 0; i < count; ++i) {
                              const float mine = held[static_cast<std::size_t>(from + i)] * factor;
                              float& value = values[static_cast<std::size_t>(to + i)];
                              if (!std::isnan(value) && value != mine && wrong_.empty())
                                wrong_ = piece.name + " element " + std::to_string(to + i) +
                                         " on rank " + std::to_string(rank) + ": " +
                                         std::to_string(mine) + ", before " + std::to_string(value);
                              value = mine;
                            }
                          });
    }
  }
  const WholeTensors& tensors() const { return tensors_; }
  const std::string& wrong() const { return wrong_; }

 private:
  WholeTensors tensors_;
  std::string wrong_;
};

/// Options of run_layout().
struct LayoutExtras {
  bool masked = false;          // some targets do not count
  bool packed = false;          // masked, and each sequence holds several documents
  std::uint64_t late_seed = 0;  // seed of deferred ops; 0: ops run at once
  /// Called between a rank's start and its first step, for one rank at a time.
  std::function<void(Trainer&)> started = {};
};

/// Makes the source of a rank's samples.
using MakeSamples = std::function<std::unique_ptr<SampleSource>(std::int64_t vocab_size)>;
/// Trains `steps` steps on `ranks` threads. The gradient of step 1 is derived from the first
/// moment, so gradient_clipping is turned off.
inline LayoutRun run_layout(config::JobConfig job, int ranks, int steps,
                            DType precision = DType::f32, const ThreadRankOptions& delays = {},
                            const LayoutExtras& extras = {}, const MakeSamples& samples = {}) {
  job.optimizer.gradient_clipping = 0;
  LayoutRun run;
  Assembled weights, gradients;
  std::mutex mutex;
  run_thread_ranks(
      ranks,
      [&](Communicator& world) {
        std::unique_ptr<SampleSource> source;
        if (samples) source = samples(job.model.vocab_size);
        if (extras.masked) source = std::make_unique<MaskedSource>(job.model.vocab_size);
        if (extras.packed) source = std::make_unique<PackedSource>(job.model.vocab_size);
        TinyTraining training(job, world, precision, /*threads=*/1, std::move(source));
        if (extras.late_seed != 0)
          training.trainer->context().defer(extras.late_seed +
                                            static_cast<std::uint64_t>(world.rank()));
        if (extras.started) {
          const std::lock_guard lock(mutex);
          extras.started(*training.trainer);
        }
        std::vector<double> losses, norms, dropped;
        for (int step = 0; step < steps; ++step) {
          const auto report = training.trainer->step();
          SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
          losses.push_back(report->loss);
          norms.push_back(report->grad_norm);
          if (report->dropped_choices) dropped.push_back(*report->dropped_choices);
          if (step > 0) continue;
          // Before locking, because this needs the other ranks.
          training.trainer->store().await_values();
          training.trainer->context().synchronize();
          const std::lock_guard lock(mutex);
          gradients.add(world.rank(), training.trainer->store(), "optimizer.m.",
                        static_cast<float>(1.0 / (1.0 - job.optimizer.beta1)));
        }
        training.trainer->store().await_values();
        training.trainer->context().synchronize();
        const std::lock_guard lock(mutex);
        weights.add(world.rank(), training.trainer->store(), "model.");
        if (run.losses.empty()) {
          run.losses = losses;
          run.norms = norms;
          run.dropped = dropped;
        } else if (run.losses != losses || run.norms != norms || run.dropped != dropped) {
          run.wrong = "rank " + std::to_string(world.rank()) + " has other losses, norms or drops";
        }
      },
      delays);
  run.weights = weights.tensors();
  run.gradients = gradients.tensors();
  for (const std::string& wrong : {weights.wrong(), gradients.wrong()})
    if (run.wrong.empty()) run.wrong = wrong;
  return run;
}

/// Returns weights and moments of all ranks, by global name. If `trains`, the job trains to its
/// last step first; otherwise it starts from a checkpoint of that step.
inline WholeTensors whole_state(const config::JobConfig& job, int ranks, bool trains) {
  Assembled state;
  std::mutex mutex;
  run_thread_ranks(ranks, [&](Communicator& world) {
    TinyTraining training(job, world);
    if (trains) {
      const auto outcome = training.trainer->run();
      SORTIE_CHECK(outcome.has_value(), "{}", outcome ? "" : outcome.error().message);
    } else {
      SORTIE_CHECK(training.trainer->progress().step == job.trainer.train_iterations, "step {}",
                   training.trainer->progress().step);
    }
    training.trainer->store().await_values();  // before locking: this needs the other ranks
    const std::lock_guard lock(mutex);
    state.add(world.rank(), training.trainer->store(), "");
  });
  CHECK(state.wrong() == "");
  return state.tensors();
}

/// Returns |a - b| / |b|, in L2 norms. The tensors must have the same size.
inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

/// Checks that losses, and the norm and gradients of step 1, equal those of one process up to
/// rounding.
inline void check_equal(const LayoutRun& run, const LayoutRun& alone, double loss_limit = 1e-5,
                        double gradient_limit = 1e-5) {
  CHECK(run.wrong == "");
  CHECK(run.dropped == alone.dropped);
  REQUIRE(run.losses.size() == alone.losses.size());
  for (std::size_t i = 0; i < run.losses.size(); ++i) {
    CAPTURE(i);
    CHECK(run.losses[i] == doctest::Approx(alone.losses[i]).epsilon(loss_limit));
  }
  CHECK(run.norms[0] == doctest::Approx(alone.norms[0]).epsilon(gradient_limit));
  REQUIRE(run.gradients.size() == alone.gradients.size());
  for (const auto& [name, gradient] : alone.gradients) {
    CAPTURE(name);
    REQUIRE(run.gradients.contains(name));
    CHECK(relative_difference(run.gradients.at(name), gradient) <= gradient_limit);
  }
}

inline void check_same_course(const LayoutRun& first, const LayoutRun& other) {
  CHECK(first.wrong == "");
  CHECK(first.losses == other.losses);
  CHECK(first.norms == other.norms);
  CHECK(first.weights == other.weights);
}

/// Trains one step on two ranks. Returns how often each rank polled while its group had an exchange
/// under way. `group_of` returns the group of a ParameterStore.
template <class GroupOf>
std::vector<std::int64_t> polls_beside_exchanges(const config::JobConfig& job,
                                                 const GroupOf& group_of) {
  std::mutex mutex;
  std::vector<std::int64_t> beside;
  run_thread_ranks(2, [&](Communicator& world) {
    TinyTraining training(job, world);
    const auto* group = group_of(training.trainer->store());
    std::int64_t polls = 0;
    training.trainer->context().set_poll([&] {
      polls += group->under_way != nullptr ? 1 : 0;
      group->poll();
    });
    training.losses(1);
    const std::lock_guard lock(mutex);
    beside.push_back(polls);
  });
  return beside;
}

}  // namespace sortie::trainer::test
