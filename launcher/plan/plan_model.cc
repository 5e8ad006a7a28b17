#include "launcher/plan/plan_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "common/config/describe.h"
#include "common/config/hostlist.h"
#include "common/cpu/cpu_list.h"
#include "launcher/console/console.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {
namespace {

constexpr std::int64_t kAssumedThreads = 8;
constexpr double kMebibyte = 1 << 20;
constexpr double kGibibyte = 1 << 30;

/// As the runner will set OMP_NUM_THREADS; 0 = not known.
std::int64_t threads_of(const HostPlan& host, const RankPlan& rank) {
  if (rank.threads > 0) return rank.threads;
  if (!rank.cpus.empty())
    if (const auto cpus = cpu::parse_cpu_list(rank.cpus))
      return static_cast<std::int64_t>(cpus->size());
  if (host.cpus == 0) return 0;
  return std::max<std::int64_t>(1, host.cpus / static_cast<std::int64_t>(host.ranks.size()));
}

/// The most that a rank has; every one must be known.
void find_threads(const config::JobConfig& job, const LaunchPlan& plan, ModelPlan& model) {
  model.threads = job.trainer.threads;
  model.threads_assumed = false;
  if (model.threads > 0) return;
  for (const HostPlan& host : plan.hosts)
    for (const RankPlan& rank : host.ranks) {
      const std::int64_t threads = threads_of(host, rank);
      model.threads_assumed = model.threads_assumed || threads == 0;
      model.threads = std::max(model.threads, threads);
    }
  if (model.threads_assumed) model.threads = std::max(model.threads, kAssumedThreads);
}

std::string with_commas(std::int64_t value) {
  std::string digits = fmt::format("{}", value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  return digits;
}

/// Hosts that have less than their ranks will take.
std::vector<std::string> too_small(const LaunchPlan& plan) {
  // Where the CPUs decide on the precision, the one that needs less.
  std::int64_t least = plan.model->memory.front().memory.total();
  for (const auto& [name, memory] : plan.model->memory) least = std::min(least, memory.total());
  std::vector<std::string> warnings;
  for (const HostPlan& host : plan.hosts) {
    const double needed = static_cast<double>(least) * static_cast<double>(host.ranks.size());
    const auto there = static_cast<double>(host.memory_bytes);
    if (host.memory_bytes == 0 || needed <= there) continue;
    warnings.push_back(fmt::format(
        "{}: {} rank{} of {:.1f} GiB need{} {:.1f} GiB, and it has {:.1f} GiB; lower "
        "topology.micro_batch_size, set topology.activation_checkpointing_type = \"every_layer\", "
        "or give it fewer slots",
        host.name, host.ranks.size(), host.ranks.size() == 1 ? "" : "s",
        static_cast<double>(least) / kGibibyte, host.ranks.size() == 1 ? "s" : "",
        needed / kGibibyte, there / kGibibyte));
  }
  return warnings;
}

/// " (gpt2-124m with num_layers = 2)": never a preset's name alone for another shape.
std::string preset_text(const LaunchPlan& plan) {
  const std::string& preset = plan.model->preset;
  if (preset.empty()) return "";
  if (plan.beside_preset.empty()) return fmt::format(" ({})", preset);
  return fmt::format(" ({} with {})", preset, fmt::join(plan.beside_preset, ", "));
}

/// Hosts whose ranks have more compute threads than there are cores for them.
std::vector<std::string> crowded(const config::JobConfig& job, const LaunchPlan& plan) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::string>> names;
  for (const HostPlan& host : plan.hosts) {
    std::int64_t threads = 0;
    for (const RankPlan& rank : host.ranks)
      threads += job.trainer.threads > 0 ? job.trainer.threads : threads_of(host, rank);
    if (host.cpus > 0 && threads > host.cpus) names[{threads, host.cpus}].push_back(host.name);
  }
  std::vector<std::string> warnings;
  for (const auto& [numbers, hosts] : names)
    warnings.push_back(fmt::format(
        "{}: {} compute threads on {} core{}, so steps are slow; set trainer.threads lower, or "
        "give {} fewer slots",
        config::fold_host_names(hosts), numbers.first, numbers.second,
        numbers.second == 1 ? "" : "s", hosts.size() == 1 ? "it" : "them"));
  return warnings;
}

std::string spaced(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', ' ');
  return text;
}

}  // namespace

Result<> plan_model(const config::JobConfig& job, LaunchPlan& plan) {
  SORTIE_ASSIGN_OR_RETURN(const model::ModelFacts facts, model::model_facts(job));
  ModelPlan model;
  model.architecture = job.model.architecture;
  model.preset = job.model.preset;
  model.parameters = model::count(facts.parameters);
  model.flops_per_token = model::flops_per_token(job.model, facts);
  model.tokens_per_step = plan.batch->global_batch_size * job.model.sequence_length;
  find_threads(job, plan, model);
  const std::pair<const char*, std::int64_t> precisions[] = {{"bf16", 2}, {"f32", 4}};
  for (const auto& [name, element] : precisions) {
    if (job.model.precision != "auto" && job.model.precision != name) continue;
    SORTIE_ASSIGN_OR_RETURN(const model::MemoryUse memory,
                            model::plan_memory(job, plan.batch->micro_batch_size, plan.world_size,
                                               {.element = element, .threads = model.threads}));
    model.memory.push_back({name, memory});
  }
  plan.model = std::move(model);
  plan.beside_preset = config::beside_preset(job);
  plan.warnings = too_small(plan);
  if (job.trainer.save_dir.empty())
    plan.warnings.emplace_back(
        "trainer.save_dir is not set: no checkpoint is written and nothing of this training is "
        "kept; add --set trainer.save_dir=FOLDER");
  std::ranges::move(crowded(job, plan), std::back_inserter(plan.warnings));
  return {};
}

std::string model_text(const LaunchPlan& plan) {
  const ModelPlan& model = *plan.model;
  std::string out = fmt::format("  model     {}{}: {} parameters", model.architecture,
                                preset_text(plan), with_commas(model.parameters.total));
  if (model.parameters.active < model.parameters.total)
    out += fmt::format(", a token meets {}", with_commas(model.parameters.active));
  if (model.parameters.trained < model.parameters.total)
    out += fmt::format(", {} are trained", with_commas(model.parameters.trained));
  out +=
      fmt::format("\n  work      {}FLOP a token, {}FLOP a step of {} tokens\n",
                  short_number(model.flops_per_token),
                  short_number(model.flops_per_token * static_cast<double>(model.tokens_per_step)),
                  with_commas(model.tokens_per_step));
  out += fmt::format("  memory    of a rank with {} thread{}{}, in MiB\n", model.threads,
                     model.threads == 1 ? "" : "s",
                     model.threads_assumed ? " (assumed: the hosts' cores are not known)" : "");
  const auto row = [&](const std::string& title, const auto& cell) {
    out += fmt::format("    {:<16}", title);
    for (const auto& of : model.memory) out += fmt::format("  {:>10}", cell(of));
    out += '\n';
  };
  const auto mebibytes = [](std::int64_t bytes) {
    return with_commas(std::llround(static_cast<double>(bytes) / kMebibyte));
  };
  row("", [](const auto& of) { return of.name; });
  const auto parts = model.memory.front().memory.parts();
  for (std::size_t i = 0; i < parts.size(); ++i)
    row(spaced(parts[i].first),
        [&](const auto& of) { return mebibytes(of.memory.parts()[i].second); });
  row("total", [&](const auto& of) { return mebibytes(of.memory.total()); });
  return out;
}

nlohmann::ordered_json model_json(const ModelPlan& model) {
  using Json = nlohmann::ordered_json;
  Json memory = Json::object();
  for (const auto& [name, use] : model.memory) {
    Json bytes = {{"total", use.total()}};
    for (const auto& [part, size] : use.parts()) bytes[std::string(part)] = size;
    memory[name] = bytes;
  }
  return {{"architecture", model.architecture},
          {"preset", model.preset},
          {"parameters", model.parameters.total},
          {"active_parameters", model.parameters.active},
          {"trained_parameters", model.parameters.trained},
          {"flops_per_token", model.flops_per_token},
          {"tokens_per_step", model.tokens_per_step},
          {"threads", model.threads},
          {"threads_assumed", model.threads_assumed},
          {"rank_memory_bytes", memory}};
}

}  // namespace sortie::launcher
