// Tiny trainings in any layout, and what they make, put together from all ranks by global names.
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
  std::vector<double> dropped;        // by step, where experts have a capacity
  WholeTensors weights;               // after the last step
  WholeTensors gradients;             // of step 1, before clipping
  std::string wrong;                  // ranks that hold one element and differ; empty = none
};

/// What ranks hold, laid over each other.
class Assembled {
 public:
  /// Adds the pieces of a rank whose names begin with `prefix`, times `factor`. Called by one
  /// thread at a time.
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

/// What else a run may have.
struct LayoutExtras {
  bool masked = false;          // some targets do not count
  bool packed = false;          // the same, in sequences of several documents
  std::uint64_t late_seed = 0;  // ops are done late; 0: at once
  /// Between a rank's start and its first step, one rank at a time.
  std::function<void(Trainer&)> started = {};
};

/// Trains `steps` steps on `ranks` threads. The gradient of step 1 is read from the first moment,
/// so gradient_clipping is off.
using MakeSamples = std::function<std::unique_ptr<SampleSource>(std::int64_t vocab_size)>;
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
          // Not with the lock: that takes the other ranks.
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

/// Weights and moments of all ranks, by global name: after the job's steps, or as it starts from a
/// checkpoint of the last of them.
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
    training.trainer->store().await_values();  // not with the lock: that takes the other ranks
    const std::lock_guard lock(mutex);
    state.add(world.rank(), training.trainer->store(), "");
  });
  CHECK(state.wrong() == "");
  return state.tensors();
}

/// |a - b| / |b| of two tensors of one size, L2.
inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

/// Losses, norms and the gradients of step 1 are those of one process, to rounding.
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

/// One step of training on two ranks: how often each polled while its group, `group_of` a
/// ParameterStore, had an exchange under way.
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
