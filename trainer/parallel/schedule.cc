#include "trainer/parallel/schedule.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

using Kind = PipelineAction::Kind;

/// Forward passes before the first backward one. With interleaving, a stage first passes a whole
/// group of micro-batches through each of its runs but the last. It is two passes ahead of the next
/// stage, so that results travel while it works on others.
std::int64_t warm_up(const PipelineShape& shape, int stage) {
  const std::int64_t later = shape.stages - stage - 1;
  const std::int64_t passes = shape.micro_batches * shape.interleave;
  const std::int64_t ahead =
      shape.interleave == 1 ? later : 2 * later + std::int64_t{shape.interleave - 1} * shape.stages;
  return std::min(ahead, passes);
}

/// Pass number `index` of a direction: through groups of micro-batches, and in each group through
/// the runs in order.
PipelineAction pass(const PipelineShape& shape, Kind kind, std::int64_t index) {
  const std::int64_t of_group = std::int64_t{shape.stages} * shape.interleave;
  const std::int64_t group = index / of_group, within = index % of_group;
  // The last group of a forward schedule may be smaller.
  const std::int64_t width =
      std::min<std::int64_t>(shape.stages, shape.micro_batches - group * shape.stages);
  const int turn = static_cast<int>(within / width);
  return {kind, group * shape.stages + within % width,
          kind == Kind::forward ? turn : shape.interleave - 1 - turn};
}

void check_shape(const PipelineShape& shape, int stage) {
  SORTIE_CHECK(shape.stages >= 1 && shape.interleave >= 1 && shape.micro_batches >= 1 &&
                   stage >= 0 && stage < shape.stages &&
                   (!shape.zero_bubble || shape.interleave == 1),
               "stage {} of {}, {} runs each, {} micro-batches", stage, shape.stages,
               shape.interleave, shape.micro_batches);
}

/// ZB-H1: forward and backward passes as in 1F1B. Stage s delays the gradients of weights by s
/// micro-batches while forward passes are left, so that all stages have begun equally many
/// micro-batches. Afterwards, gradients of weights fill the time until the next gradient of a later
/// stage arrives.
std::vector<PipelineAction> zero_bubble_schedule(const PipelineShape& shape, int stage) {
  const std::int64_t passes = shape.micro_batches;
  const std::int64_t ahead = warm_up(shape, stage);
  std::vector<PipelineAction> actions;
  actions.reserve(static_cast<std::size_t>(3 * passes));
  for (std::int64_t i = 0; i < ahead; ++i) actions.push_back(pass(shape, Kind::forward, i));
  std::int64_t weighed = 0;
  for (std::int64_t i = 0; i < passes; ++i) {
    const bool steady = ahead + i < passes;
    if (steady) actions.push_back(pass(shape, Kind::forward, ahead + i));
    actions.push_back(pass(shape, Kind::backward, i));
    if (!steady || i >= stage) actions.push_back({Kind::weights, weighed++, 0});
  }
  while (weighed < passes) actions.push_back({Kind::weights, weighed++, 0});
  return actions;
}

}  // namespace

std::vector<PipelineAction> training_schedule(const PipelineShape& shape, int stage) {
  check_shape(shape, stage);
  SORTIE_CHECK(shape.interleave == 1 || shape.micro_batches % shape.stages == 0,
               "{} micro-batches in {} interleaved stages", shape.micro_batches, shape.stages);
  if (shape.zero_bubble) return zero_bubble_schedule(shape, stage);
  const std::int64_t passes = shape.micro_batches * shape.interleave;
  const std::int64_t ahead = warm_up(shape, stage);
  std::vector<PipelineAction> actions;
  actions.reserve(static_cast<std::size_t>(2 * passes));
  for (std::int64_t i = 0; i < ahead; ++i) actions.push_back(pass(shape, Kind::forward, i));
  for (std::int64_t i = 0; i < passes; ++i) {
    if (ahead + i < passes) actions.push_back(pass(shape, Kind::forward, ahead + i));
    actions.push_back(pass(shape, Kind::backward, i));
  }
  return actions;
}

std::vector<PipelineAction> forward_schedule(const PipelineShape& shape, int stage) {
  check_shape(shape, stage);
  std::vector<PipelineAction> actions;
  for (std::int64_t i = 0; i < shape.micro_batches * shape.interleave; ++i)
    actions.push_back(pass(shape, Kind::forward, i));
  return actions;
}

std::int64_t most_in_flight(const PipelineShape& shape, int stage) {
  if (shape.zero_bubble) return std::min<std::int64_t>(shape.stages, shape.micro_batches);
  return std::min(warm_up(shape, stage) + 1, shape.micro_batches * shape.interleave);
}

double bubble_share(const PipelineShape& shape) {
  const double idle = shape.stages - 1;
  const double parts = shape.zero_bubble ? 3 : shape.interleave;
  return idle / (parts * static_cast<double>(shape.micro_batches) + idle);
}

bool message_of(const PipelineShape& shape, int stage, const PipelineAction& action, int& to,
                PipelineMessage& message) {
  if (action.kind == Kind::weights) return false;
  const int from = shape.global_run(stage, action.run);
  const int target = action.kind == Kind::forward ? from + 1 : from - 1;
  if (target < 0 || target >= shape.runs()) return false;
  to = target % shape.stages;
  message = {action.kind, action.micro_batch, target / shape.stages};
  return true;
}

std::vector<PipelineMessage> messages_between(const PipelineShape& shape, int from, int to,
                                              const std::vector<PipelineAction>& actions) {
  std::vector<PipelineMessage> messages;
  for (const PipelineAction& action : actions) {
    int stage = 0;
    PipelineMessage message;
    if (message_of(shape, from, action, stage, message) && stage == to) messages.push_back(message);
  }
  return messages;
}

}  // namespace sortie::trainer
