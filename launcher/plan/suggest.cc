#include "launcher/plan/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "launcher/plan/predict_step.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kMost = 10;
constexpr double kBytesOfGib = 1 << 30;

/// Divisors of `count` up to `most`, ascending.
std::vector<std::int64_t> divisors(std::int64_t count, std::int64_t most) {
  std::vector<std::int64_t> found;
  for (std::int64_t i = 1; i <= std::min(count, most); ++i)
    if (count % i == 0) found.push_back(i);
  return found;
}

/// 1 and the value of the job.
std::vector<std::int64_t> one_and(std::int64_t asked) {
  return asked > 1 ? std::vector<std::int64_t>{1, asked} : std::vector<std::int64_t>{1};
}

/// Adds `base` with every sharding and micro-batch size.
void add_batches(const config::TopologyConfig& base, std::int64_t replicas,
                 std::vector<config::TopologyConfig>& all) {
  const std::int64_t sequences = base.global_batch_size / replicas;
  const bool shares = replicas * base.context_parallel_size > 1;
  for (const char* sharding : {"none", "optimizer", "full"}) {
    if (!shares && std::string_view(sharding) != "none") continue;
    for (std::int64_t micro = 1; micro <= sequences; micro *= 2) {
      if (sequences % micro != 0) continue;
      config::TopologyConfig& one = all.emplace_back(base);
      one.parameter_sharding = sharding;
      one.micro_batch_size = micro;
      one.gradient_accumulation_steps = sequences / micro;
    }
  }
}

/// Returns all candidates; make_plan() checks whether they are legal.
std::vector<config::TopologyConfig> candidates(const config::JobConfig& job,
                                               const std::vector<config::HostSlots>& hosts,
                                               std::int64_t global_batch) {
  std::int64_t world = 0, slots = 0;
  for (const config::HostSlots& host : hosts) {
    const auto own = static_cast<std::int64_t>(host.slots.size());
    world += own;
    slots = slots == 0 ? own : std::min(slots, own);
  }
  std::vector<config::TopologyConfig> all;
  config::TopologyConfig one = job.topology;
  one.data_parallel_size = 0;
  one.global_batch_size = global_batch;
  one.pipeline_stage_layers.clear();
  for (const std::int64_t experts : one_and(job.topology.expert_parallel_size))
    for (const std::int64_t context : one_and(job.topology.context_parallel_size))
      for (const std::int64_t tensor : divisors(world, slots))
        for (const std::int64_t pipeline : divisors(world / tensor, job.model.num_layers))
          for (std::int64_t interleave = 1; interleave <= (pipeline > 1 ? 4 : 1); interleave *= 2) {
            const std::int64_t shared = tensor * pipeline * context;
            if (world % shared != 0 || global_batch % (world / shared) != 0) continue;
            one.tensor_parallel_size = tensor;
            one.sequence_parallel = tensor > 1 && job.model.sequence_length % tensor == 0;
            one.context_parallel_size = context;
            one.expert_parallel_size = experts;
            if (experts == 1) one.expert_tensor_parallel_size = 0;
            one.pipeline_parallel_size = pipeline;
            one.pipeline_interleave = interleave;
            one.pipeline_schedule = "1f1b";
            add_batches(one, world / shared, all);
            if (pipeline == 1 || interleave > 1) continue;
            one.pipeline_schedule = "zero_bubble";
            add_batches(one, world / shared, all);
          }
  return all;
}

/// Memory per rank on the host with the least; 0 if unknown.
double memory_of_rank(const LaunchPlan& plan, std::uint64_t memory_bytes) {
  double least = 0.0;
  for (const HostPlan& host : plan.hosts) {
    const std::uint64_t there = memory_bytes > 0 ? memory_bytes : host.memory_bytes;
    if (there == 0 || host.ranks.empty()) continue;
    const double each = static_cast<double>(there) / static_cast<double>(host.ranks.size());
    least = least == 0.0 ? each : std::min(least, each);
  }
  return least;
}

std::string other_text(const Suggestion& one) {
  std::string text = one.sharding;
  if (one.sequence) text += ", sequence";
  if (one.zero_bubble) text += ", zero bubble";
  if (one.context > 1) text += fmt::format(", context {}", one.context);
  if (one.experts > 1) text += fmt::format(", experts {}", one.experts);
  return text;
}

}  // namespace

Result<Suggestions> suggest_layouts(const config::JobConfig& job,
                                    const std::vector<config::HostSlots>& hosts,
                                    const LauncherFacts& facts, const MeasuredRates& rates,
                                    KnownMemory known,
                                    const std::function<void(std::size_t, std::size_t)>& on_tried) {
  if (!job.runner.program.empty())
    return fail(ErrorCode::config,
                "plan --suggest: the job runs a program of its own, and layouts "
                "are those of sortie-train; leave it out");
  if (!facts.ask_trainer)
    return fail(ErrorCode::unsupported,
                "plan --suggest: it needs sortie-train in the folder of sortie, to compute the "
                "cost of a layout; "
                "install both");
  std::int64_t world = 0;
  for (const config::HostSlots& host : hosts) world += static_cast<std::int64_t>(host.slots.size());
  const config::BatchOutcome batch = config::resolve_batch(job.topology, world);
  const std::int64_t global_batch =
      batch.violations.empty() ? batch.plan.global_batch_size : job.topology.global_batch_size;
  if (global_batch == 0)
    return fail(ErrorCode::config,
                "plan --suggest: the batch is not known, and every layout has "
                "the same one; set topology.global_batch_size");
  Suggestions found;
  std::string last_error;
  const std::vector<config::TopologyConfig> all = candidates(job, hosts, global_batch);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (on_tried) on_tried(i, all.size());
    config::JobConfig changed = job;
    changed.topology = all[i];
    const auto broken = [&](const std::vector<config::Violation>& violations) {
      if (!violations.empty())
        last_error =
            fmt::format("{}: {}", violations.front().keys.front(), violations.front().message);
      return !violations.empty();
    };
    if (broken(config::validate(changed))) continue;
    const auto plan = make_plan(changed, hosts, facts);
    if (!plan) {
      last_error = plan.error().message;
      continue;
    }
    if (!plan->model) {
      last_error = plan->model_warnings.empty() ? "" : plan->model_warnings.front();
      continue;
    }
    ++found.legal;
    const auto& memory = plan->model->cost.memory;
    const auto named =
        std::ranges::find(memory, rates.precision, &training::ModelCost::Memory::precision);
    const auto use = static_cast<std::size_t>(named == memory.end() ? 0 : named - memory.begin());
    found.precision = memory[use].precision;
    const double there = memory_of_rank(*plan, known.host);
    if (there > 0.0 && static_cast<double>(memory[use].on_host()) > there) {
      ++found.too_large;
      continue;
    }
    const auto gpu_bytes = static_cast<std::uint64_t>(memory_on_gpu(memory[use]));
    if (known.gpu > 0 && gpu_bytes > known.gpu) {
      ++found.too_large_for_gpu;
      continue;
    }
    found.gpu_memory_unknown = found.gpu_memory_unknown || (gpu_bytes > 0 && known.gpu == 0);
    found.best.push_back(predict_step(changed, *plan, use, rates));
  }
  if (found.legal == 0)
    return fail(ErrorCode::config,
                fmt::format("plan --suggest: no layout is legal; of the last one: {}", last_error));
  std::ranges::stable_sort(found.best, {}, [](const Suggestion& one) {
    return std::pair(one.seconds(), one.memory_bytes);
  });
  if (found.best.size() > kMost) found.best.resize(kMost);
  return found;
}

std::string suggestions_text(const Suggestions& suggestions) {
  const bool on_gpus = std::ranges::any_of(
      suggestions.best, [](const Suggestion& one) { return one.gpu_memory_bytes > 0; });
  const auto too_large = [](std::size_t count, const char* whose) {
    return count == 0 ? "" : fmt::format(", {} of them too large for the {} memory", count, whose);
  };
  std::string out =
      fmt::format("{} legal layout{}{}{}, the fastest by prediction in {}\n", suggestions.legal,
                  suggestions.legal == 1 ? "" : "s", too_large(suggestions.too_large, "hosts'"),
                  too_large(suggestions.too_large_for_gpu, "GPUs'"), suggestions.precision);
  if (suggestions.gpu_memory_unknown)
    out +=
        "the memory of the GPUs is not known: layouts that do not fit them are among these; give "
        "--gpu-memory GIB\n";
  if (suggestions.best.empty())
    return out +
           "none is left; set topology.activation_checkpointing_type = \"every_layer\", or give it "
           "more hosts\n";
  out += '\n';
  out += fmt::format("  {:>6}  {:>8}  {:>5}  {:>8}  {:<40}  {:>5}  {:>4}  {:>9}  {:>10}  {:>7}\n",
                     "tensor", "pipeline", "runs", "replicas", "sharding and more", "micro", "acc.",
                     "s a step", "s waiting", on_gpus ? "GPU GiB" : "GiB");
  for (const Suggestion& one : suggestions.best)
    out += fmt::format(
        "  {:>6}  {:>8}  {:>5}  {:>8}  {:<40}  {:>5}  {:>4}  {:>9.4g}  {:>10.3g}  {:>7.2f}\n",
        one.tensor, one.pipeline, one.interleave, one.replicas, other_text(one),
        one.micro_batch_size, one.accumulation, one.seconds(), one.waits,
        static_cast<double>(on_gpus ? one.gpu_memory_bytes : one.memory_bytes) / kBytesOfGib);
  return out;
}

nlohmann::ordered_json suggestions_json(const Suggestions& suggestions) {
  nlohmann::ordered_json out = {{"legal", suggestions.legal},
                                {"too_large", suggestions.too_large},
                                {"too_large_for_gpu", suggestions.too_large_for_gpu},
                                {"precision", suggestions.precision},
                                {"best", nlohmann::ordered_json::array()}};
  for (const Suggestion& one : suggestions.best) {
    out["best"].push_back({{"tensor_parallel_size", one.tensor},
                           {"sequence_parallel", one.sequence},
                           {"pipeline_parallel_size", one.pipeline},
                           {"pipeline_interleave", one.interleave},
                           {"pipeline_schedule", one.zero_bubble ? "zero_bubble" : "1f1b"},
                           {"context_parallel_size", one.context},
                           {"expert_parallel_size", one.experts},
                           {"parameter_sharding", one.sharding},
                           {"micro_batch_size", one.micro_batch_size},
                           {"gradient_accumulation_steps", one.accumulation},
                           {"data_parallel_size", one.replicas},
                           {"step_seconds", one.seconds()},
                           {"waiting_seconds", one.waits},
                           {"rank_memory_bytes", one.memory_bytes}});
    if (one.gpu_memory_bytes > 0)
      out["best"].back()["rank_gpu_memory_bytes"] = one.gpu_memory_bytes;
  }
  return out;
}

}  // namespace sortie::launcher
