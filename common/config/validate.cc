#include "common/config/validate.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "common/config/fields.h"
#include "common/config/hostlist.h"
#include "common/config/stage.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

/// Collects violations; `keys` are full keys, the one to blame first.
class Rules {
 public:
  void broken(std::string_view rule, std::vector<std::string> keys, std::string message) {
    found_.push_back({rule, std::move(keys), std::move(message)});
  }
  void add(Violation violation) { found_.push_back(std::move(violation)); }
  std::vector<Violation> take() { return std::move(found_); }

 private:
  std::vector<Violation> found_;
};

/// Divisors of `n` next to `value`: "4 or 8". `n` is at most a few ten thousand.
std::string nearest_divisors(std::int64_t n, std::int64_t value) {
  std::int64_t below = 0;
  std::int64_t above = 0;
  for (std::int64_t d = 1; d <= n && above == 0; ++d) {
    if (n % d != 0) continue;
    (d < value ? below : above) = d;
  }
  if (below == 0) return fmt::format("{}", above);
  return above == 0 ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

/// Multiples of `unit` next to `value`: "240 or 256".
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return below == 0 ? fmt::format("{}", unit) : fmt::format("{} or {}", below, below + unit);
}

bool is_set_by_sortie(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "RANK",       "WORLD_SIZE",       "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
      "ROLE_RANK",  "ROLE_NAME",        "ROLE_WORLD_SIZE", "NODE_RANK",
      "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",     "MASTER_PORT"};
  return name.starts_with("SORTIE_") || name.starts_with("TORCHELASTIC_") ||
         std::ranges::find(kNames, name) != std::end(kNames);
}

void check_runner(const RunnerConfig& runner, Rules& rules) {
  if (!runner.hosts.empty() && !runner.hosts_file.empty())
    rules.broken("R1", {"runner.hosts_file", "runner.hosts"},
                 "runner.hosts is set too; remove one of the two");
  else if (!runner.hosts.empty())
    if (const auto hosts = check_host_lines(runner); !hosts)
      rules.broken("R1", {"runner.hosts"}, hosts.error().message);
  if (!runner.program.empty() && runner.program.front().empty())
    rules.broken("R2", {"runner.program"}, "the program's name is empty; write it first");
  if (!runner.ssh.command.empty() && runner.ssh.command.front().empty())
    rules.broken("R2", {"runner.ssh.command"}, "the program's name is empty; write it first");
  if (runner.heartbeat_timeout <= 2 * runner.heartbeat_interval)
    rules.broken(
        "R4", {"runner.heartbeat_timeout", "runner.heartbeat_interval"},
        fmt::format("{} is not more than twice runner.heartbeat_interval = {}, so one late "
                    "message would look like a lost host; use more than {}",
                    duration_text(runner.heartbeat_timeout),
                    duration_text(runner.heartbeat_interval),
                    duration_text(2 * runner.heartbeat_interval)));
  for (const auto& [key, table] :
       {std::pair{"runner.env", &runner.env}, {"runner.secret_env", &runner.secret_env}})
    for (const auto& [name, value] : *table)
      if (is_set_by_sortie(name))
        rules.broken(
            "R5", {fmt::format("{}.{}", key, name), key},
            fmt::format("{} is set by Sortie itself, another value for each rank; remove it",
                        name));
  for (const auto& [name, value] : runner.secret_env)
    if (runner.env.contains(name))
      rules.broken("S1", {"runner.secret_env." + name, "runner.secret_env", "runner.env"},
                   fmt::format("{} is in runner.env too; remove one of the two", name));
}

void check_schedule(const LearningRateSchedulerConfig& schedule, const TrainerConfig& trainer,
                    Rules& rules) {
  const std::string section = "learning_rate_scheduler.";
  if (schedule.learning_rate_minimum > schedule.learning_rate)
    rules.broken("L1", {section + "learning_rate_minimum", section + "learning_rate"},
                 fmt::format("{} is above learning_rate = {}; lower it",
                             number_text(schedule.learning_rate_minimum),
                             number_text(schedule.learning_rate)));
  const bool explicit_iters = schedule.learning_rate_decay_iters != 0;
  const std::int64_t iters =
      explicit_iters ? schedule.learning_rate_decay_iters : trainer.train_iterations;
  if (schedule.learning_rate_decay_style != "constant" &&
      schedule.learning_rate_warmup_steps >= iters)
    rules.broken(
        "L1",
        {section + "learning_rate_warmup_steps",
         explicit_iters ? section + "learning_rate_decay_iters" : "trainer.train_iterations",
         section + "learning_rate_decay_style"},
        fmt::format("{} leaves no step to decay in, because the decay ends at step {} ({}); use "
                    "less, or learning_rate_decay_style = \"constant\"",
                    schedule.learning_rate_warmup_steps, iters,
                    explicit_iters ? "learning_rate_decay_iters" : "trainer.train_iterations"));
}

void check_trainer(const JobConfig& job, Rules& rules) {
  const TrainerConfig& trainer = job.trainer;
  if (trainer.save_interval > 0 && trainer.save_dir.empty())
    rules.broken("C1", {"trainer.save_interval", "trainer.save_dir"},
                 fmt::format("{} asks for checkpoints, but trainer.save_dir is empty; set it",
                             trainer.save_interval));
  if (trainer.eval_interval > 0 && job.data.validation_data_prefixes.empty())
    rules.broken("D2", {"trainer.eval_interval", "data.validation_data_prefixes"},
                 fmt::format("{} asks for validation, but data.validation_data_prefixes is empty; "
                             "set it",
                             trainer.eval_interval));
  if (job.profiler.profile_steps > 0 &&
      job.profiler.profile_start_at_step > trainer.train_iterations)
    rules.broken("P1", {"profiler.profile_start_at_step", "trainer.train_iterations"},
                 fmt::format("{} is after the last step, trainer.train_iterations = {}; use less",
                             job.profiler.profile_start_at_step, trainer.train_iterations));
}

void check_kv_heads(const ModelConfig& model, Rules& rules) {
  const std::int64_t heads = model.num_attention_heads;
  const std::int64_t kv = model.attention_num_kv_heads;
  const std::vector<std::string> keys = {"model.attention_num_kv_heads",
                                         "model.num_attention_heads", "model.architecture"};
  if (kv == 0 || kv == heads) return;
  if (model.architecture == "gpt-neo-x")
    rules.broken("T5", keys,
                 fmt::format("gpt-neo-x has as many key and value heads as query heads, {}, not "
                             "{}; use {}, or 0",
                             heads, kv, heads));
  else if (heads % kv != 0)
    rules.broken("T5", keys,
                 fmt::format("model.num_attention_heads = {} is no multiple of {}; use {}", heads,
                             kv, nearest_divisors(heads, kv)));
}

void check_model(const ModelConfig& model, Rules& rules) {
  check_kv_heads(model, rules);
  const std::int64_t heads = model.num_attention_heads;
  if (model.head_dim == 0 && model.hidden_size % heads != 0) {
    rules.broken(
        "T5", {"model.hidden_size", "model.num_attention_heads", "model.head_dim"},
        fmt::format("{} is no multiple of model.num_attention_heads = {}; use {}, or set "
                    "model.head_dim",
                    model.hidden_size, heads, nearest_multiples(model.hidden_size, heads)));
    return;
  }
  const std::int64_t head_dim = model.head_dim != 0 ? model.head_dim : model.hidden_size / heads;
  const double turned = static_cast<double>(head_dim) * model.rotary_percentage;
  const double pairs = std::round(turned / 2);
  // 0.1 * 20 is not exactly 2: allow for the rounding of the share, not of the count.
  if (pairs >= 1 && std::abs(turned - 2 * pairs) <= 1e-6 * static_cast<double>(head_dim)) return;
  const std::int64_t low = std::max<std::int64_t>(2, static_cast<std::int64_t>(turned / 2) * 2);
  const std::int64_t high = low + 2 <= head_dim && turned > 2 ? low + 2 : low;
  const auto share = [&](std::int64_t count) {
    return number_text(static_cast<double>(count) / static_cast<double>(head_dim));
  };
  const std::string advice =
      head_dim < 2                     ? "use a head width of 2 or more"
      : model.rotary_percentage == 1.0 ? "use an even head width"
      : high == low
          ? fmt::format("use rotary_percentage = {} ({} of {})", share(low), low, head_dim)
          : fmt::format("use rotary_percentage = {} or {} ({} or {} of {})", share(low),
                        share(high), low, high, head_dim);
  rules.broken(
      "T5",
      {"model.rotary_percentage", "model.head_dim", "model.hidden_size",
       "model.num_attention_heads"},
      fmt::format("RoPE turns pairs, and {} of a head width of {} is {}, not an even number from "
                  "2; {}",
                  number_text(model.rotary_percentage), head_dim, fmt::format("{:g}", turned),
                  advice));
}

}  // namespace

std::vector<Violation> validate(const JobConfig& job) {
  Rules rules;
  bool in_range = true;
  for (const Field& field : fields())
    if (std::string error = check_value(field, job); !error.empty()) {
      rules.broken("F1", {std::string(field.key)}, std::move(error));
      in_range = false;
    }
  if (!in_range) return rules.take();  // the rules below divide by what the table says is not 0
  check_runner(job.runner, rules);
  for (Violation& violation : check_batch(job.topology)) rules.add(std::move(violation));
  check_schedule(job.learning_rate_scheduler, job.trainer, rules);
  check_trainer(job, rules);
  check_model(job.model, rules);
  for (Violation& violation : check_stage(job)) rules.add(std::move(violation));
  return rules.take();
}

std::vector<Violation> validate_training(const JobConfig& job) {
  Rules rules;
  if (job.data.data_prefixes.empty())
    rules.broken("D1", {"data.data_prefixes"},
                 "no token files to train on; set it to the PREFIX of PREFIX.bin and PREFIX.idx "
                 "(`sortie-train data build` makes them)");
  const std::size_t prefixes = job.data.data_prefixes.size();
  if (!job.data.weights.empty() && job.data.weights.size() != prefixes)
    rules.broken("D3", {"data.weights", "data.data_prefixes"},
                 fmt::format("{} weights for {} prefixes; give one for each, or none",
                             job.data.weights.size(), prefixes));
  if (job.data.sampler == "megatron" && prefixes > 1 && job.data.weights.empty())
    rules.broken(
        "D3", {"data.sampler", "data.weights"},
        fmt::format("megatron blends the {} prefixes by weights; set data.weights", prefixes));
  return rules.take();
}

}  // namespace sortie::config
