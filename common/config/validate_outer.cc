// Rules about [outer] and about the sites of a job (W1 to W10).
#include <fmt/format.h>

#include <algorithm>

#include "common/config/forms.h"
#include "common/config/outer.h"
#include "common/config/text.h"
#include "common/config/topology_keys.h"

namespace sortie::config {
namespace {

using Violations = std::vector<Violation>;

constexpr const char* kLevelKey = "topology.gradient_compression";

/// The first key of rounds that is set, like "outer.every"; empty if none is set.
std::string round_key(const OuterConfig& outer) {
  const std::pair<const char*, bool> keys[] = {{"outer.every", outer.every > 0},
                                               {"outer.learning_rate", outer.learning_rate > 0},
                                               {"outer.fragments", outer.fragments > 0},
                                               {"outer.overlap", outer.overlap >= 0},
                                               {"outer.mix", outer.mix >= 0},
                                               {"outer.start_after", outer.start_after > 0}};
  for (const auto& [key, set] : keys)
    if (set) return key;
  return "";
}

/// Rule W2: at most one fragment is being exchanged at a time, so that it has all of the bandwidth.
void check_fragments(const JobConfig& job, const OuterSettings& outer, Violations& found) {
  if (job.outer.mix < 0 && job.outer.mix != -1)
    found.push_back({"W2",
                     {"outer.mix"},
                     fmt::format("{} is no share; use 0 to below 1, or -1 for the default",
                                 number_text(job.outer.mix))});
  if (outer.fragments > outer.every)
    found.push_back({"W2",
                     {"outer.fragments", "outer.every"},
                     fmt::format("{} fragments in a round of {} steps would be more than one a "
                                 "step; use at most {}",
                                 outer.fragments, outer.every, outer.every)});
  else if (outer.fragments > job.model.num_layers)
    found.push_back({"W2",
                     {"outer.fragments", "model.num_layers"},
                     fmt::format("a fragment has a layer at least, and the model has {}; use at "
                                 "most {} fragments",
                                 job.model.num_layers, job.model.num_layers)});
  else if (outer.overlap > 0 && outer.overlap >= outer.every / outer.fragments)
    found.push_back(
        {"W2",
         {"outer.overlap", "outer.every", "outer.fragments"},
         fmt::format("an exchange that may take {} steps would meet the next one, {} steps after "
                     "it = {} (every) / {} (fragments); use at most {}",
                     outer.overlap, outer.every / outer.fragments, outer.every, outer.fragments,
                     outer.every / outer.fragments - 1)});
}

/// Rule W4: in a run that ends before its first round, every site would train alone.
void check_length(const JobConfig& job, const OuterSettings& outer, Violations& found) {
  const std::int64_t first = outer.start_after + outer.every, all = job.trainer.train_iterations;
  if (job.trainer.train_epochs > 0 || first <= all) return;
  found.push_back(
      {"W4",
       {"outer.every", kLevelKey, "outer.start_after", "trainer.train_iterations"},
       fmt::format("the first round would end after {} steps{}, and the run has {}; lower it, or "
                   "train longer",
                   first,
                   outer.start_after > 0 ? fmt::format(" = {} (start_after) + {} (every)",
                                                       outer.start_after, outer.every)
                                         : "",
                   all)});
}

/// Rule W9: the leaders of a site listen on consecutive ports.
void check_ports(const JobConfig& job, Violations& found) {
  constexpr std::int64_t kLastPort = 65535;
  const TopologyConfig& topology = job.topology;
  const std::int64_t leaders = topology.tensor_parallel_size * topology.pipeline_parallel_size *
                               topology.expert_parallel_size;
  if (job.outer.port == 0 || job.outer.port + leaders - 1 <= kLastPort) return;
  found.push_back(
      {"W9",
       {"outer.port"},
       fmt::format("{} leaders of a site, one for each part of the model, use the ports "
                   "from {} on, and {} is the last one; use at most {}",
                   leaders, job.outer.port, kLastPort, kLastPort - leaders + 1)});
}

/// Rule W10: the leaders of the sites reach each other from their containers. A network of the
/// engine may be one that other hosts reach, but the streams through the launcher end at 127.0.0.1
/// of the host.
void check_network_of_leaders(const JobConfig& job, Violations& found) {
  const RunnerConfig& runner = job.runner;
  const std::string& network = runner.container.network;
  const bool forwarded = job.outer.route == "launcher";
  if (!runner.container.used() || !runner.program.empty() || network == "host" ||
      (network != "none" && !forwarded))
    return;
  found.push_back({"W10",
                   {"runner.container.network", "outer.route"},
                   fmt::format("{} keeps the leaders of the sites from each other{}; use \"host\"",
                               quote(network),
                               forwarded ? ", also through the launcher, whose streams arrive at "
                                           "127.0.0.1 of the host"
                                         : "")});
}

/// Rule W7: settings of a single world that have no meaning over several.
void check_one_world_keys(const JobConfig& job, Violations& found) {
  const auto refuse = [&found](const char* key, std::string why) {
    found.push_back({"W7", {key, "runner.hosts"}, std::move(why)});
  };
  if (job.topology.batch_rampup_start > 0)
    refuse("topology.batch_rampup_start",
           "sites share out a batch of one size, so it can not grow; remove the ramp-up");
  if (job.data.sampler == "scaling")
    refuse("data.sampler",
           "Scaling's order depends on the number of ranks, and every site has a world of its own; "
           "use \"sortie\" or \"megatron\"");
  for (const auto& [key, policy] :
       {std::pair{"trainer.on_nonfinite", &job.trainer.on_nonfinite},
        {"trainer.on_loss_spike", &job.trainer.on_loss_spike},
        {"trainer.on_replica_mismatch", &job.trainer.on_replica_mismatch}})
    if (rollback_steps(*policy) > 0)
      refuse(key,
             fmt::format("\"{}\" would take one site back alone; use another policy", *policy));
  if (job.optimizer.name != "adamw")
    refuse(
        "optimizer.name",
        fmt::format("\"{}\" exchanges its messages between the ranks of one world, and every site "
                    "has a world of its own; use \"adamw\", or one site",
                    job.optimizer.name));
  if (job.trainer.memory_checkpoint_interval > 0)
    refuse("trainer.memory_checkpoint_interval",
           "the memory of one site's hosts lacks the momentum of the outer weights; set it to 0: a "
           "site that was lost copies the state of another one");
  if (job.model.moe.bias_update_rate > 0)
    refuse("model.moe.bias_update_rate",
           "the biases of the routers follow the tokens of one site and would differ; set it to 0, "
           "and balance experts by model.moe's balance loss");
  if (job.model.fp8_scaling == "delayed")
    refuse("model.fp8_scaling",
           "sites do not share the state of \"delayed\" scaling; use \"current\"");
  if (!job.runner.master_addr.empty())
    refuse("runner.master_addr",
           "every site has a first host of its own; remove it, and each site finds its address");
  if (job.runner.network.tunnel != "none")
    refuse("runner.network.tunnel",
           "sites send each other sealed data on links of their own (outer.port), and no ranks of "
           "two sites are in one world; remove it, or leave site=NAME out of the host lines");
}

/// Rules W5 and W6: [topology] fits the world of every site, and all have the same share of the
/// batch.
void check_worlds(const JobConfig& job, const std::vector<HostSlots>& hosts,
                  const std::vector<std::string>& sites, Violations& found) {
  const auto count = static_cast<std::int64_t>(sites.size());
  const std::int64_t global = job.topology.global_batch_size;
  if (global % count != 0) {
    found.push_back({"W5",
                     {kGlobal, "runner.hosts"},
                     fmt::format("{} sequences over all sites can not be shared evenly by {} of "
                                 "them; use {}",
                                 global, count, nearest_multiples(global, count))});
    return;
  }
  const TopologyConfig topology = topology_of_site(job.topology, count);
  std::int64_t first_batch = 0;
  for (const std::string& site : sites) {
    std::int64_t ranks = 0;
    for (const HostSlots& host : hosts)
      if (host.site == site) ranks += static_cast<std::int64_t>(host.slots.size());
    const BatchOutcome batch = resolve_batch(topology, ranks);
    for (const Violation& violation : batch.violations)
      found.push_back(
          {"W6", violation.keys,
           fmt::format("site {}, with {} ranks{}: {}", site, ranks,
                       global > 0 ? fmt::format(" and a batch of {} sequences = {} / {} (sites)",
                                                topology.global_batch_size, global, count)
                                  : "",
                       violation.message)});
    if (!batch.violations.empty()) return;  // the other sites would repeat it
    if (first_batch == 0) first_batch = batch.plan.global_batch_size;
    if (batch.plan.global_batch_size == first_batch) continue;
    found.push_back(
        {"W5",
         {kGlobal, kAccumulation, "runner.hosts"},
         fmt::format("site {} would train {} sequences a step and site {} {}; set "
                     "global_batch_size, of all sites, and leave gradient_accumulation_steps out",
                     sites.front(), first_batch, site, batch.plan.global_batch_size)});
    return;
  }
}

}  // namespace

Violations check_outer(const JobConfig& job) {
  Violations found;
  const OuterConfig& outer = job.outer;
  const std::string& level = job.topology.gradient_compression;
  const bool none = level == "none" || level == "no";
  if (const std::string key = round_key(outer); none && !key.empty())
    found.push_back({"W1",
                     {key, kLevelKey},
                     fmt::format("{} = \"{}\" is plain data parallelism, which has no rounds; "
                                 "remove it, or use low, medium or high",
                                 kLevelKey, level),
                     /*unread=*/true});
  // The hosts are unknown here, so there may be one site or more: check what holds for rounds.
  const bool may_have_rounds = !none;
  const OuterSettings settings = resolve_outer(job, outer.every > 0 ? 1 : 2);
  if (may_have_rounds) check_fragments(job, settings, found);
  if (outer.error_feedback == "on" && outer.wire == "f32")
    found.push_back({"W3",
                     {"outer.error_feedback", "outer.wire"},
                     "f32 loses nothing that could be sent later; use \"auto\""});
  if (outer.block % 16 != 0)
    found.push_back(
        {"W3",
         {"outer.block"},
         fmt::format("{} is no multiple of 16, the values of the widest vectors; use {}",
                     outer.block, nearest_multiples(outer.block, 16))});
  check_ports(job, found);
  if (asks_for_rounds(job)) check_length(job, settings, found);
  return found;
}

Violations check_sites(const JobConfig& job, const std::vector<HostSlots>& hosts) {
  Violations found;
  const std::vector<std::string> sites = sites_of(hosts);
  const auto count = static_cast<std::int64_t>(sites.size());
  const OuterSettings settings = resolve_outer(job, count);
  const std::string key = round_key(job.outer);
  if (count == 0) {
    if (settings.rounds || !key.empty())
      found.push_back({"W1",
                       {key.empty() ? kLevelKey : key},
                       "the hosts have no site, and rounds are held between sites; write site=NAME "
                       "in the host lines (one name for all is one site), or remove this key"});
    return found;
  }
  if (!settings.rounds && !key.empty() && job.topology.gradient_compression == "auto")
    found.push_back({"W1",
                     {key},
                     "hosts of one site train without rounds, unless outer.every asks for them; "
                     "set it, write site=NAME in the host lines, or remove this key"});
  if (job.topology.gradient_compression == "auto" && job.outer.every == 0 && settings.rounds)
    check_length(job, settings, found);
  if (count <= 1) return found;
  check_worlds(job, hosts, sites, found);
  check_one_world_keys(job, found);
  check_network_of_leaders(job, found);
  if (job.outer.min_sites > count)
    found.push_back({"W8",
                     {"outer.min_sites", "runner.hosts"},
                     fmt::format("{} sites can never be there, the hosts have {}; use at most that",
                                 job.outer.min_sites, count)});
  return found;
}

}  // namespace sortie::config
