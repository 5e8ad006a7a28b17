// Simulates the schedules of a pipeline, with stages that block in every receive and passes of
// fixed duration.
#include "trainer/parallel/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace sortie::trainer {
namespace {

using Kind = PipelineAction::Kind;
using Actions = std::vector<PipelineAction>;

std::vector<PipelineShape> shapes_to_try() {
  std::vector<PipelineShape> shapes;
  for (const int stages : {1, 2, 3, 4, 7, 8})
    for (const int interleave : {1, 2, 3, 4}) {
      if (stages == 1 && interleave > 1) continue;
      for (std::int64_t micro = 1; micro <= 3 * stages; ++micro)
        if (interleave == 1 || micro % stages == 0) shapes.push_back({stages, interleave, micro});
      if (interleave > 1) continue;
      for (std::int64_t micro = 1; micro <= 3 * stages; ++micro)
        shapes.push_back({stages, 1, micro, /*zero_bubble=*/true});
    }
  return shapes;
}

struct Simulated {
  bool finished = false;
  double time = 0.0;         // end of the last pass
  std::vector<double> busy;  // by stage
};

/// Simulates stages that do their actions in order. A pass begins when the stage is free and the
/// message that it needs has arrived. A stage receives the messages of another stage in the order
/// in which they were sent.
Simulated simulate(const PipelineShape& shape, const std::vector<Actions>& actions, double forward,
                   double backward, double weights = 1.0) {
  const auto seconds = [&](Kind kind) {
    if (kind == Kind::weights) return weights;
    return (kind == Kind::forward ? forward : backward) / shape.interleave;
  };
  const auto stages = static_cast<std::size_t>(shape.stages);
  std::map<std::pair<int, int>, std::deque<std::pair<PipelineMessage, double>>> sent;
  std::vector<std::size_t> next(stages, 0);
  // Time of arrival at a stage, by message.
  std::vector<std::map<std::tuple<int, std::int64_t, int>, double>> there(stages);
  Simulated result;
  result.busy.resize(stages);
  std::vector<double> free_at(stages, 0.0);
  const auto key = [](Kind kind, std::int64_t micro, int run) {
    return std::tuple(static_cast<int>(kind), micro, run);
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (int stage = 0; stage < shape.stages; ++stage) {
      const auto s = static_cast<std::size_t>(stage);
      for (; next[s] < actions[s].size(); ++next[s]) {
        const PipelineAction& action = actions[s][next[s]];
        const int run = shape.global_run(stage, action.run);
        const bool receives = action.kind == Kind::forward    ? run > 0
                              : action.kind == Kind::backward ? run + 1 < shape.runs()
                                                              : false;
        double start = free_at[s];
        if (receives) {
          const int from = (action.kind == Kind::forward ? run - 1 : run + 1) % shape.stages;
          auto& line = sent[{from, stage}];
          while (!line.empty()) {
            const auto& [message, when] = line.front();
            there[s][key(message.kind, message.micro_batch, message.run)] = when;
            line.pop_front();
          }
          const auto found = there[s].find(key(action.kind, action.micro_batch, action.run));
          if (found == there[s].end()) break;
          start = std::max(start, found->second);
          there[s].erase(found);
        }
        const double takes = seconds(action.kind);
        free_at[s] = start + takes;
        result.busy[s] += takes;
        int to = 0;
        PipelineMessage message;
        if (message_of(shape, stage, action, to, message))
          sent[{stage, to}].emplace_back(message, free_at[s]);
        moved = true;
      }
    }
  }
  result.finished = true;
  for (std::size_t s = 0; s < stages; ++s)
    result.finished = result.finished && next[s] == actions[s].size() && there[s].empty();
  for (const auto& [pair, line] : sent) result.finished = result.finished && line.empty();
  result.time = *std::ranges::max_element(free_at);
  return result;
}

std::vector<Actions> training_schedules(const PipelineShape& shape) {
  std::vector<Actions> all;
  for (int stage = 0; stage < shape.stages; ++stage) all.push_back(training_schedule(shape, stage));
  return all;
}

}  // namespace

TEST_CASE("a stage takes every micro-batch forward once, then backward once, through each run") {
  for (const PipelineShape& shape : shapes_to_try())
    for (int stage = 0; stage < shape.stages; ++stage) {
      CAPTURE(shape.stages);
      CAPTURE(shape.interleave);
      CAPTURE(shape.micro_batches);
      CAPTURE(stage);
      std::set<std::pair<std::int64_t, int>> forward, backward;
      std::int64_t weights = 0;
      std::vector<std::int64_t> last_micro(static_cast<std::size_t>(shape.interleave), -1);
      std::int64_t in_flight = 0, most = 0;
      bool ordered = true;
      for (const PipelineAction& action : training_schedule(shape, stage)) {
        const std::pair pass(action.micro_batch, action.run);
        if (action.kind == Kind::forward) {
          ordered = ordered && forward.insert(pass).second;
          // Samples are read in order.
          std::int64_t& last = last_micro[static_cast<std::size_t>(action.run)];
          ordered = ordered && action.micro_batch == last + 1;
          last = action.micro_batch;
          most = std::max(most, ++in_flight);
        } else if (action.kind == Kind::backward) {
          ordered = ordered && forward.contains(pass) && backward.insert(pass).second;
          if (!shape.zero_bubble) --in_flight;
        } else {  // in the order of micro-batches, so that sums have the bits of 1F1B
          ordered = ordered && shape.zero_bubble && backward.contains(pass) &&
                    action.micro_batch == weights;
          ++weights;
          --in_flight;
        }
      }
      CHECK(ordered);
      CHECK(static_cast<std::int64_t>(backward.size()) == shape.micro_batches * shape.interleave);
      CHECK(forward.size() == backward.size());
      CHECK(weights == (shape.zero_bubble ? shape.micro_batches : 0));
      CHECK(most == most_in_flight(shape, stage));
      if (shape.interleave == 1)
        CHECK(most <= (shape.zero_bubble ? shape.stages : shape.stages - stage));
    }
}

TEST_CASE("all forward passes of a stage come before the last backward pass of each run") {
  for (const PipelineShape& shape : shapes_to_try())
    for (int stage = 0; stage < shape.stages; ++stage) {
      const Actions actions = training_schedule(shape, stage);
      const auto last_forward =
          std::ranges::find_if(actions.rbegin(), actions.rend(), [](const PipelineAction& action) {
            return action.kind == Kind::forward;
          }).base();
      std::set<int> runs;
      for (auto at = last_forward; at != actions.end(); ++at)
        if (at->micro_batch + 1 == shape.micro_batches) runs.insert(at->run);
      CHECK(static_cast<int>(runs.size()) == shape.interleave);
    }
}

TEST_CASE("stages that block in their receives never wait for each other in a circle") {
  for (const PipelineShape& shape : shapes_to_try()) {
    CAPTURE(shape.stages);
    CAPTURE(shape.interleave);
    CAPTURE(shape.micro_batches);
    CHECK(simulate(shape, training_schedules(shape), 1.0, 2.0).finished);
    // A schedule that ends before the first run's last backward pass is detected.
    if (shape.stages == 1) continue;
    std::vector<Actions> cut = training_schedules(shape);
    // No stage waits for them.
    while (cut.back().back().kind == Kind::weights) cut.back().pop_back();
    cut.back().pop_back();
    CHECK(!simulate(shape, cut, 1.0, 2.0).finished);
  }
}

TEST_CASE("forward schedules of any number of micro-batches end") {
  for (const int stages : {1, 2, 3, 4})
    for (const int interleave : {1, 2, 3})
      for (std::int64_t micro = 1; micro <= 9; ++micro) {
        const PipelineShape shape{stages, interleave, micro};
        std::vector<Actions> all;
        for (int stage = 0; stage < stages; ++stage) all.push_back(forward_schedule(shape, stage));
        CHECK(static_cast<std::int64_t>(all[0].size()) == micro * interleave);
        CHECK(simulate(shape, all, 1.0, 2.0).finished);
      }
}

TEST_CASE("the idle share of a pipeline is (p - 1) / (v m + p - 1)") {
  for (const PipelineShape& shape : shapes_to_try()) {
    if (shape.micro_batches < shape.stages || shape.zero_bubble) continue;
    CAPTURE(shape.stages);
    CAPTURE(shape.interleave);
    CAPTURE(shape.micro_batches);
    for (const double backward : {1.0, 2.0}) {
      const Simulated run = simulate(shape, training_schedules(shape), 1.0, backward);
      for (const double busy : run.busy)
        CHECK(1.0 - busy / run.time == doctest::Approx(bubble_share(shape)).epsilon(1e-9));
    }
  }
  CHECK(bubble_share({4, 1, 16}) == doctest::Approx(3.0 / 19.0));
  CHECK(bubble_share({4, 2, 16}) == doctest::Approx(3.0 / 35.0));
}

TEST_CASE("a pipeline that puts gradients of weights off waits a third of the time") {
  for (const PipelineShape& shape : shapes_to_try()) {
    if (!shape.zero_bubble || shape.micro_batches < shape.stages) continue;
    CAPTURE(shape.stages);
    CAPTURE(shape.micro_batches);
    const Simulated run = simulate(shape, training_schedules(shape), 1.0, 1.0, 1.0);
    for (const double busy : run.busy)
      CHECK(1.0 - busy / run.time == doctest::Approx(bubble_share(shape)).epsilon(1e-9));
    // If gradients of inputs take longer than those of weights, the idle time is p - 1 times what
    // the stage before must wait for: a forward and a backward pass, less the weight gradients that
    // fill the time.
    const Simulated uneven = simulate(shape, training_schedules(shape), 1.0, 1.2, 0.8);
    CHECK(uneven.time == doctest::Approx(3.0 * static_cast<double>(shape.micro_batches) +
                                         1.4 * (shape.stages - 1)));
  }
  CHECK(bubble_share({4, 1, 16, true}) == doctest::Approx(3.0 / 51.0));
}

TEST_CASE("messages of two stages come in the order of the sender's actions") {
  // Two stages with two runs each: both kinds of messages go both ways between a pair of ranks.
  const PipelineShape shape{2, 2, 2};
  const auto to_second = messages_between(shape, 0, 1, training_schedule(shape, 0));
  CHECK(to_second.size() == 2 * 2 + 1 * 2);  // two runs forward, one run's gradients
  const auto to_first = messages_between(shape, 1, 0, training_schedule(shape, 1));
  CHECK(to_first.size() == 1 * 2 + 2 * 2);
  CHECK(to_second.front() == PipelineMessage{Kind::forward, 0, 0});
  CHECK(to_second.back() == PipelineMessage{Kind::backward, 1, 0});
  CHECK(to_first.front() == PipelineMessage{Kind::forward, 0, 1});
}

}  // namespace sortie::trainer
