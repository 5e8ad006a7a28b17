#include "common/config/validate.h"

#include <fmt/core.h>

#include <numeric>

#include "common/config/hostlist.h"

namespace sortie::config {
namespace {

using Violations = std::vector<Violation>;

// R1, R2: hosts, timeouts.
void check_runner(const RunnerConfig& runner, Violations& out) {
  if (!runner.hosts.empty() && !runner.hosts_file.empty()) {
    out.push_back(
        {{"runner.hosts_file", "runner.hosts"}, "runner.hosts is set too; use one of the two"});
  } else if (runner.hosts_file.empty()) {
    if (const auto hosts = job_hosts(runner); !hosts)
      out.push_back({{"runner.hosts"}, hosts.error().message});
  }
  if (runner.heartbeat_timeout <= 2 * runner.heartbeat_interval)
    out.push_back(
        {{"runner.heartbeat_timeout", "runner.heartbeat_interval"},
         fmt::format(
             "{} ms is not more than twice heartbeat_interval ({} ms), one late beat would end the "
             "run; raise it",
             runner.heartbeat_timeout.count(), runner.heartbeat_interval.count())});
  for (const auto& [name, value] : runner.env)
    if (name.empty() || name.find('=') != name.npos || name.find('\0') != name.npos ||
        value.find('\0') != value.npos)
      out.push_back({{"runner.env"},
                     fmt::format("'{}' can not be a variable; no '=' and no NUL byte", name)});
}

// T4: batch sizes that can not fit any world size.
void check_topology(const TopologyConfig& topology, Violations& out) {
  const std::int64_t passes =
      topology.micro_batch_size *
      (topology.gradient_accumulation_steps ? topology.gradient_accumulation_steps : 1);
  if (topology.global_batch_size != 0 && topology.global_batch_size % passes != 0)
    out.push_back(
        {{"topology.global_batch_size", "topology.micro_batch_size"},
         fmt::format(
             "{} is not a multiple of micro_batch_size x gradient_accumulation_steps = {}; {} is",
             topology.global_batch_size, passes,
             (topology.global_batch_size / passes + 1) * passes)});
}

// L1: schedule.
void check_schedule(const JobConfig& job, Violations& out) {
  const auto& schedule = job.learning_rate_scheduler;
  if (schedule.learning_rate_minimum > schedule.learning_rate)
    out.push_back({{"learning_rate_scheduler.learning_rate_minimum"},
                   fmt::format("{} is above learning_rate {}; lower it",
                               schedule.learning_rate_minimum, schedule.learning_rate)});
  const std::int64_t end = schedule.learning_rate_decay_iters ? schedule.learning_rate_decay_iters
                                                              : job.trainer.train_iterations;
  if (schedule.learning_rate_decay_style != "constant" &&
      end <= schedule.learning_rate_warmup_steps)
    out.push_back(
        {{"learning_rate_scheduler.learning_rate_warmup_steps",
          "learning_rate_scheduler.learning_rate_decay_iters"},
         fmt::format("{} warm-up steps leave nothing of the {} steps of the schedule; lower them",
                     schedule.learning_rate_warmup_steps, end)});
}

// T5: heads; rotary dimensions.
void check_model(const ModelConfig& model, Violations& out) {
  const std::int64_t kv =
      model.attention_num_kv_heads ? model.attention_num_kv_heads : model.num_attention_heads;
  if (model.head_dim == 0 && model.hidden_size % model.num_attention_heads != 0) {
    out.push_back(
        {{"model.hidden_size", "model.num_attention_heads"},
         fmt::format(
             "{} is not a multiple of num_attention_heads {}; {} is, or set head_dim",
             model.hidden_size, model.num_attention_heads,
             (model.hidden_size / model.num_attention_heads + 1) * model.num_attention_heads)});
    return;
  }
  if (model.num_attention_heads % kv != 0)
    out.push_back(
        {{"model.attention_num_kv_heads"},
         fmt::format(
             "num_attention_heads {} is not a multiple of {}; {} is the nearest that divides it",
             model.num_attention_heads, kv, std::gcd(model.num_attention_heads, kv))});
  if (model.architecture == "gpt-neo-x" && kv != model.num_attention_heads)
    out.push_back({{"model.attention_num_kv_heads"},
                   fmt::format("gpt-neo-x has as many key heads as query heads ({}); leave it out",
                               model.num_attention_heads)});
  const std::int64_t head_dim =
      model.head_dim ? model.head_dim : model.hidden_size / model.num_attention_heads;
  const auto rotary =
      static_cast<std::int64_t>(static_cast<double>(head_dim) * model.rotary_percentage);
  if (rotary < 2 || rotary % 2 != 0)
    out.push_back(
        {{"model.rotary_percentage"},
         fmt::format(
             "{} of a head of {} is {} dimensions; RoPE turns pairs, so an even number is needed",
             model.rotary_percentage, head_dim, rotary)});
}

// C1 and evaluation.
void check_trainer(const JobConfig& job, Violations& out) {
  if (job.trainer.save_interval > 0 && job.trainer.save_dir.empty())
    out.push_back(
        {{"trainer.save_interval"}, "trainer.save_dir is empty, nothing would be saved; set it"});
  if (job.trainer.eval_interval > 0 && job.data.validation_data_prefixes.empty())
    out.push_back({{"trainer.eval_interval"},
                   "data.validation_data_prefixes is empty; set it, or eval_interval = 0"});
  const std::string& tokenizer = job.data.tokenizer;
  if (tokenizer != "byte" &&
      (!tokenizer.starts_with("sentencepiece:") || tokenizer == "sentencepiece:"))
    out.push_back({{"data.tokenizer"},
                   fmt::format("'{}' is unknown; byte, or sentencepiece:FILE", tokenizer)});
}

}  // namespace

std::vector<Violation> validate(const JobConfig& job) {
  Violations out;
  check_runner(job.runner, out);
  check_topology(job.topology, out);
  check_schedule(job, out);
  check_model(job.model, out);
  check_trainer(job, out);
  return out;
}

}  // namespace sortie::config
