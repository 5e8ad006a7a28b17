// Tests of the gate of updates: what it decides, and that ops that read it act accordingly.
#include "trainer/ops/update_gate.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/trainer/ops/op_test.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/optimizer.h"

namespace sortie::trainer {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// A gate with its tensors.
struct Gate {
  ExecutionContext context{1, test::device()};
  ops::UpdateRule rule{.clipping = 0.0,
                       .beta1 = 0.9,
                       .beta2 = 0.95,
                       .loss = {0.0, 16},
                       .norm = {0.0, 16},
                       .spike_ratio = 0.0};
  Tensor state = context.zeros(DType::f64, {ops::kGateStateValues});
  Tensor gate = context.zeros(DType::f32, {ops::kGateValues});
  Tensor outcome = context.zeros(DType::f64, {ops::kGateOutcomeValues});

  ops::GateOutcome decide(double loss_sum, double squared_norm, const ops::GateStep& step = {}) {
    const auto scalar = [&](double value) {
      return ops::tensor_from_host<double>(context, std::span<const double>(&value, 1), {1});
    };
    ops::decide_update(context, rule, step, scalar(loss_sum), scalar(squared_norm), state, gate,
                       outcome);
    return ops::gate_outcome(ops::copy_to_host<double>(context, outcome));
  }
  std::vector<float> values() { return ops::copy_to_host<float>(context, gate); }
};

/// Applies one update with the gate to a weight of 1. Returns the updated weight.
float updated_weight(Gate& of) {
  const auto one = [&](double value) {
    return make_tensor(of.context, DType::f32, {1}, Values{value});
  };
  Tensor w = one(1.0), m = one(0.25), v = one(0.5), none;
  const Tensor lr = one(static_cast<double>(1e-2f));
  const ops::AdamWStep step{lr, 0.9f, 0.95f, 1e-8f, 0.1f, of.gate};
  ops::adamw(of.context, step, w, one(0.5), m, v, none);
  const bool kept = values_of(m) == Values{0.25} && values_of(v) == Values{0.5};
  CHECK(kept == (of.values()[0] == 0.0f));
  return static_cast<float>(values_of(w)[0]);
}

}  // namespace

TEST_CASE("a gate gives mean loss, norm, and AdamW's corrections of the update that it counts") {
  Gate gate;
  // Corrections as on the host: base^t by repeated squaring in f64, then rounded to f32.
  const auto correction = [](double beta, int t) {
    double power = 1.0;
    for (; t > 0; t >>= 1, beta *= beta)
      if (t & 1) power *= beta;
    return static_cast<float>(1.0 - power);
  };
  for (int t = 1; t <= 200; ++t) {
    CAPTURE(t);
    const ops::GateOutcome outcome = gate.decide(12.0, 9.0, {.loss_count = 8, .norm_weight = 4});
    CHECK(outcome.reason == ops::GateReason::none);
    CHECK(outcome.loss == 1.5);
    CHECK(outcome.norm == 6.0);
    CHECK(outcome.state.updates == t);
    const std::vector<float> values = gate.values();
    CHECK(values[0] == 1.0f);
    CHECK(values[1] == 1.0f);
    CHECK(std::bit_cast<std::uint32_t>(values[2]) ==
          std::bit_cast<std::uint32_t>(correction(0.9, t)));
    CHECK(std::bit_cast<std::uint32_t>(values[3]) ==
          std::bit_cast<std::uint32_t>(1.0f / std::sqrt(correction(0.95, t))));
  }
}

TEST_CASE("a gate clips where the norm is above the limit alone") {
  Gate gate;
  gate.rule.clipping = 2.0;
  gate.decide(1.0, 4.0);
  CHECK(gate.values()[1] == 1.0f);
  gate.decide(1.0, 16.0);
  CHECK(gate.values()[1] == static_cast<float>(2.0 / (4.0 + 1e-6)));
}

TEST_CASE("what is not finite closes the gate, counts no update and leaves means as they are") {
  Gate gate;
  gate.decide(1.0, 1.0);
  ops::GateState before = gate.decide(1.0, 1.0).state;
  const float open = updated_weight(gate);
  CHECK(open < 1.0f);
  for (const double bad : {kNotANumber, kInfinite}) {
    ops::GateOutcome outcome = gate.decide(1.0, bad);
    CHECK(outcome.reason == ops::GateReason::gradient_not_finite);
    CHECK(outcome.state.updates == before.updates);
    CHECK(outcome.state.norms == before.norms);
    CHECK(updated_weight(gate) == 1.0f);
    outcome = gate.decide(bad, 1.0);
    CHECK(outcome.reason == ops::GateReason::loss_not_finite);
    CHECK(outcome.state.updates == before.updates);
    CHECK(outcome.state.losses ==
          OutlierState{before.losses.mean, before.losses.variance, before.losses.count + 1});
    CHECK(updated_weight(gate) == 1.0f);
    before = outcome.state;
  }
  CHECK(gate.decide(1.0, 1.0).state.updates == before.updates + 1);
}

TEST_CASE("a spike of the loss closes the gate, and counts as the largest value that is none") {
  Gate gate;
  gate.rule.spike_ratio = 3.0;
  for (int i = 0; i < 7; ++i) CHECK(gate.decide(2.0, 1.0).reason == ops::GateReason::none);
  CHECK(gate.decide(6.5, 1.0).reason == ops::GateReason::none);  // 7 values are too few
  Gate full;
  full.rule.spike_ratio = 3.0;
  for (int i = 0; i < 8; ++i) full.decide(2.0, 1.0);
  CHECK(full.decide(5.9, 1.0).reason == ops::GateReason::none);
  const OutlierState before =
      ops::gate_outcome(ops::copy_to_host<double>(full.context, full.outcome)).state.losses;
  const ops::GateOutcome spike = full.decide(100.0, 1.0);
  CHECK(spike.reason == ops::GateReason::loss_spike);
  OutlierState expected = before;
  add_value(expected, full.rule.loss, 3.0 * before.mean);
  CHECK(spike.state.losses.mean == doctest::Approx(expected.mean));
  CHECK(spike.state.losses.count == expected.count);
  CHECK(updated_weight(full) == 1.0f);
  // Also a spike whose gradients are not finite.
  const ops::GateOutcome broken = full.decide(1e6, std::numeric_limits<double>::infinity());
  CHECK(broken.reason == ops::GateReason::gradient_not_finite);
  add_value(expected, full.rule.loss, 3.0 * expected.mean);
  CHECK(broken.state.losses.mean == doctest::Approx(expected.mean));
  // What is not finite leaves the mean alone.
  CHECK(full.decide(std::numeric_limits<double>::infinity(), 1.0).state.losses.count ==
        broken.state.losses.count);
}

TEST_CASE("outliers of loss and norm close the gate once their windows are full") {
  Gate gate;
  gate.rule.loss = gate.rule.norm = {4.0, 16};
  for (int i = 0; i < 16; ++i) {
    const double value = 2.0 + 0.1 * (i % 2 == 0 ? 1 : -1);
    CHECK(gate.decide(value, value * value).reason == ops::GateReason::none);
  }
  CHECK(gate.decide(9.0, 4.0).reason == ops::GateReason::loss_outlier);
  CHECK(gate.decide(2.0, 81.0).reason == ops::GateReason::norm_outlier);
  const ops::GateOutcome good = gate.decide(2.0, 4.0);
  CHECK(good.reason == ops::GateReason::none);
  CHECK(good.state.updates == 17);
  CHECK(good.state.losses.count == 19);
}

TEST_CASE("a gate goes on from a state that was read") {
  Gate gate, other;
  gate.rule.loss = other.rule.loss = {3.0, 4};
  ops::GateOutcome outcome;
  for (int i = 0; i < 10; ++i) outcome = gate.decide(i % 3, i % 5);
  other.state = ops::gate_state(other.context, outcome.state);
  CHECK(gate.decide(1.0, 2.0).state == other.decide(1.0, 2.0).state);
  CHECK(gate.values() == other.values());
}

TEST_CASE("values that are read late are those of their place in the stream") {
  ExecutionContext context(1, test::device());
  if (context.device().kind == DeviceKind::cpu) context.defer(7);
  Tensor x = context.zeros(DType::f64, {3});
  ops::fill(context, 2.0, x);
  const ops::LateValues<double> two = ops::begin_copy_to_host<double>(context, x);
  ops::fill(context, 3.0, x);
  const ops::LateValues<double> three = ops::begin_copy_to_host<double>(context, x);
  CHECK(three.wait()[2] == 3.0);
  CHECK(two.wait()[0] == 2.0);
}

}  // namespace sortie::trainer
