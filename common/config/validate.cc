#include "common/config/validate.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/config/container.h"
#include "common/config/fields.h"
#include "common/config/forms.h"
#include "common/config/hostlist.h"
#include "common/config/outer.h"
#include "common/config/stage.h"
#include "common/config/text.h"
#include "common/config/validation_sets.h"

namespace sortie::config {
namespace {

/// Collects violations. `keys` are full keys; the one to blame comes first.
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

}  // namespace

bool is_set_by_sortie(std::string_view name) {
  constexpr std::string_view kNames[] = {
      "RANK",       "WORLD_SIZE",       "LOCAL_RANK",      "LOCAL_WORLD_SIZE",
      "ROLE_RANK",  "ROLE_NAME",        "ROLE_WORLD_SIZE", "NODE_RANK",
      "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",     "MASTER_PORT"};
  // Settings of the trainer that a user may set, possibly on some hosts only.
  constexpr std::string_view kSettings[] = {"SORTIE_COMM_DEBUG", "SORTIE_COMM_TIMEOUT",
                                            "SORTIE_CUDA_MODULE", "SORTIE_TIMED_PRODUCTS"};
  if (std::ranges::find(kSettings, name) != std::end(kSettings)) return false;
  return name.starts_with("SORTIE_") || name.starts_with("TORCHELASTIC_") ||
         std::ranges::find(kNames, name) != std::end(kNames);
}

namespace {

/// Rule N1: the tunnel is the ranks' network, and a host has only one.
void check_tunnel(const RunnerConfig& runner, Rules& rules) {
  constexpr const char* kKey = "runner.network.tunnel";
  if (runner.network.tunnel == "none") return;
  if (!runner.network.interface.empty())
    rules.broken("N1", {kKey, "runner.network.interface"},
                 "runner.network.interface is set too, and the tunnel is the network of the ranks; "
                 "remove one of the two");
  if (!runner.master_addr.empty())
    rules.broken("N1", {kKey, "runner.master_addr"},
                 "runner.master_addr is set too, and ranks meet at an address within the tunnel, "
                 "which is known only at the start; remove one of the two");
  if (runner.allow_same_machine)
    rules.broken("N1", {kKey, "runner.allow_same_machine"},
                 "a machine has one end of the tunnel, and runner.allow_same_machine allows two "
                 "names of one; remove one of the two");
  if (runner.container.used() && runner.container.network != "host")
    rules.broken("N1", {kKey, "runner.container.network"},
                 fmt::format("the tunnel is a device of the host, which containers on the network "
                             "\"{}\" do not see; use runner.container.network = \"host\"",
                             runner.container.network));
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
  if (!runner.transport.empty()) {
    if (runner.transport.front().empty())
      rules.broken("R2", {"runner.transport"}, "the program's name is empty; write it first");
    if (std::ranges::none_of(runner.transport,
                             [](const std::string& word) { return word.contains(kHostWord); }))
      rules.broken(
          "R2", {"runner.transport"},
          fmt::format("no argument of it has {}, so it would reach the same place for every "
                      "host; write {} where the host's name belongs",
                      kHostWord, kHostWord));
    if (!runner.ssh.command.empty())
      rules.broken("R2", {"runner.transport", "runner.ssh.command"},
                   "runner.ssh.command is set too; hosts are reached by one of the two, remove the "
                   "other");
  }
  if (runner.ssh.persist.count() > 0)
    for (const auto& [key, words] : {std::pair{"runner.ssh.command", &runner.ssh.command},
                                     {"runner.transport", &runner.transport}})
      if (!words->empty())
        rules.broken("R2", {"runner.ssh.persist", key},
                     fmt::format("{} is set too, and only Sortie's own SSH connections can stay; "
                                 "remove one of the two",
                                 key));
  if (runner.heartbeat_timeout <= 2 * runner.heartbeat_interval)
    rules.broken(
        "R4", {"runner.heartbeat_timeout", "runner.heartbeat_interval"},
        fmt::format("{} is not more than twice runner.heartbeat_interval = {}, so one late "
                    "message would look like a lost host; use more than {}",
                    duration_text(runner.heartbeat_timeout),
                    duration_text(runner.heartbeat_interval),
                    duration_text(2 * runner.heartbeat_interval)));
  check_tunnel(runner, rules);
  for (const auto& [key, table] : {std::pair{"runner.env", &runner.env},
                                   {"runner.secret_env", &runner.secret_env},
                                   {"runner.container.env", &runner.container.env}})
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
  for (const auto& [name, value] : runner.container.env)
    if (runner.env.contains(name) || runner.secret_env.contains(name))
      rules.broken("S1", {"runner.container.env." + name, "runner.container.env"},
                   fmt::format("{} is in {} too; remove one of the two", name,
                               runner.env.contains(name) ? "runner.env" : "runner.secret_env"));
}

/// Rules H1 and H2: a run changes its hosts only by restarts.
void check_recovery(const JobConfig& job, Rules& rules) {
  const RecoveryConfig& recovery = job.recovery;
  if (recovery.slow_swaps > 0) {
    const char* const missing = recovery.max_restarts == 0            ? "recovery.max_restarts"
                                : job.watchdog.straggler_ratio == 0.0 ? "watchdog.straggler_ratio"
                                                                      : nullptr;
    if (missing)
      rules.broken("H1", {"recovery.slow_swaps", missing},
                   fmt::format("a slow host leaves by a restart, once it was named, and {} is 0; "
                               "set it",
                               missing));
  }
  if (recovery.grow_at == "checkpoint") {
    const char* const missing = recovery.max_restarts == 0 ? "recovery.max_restarts"
                                : recovery.min_hosts == 0  ? "recovery.min_hosts"
                                                           : nullptr;
    if (missing)
      rules.broken("H2", {"recovery.grow_at", missing},
                   fmt::format("only a run that restarts with fewer hosts can take hosts in again, "
                               "and {} is 0; set it",
                               missing));
  }
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
  if (!in_range) return rules.take();  // the rules below divide by values that F1 keeps above 0
  check_runner(job.runner, rules);
  check_recovery(job, rules);
  for (Violation& violation : check_batch(job.topology)) rules.add(std::move(violation));
  for (Violation& violation : check_layout(job)) rules.add(std::move(violation));
  for (Violation& violation : check_training(job)) rules.add(std::move(violation));
  for (Violation& violation : check_outer(job)) rules.add(std::move(violation));
  for (Violation& violation : check_model(job.model)) rules.add(std::move(violation));
  for (Violation& violation : check_stage(job)) rules.add(std::move(violation));
  for (Violation& violation : check_container(job.runner)) rules.add(std::move(violation));
  return rules.take();
}

std::vector<Violation> validate_training(const JobConfig& job) {
  Rules rules;
  if (job.data.data_prefixes.empty() && job.data.chat_files.empty())
    rules.broken("D1", {"data.data_prefixes"},
                 "no token files to train on; set it to the PREFIX of PREFIX.bin and PREFIX.idx "
                 "(`sortie-train data build` makes them)");
  for (const auto& [prefixes, chats, names] :
       {std::tuple{&job.data.data_prefixes, &job.data.chat_files,
                   std::pair{"data.chat_files", "data.data_prefixes"}},
        {&job.data.validation_data_prefixes, &job.data.validation_chat_files,
         std::pair{"data.validation_chat_files", "data.validation_data_prefixes"}}})
    if (!prefixes->empty() && !chats->empty())
      rules.broken("D1", {names.first, names.second},
                   fmt::format("{} is set too; remove one of the two", names.second));
  const std::vector<ValidationSet> sets = validation_sets(job.data);
  constexpr std::string_view kNamed = "data.validation_sets.";
  for (const ValidationSet& set : sets) {
    const bool main_set_first = !sets.front().key.starts_with(kNamed);
    if (main_set_first && set.key.starts_with(kNamed) && set.name == kMainSet)
      rules.broken("D4", {set.key, "data.validation_sets", sets.front().key},
                   fmt::format("{} is called so already; choose another name", sets.front().key));
    for (const std::string& prefix : set.prefixes)
      if (std::string error = check_data_prefix(prefix); !error.empty())
        rules.broken("D4", {set.key, "data.validation_sets"}, std::move(error));
  }
  const bool chats =
      !job.data.chat_files.empty() ||
      std::ranges::any_of(sets, [](const ValidationSet& set) { return !set.chat_files.empty(); });
  if (chats && job.data.tokenizer.empty())
    rules.broken("D5", {"data.tokenizer", "data.chat_files", "data.validation_chat_files"},
                 "conversations are tokenized when training starts; set it, to \"hf:FILE\" with "
                 "the tokenizer.json of the model for instance");
  if (job.data.sampler != "sortie" && !job.data.chat_files.empty())
    rules.broken("D6", {"data.sampler", "data.chat_files"},
                 fmt::format("\"{}\" is an order of token files, and conversations are shuffled "
                             "anew in every epoch; remove it",
                             job.data.sampler));
  if (!job.data.pack_conversations && !chats)
    rules.broken("D6", {"data.pack_conversations", "data.chat_files"},
                 "there are no conversations to pack, because data.chat_files is empty; remove it");
  const std::size_t prefixes = job.data.data_prefixes.size();
  if (!job.data.weights.empty() && job.data.weights.size() != prefixes)
    rules.broken("D3", {"data.weights", "data.data_prefixes"},
                 fmt::format("{} weights for {} prefixes; give one for each, or none",
                             job.data.weights.size(), prefixes));
  if (job.data.sampler == "megatron" && prefixes > 1 && job.data.weights.empty())
    rules.broken(
        "D3", {"data.sampler", "data.weights"},
        fmt::format("megatron blends the {} prefixes by weights; set data.weights", prefixes));
  if (job.trainer.train_epochs > 0 && job.data.sampler != "scaling" &&
      (!job.data.weights.empty() || job.data.sampler == "megatron"))
    rules.broken(
        "D3", {"trainer.train_epochs", "data.weights", "data.sampler"},
        "a blend or Megatron's order is made for a number of samples and has no epochs; set "
        "trainer.train_iterations");
  return rules.take();
}

}  // namespace sortie::config
