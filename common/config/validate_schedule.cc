// Rules about the length of the run and its schedule, and those of training groups.
#include <fmt/core.h>

#include <set>

#include "common/config/text.h"
#include "common/config/training_groups.h"
#include "common/config/validate.h"

namespace sortie::config {
namespace {

using Violations = std::vector<Violation>;

constexpr std::string_view kStableDecay = "warmup-stable-decay";

void check_schedule(const LearningRateSchedulerConfig& schedule, const TrainerConfig& trainer,
                    Violations& found) {
  const std::string section = "learning_rate_scheduler.";
  if (schedule.learning_rate_minimum > schedule.learning_rate)
    found.push_back({"L1",
                     {section + "learning_rate_minimum", section + "learning_rate"},
                     fmt::format("{} is above learning_rate = {}; lower it",
                                 number_text(schedule.learning_rate_minimum),
                                 number_text(schedule.learning_rate))});
  const bool explicit_iters = schedule.learning_rate_decay_iters != 0;
  // The number of steps in epochs is known only once the data is open; it is checked then.
  if (!explicit_iters && trainer.train_epochs != 0) return;
  const std::int64_t iters =
      explicit_iters ? schedule.learning_rate_decay_iters : trainer.train_iterations;
  const std::string end =
      explicit_iters ? section + "learning_rate_decay_iters" : "trainer.train_iterations";
  const std::string end_name =
      explicit_iters ? "learning_rate_decay_iters" : "trainer.train_iterations";
  const std::string& style = schedule.learning_rate_decay_style;
  if (style == "constant") return;
  if (schedule.learning_rate_warmup_steps >= iters)
    found.push_back(
        {"L1",
         {section + "learning_rate_warmup_steps", end, section + "learning_rate_decay_style"},
         fmt::format("{} leaves no step to decay in, because the decay ends at step {} ({}); use "
                     "less, or learning_rate_decay_style = \"constant\"",
                     schedule.learning_rate_warmup_steps, iters, end_name)});
  else if (style == kStableDecay &&
           schedule.learning_rate_warmup_steps + schedule.wsd_decay_steps > iters)
    found.push_back(
        {"L1",
         {section + "wsd_decay_steps", section + "learning_rate_warmup_steps", end},
         fmt::format("{} steps of decay after {} of warm-up are more than the {} of {}; use at "
                     "most {}",
                     schedule.wsd_decay_steps, schedule.learning_rate_warmup_steps, iters, end_name,
                     iters - schedule.learning_rate_warmup_steps)});
}

/// Rule L2: keys of warmup-stable-decay must not be set if no schedule reads them. `set` are those
/// that differ from `defaults`.
void check_wsd_keys(const LearningRateSchedulerConfig& set,
                    const LearningRateSchedulerConfig& defaults, Violations& found) {
  const auto refuse = [&](const char* key) {
    found.push_back({"L2",
                     {fmt::format("learning_rate_scheduler.{}", key),
                      "learning_rate_scheduler.learning_rate_decay_style"},
                     fmt::format("learning_rate_decay_style = \"{}\" does not read it; remove it, "
                                 "or set learning_rate_decay_style = \"{}\"",
                                 set.learning_rate_decay_style, kStableDecay),
                     /*unread=*/true});
  };
  if (set.wsd_decay_steps != defaults.wsd_decay_steps) refuse("wsd_decay_steps");
  if (set.wsd_decay_style != defaults.wsd_decay_style) refuse("wsd_decay_style");
}

void check_groups(const JobConfig& job, Violations& found) {
  const LearningRateSchedulerConfig& main = job.learning_rate_scheduler;
  bool stable_decay = main.learning_rate_decay_style == kStableDecay;
  std::set<std::string> names;
  for (const std::string& line : job.optimizer.training_groups) {
    const auto group = parse_training_group(line, main);
    if (!group) continue;  // rule F1 reports it
    if (!names.insert(group->name).second)
      found.push_back(
          {"O1",
           {"optimizer.training_groups"},
           fmt::format("{} is there twice; give each group a name of its own", group->name)});
    Violations wrong;
    check_schedule(group->schedule, job.trainer, wrong);
    if (group->schedule.learning_rate_decay_style == kStableDecay)
      stable_decay = true;
    else
      check_wsd_keys(group->schedule, main, wrong);
    for (const Violation& violation : wrong)
      found.push_back({"O1",
                       {"optimizer.training_groups", violation.keys.front()},
                       fmt::format("group {}: {}: {}", group->name, violation.keys.front(),
                                   violation.message)});
  }
  // A group has the keys of the main schedule that it does not set itself.
  if (!stable_decay) check_wsd_keys(main, {}, found);
}

}  // namespace

std::vector<Violation> check_schedules(const JobConfig& job) {
  Violations found;
  check_schedule(job.learning_rate_scheduler, job.trainer, found);
  check_groups(job, found);
  return found;
}

}  // namespace sortie::config
