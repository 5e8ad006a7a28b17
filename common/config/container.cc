#include "common/config/container.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "common/base/split.h"
#include "common/config/container_forms.h"
#include "common/config/fields.h"
#include "common/config/stage.h"
#include "common/config/text.h"
#include "common/config/validation_sets.h"

namespace sortie::config {
namespace {

constexpr std::string_view kSection = "runner.container";

std::string key_of(std::string_view name) {
  return fmt::format("{}.{}", kSection, name);
}

class ContainerRules {
 public:
  void broken(std::string_view rule, std::vector<std::string> keys, std::string message) {
    found_.push_back({rule, std::move(keys), std::move(message)});
  }
  std::vector<Violation> take() { return std::move(found_); }

 private:
  std::vector<Violation> found_;
};

/// Keys that would have no effect, because there is no engine.
void check_without_engine(const RunnerConfig& runner, ContainerRules& rules) {
  JobConfig job;
  job.runner = runner;
  std::vector<std::string> keys;
  for (const Field& field : fields())
    if (section_of(field) == kSection && value_text(field, job) != default_text(field))
      keys.emplace_back(field.key);
  if (keys.empty()) return;
  keys.push_back(key_of("engine"));  // if that key is invalid, this problem follows from it
  rules.broken("E1", std::move(keys),
               "does nothing without runner.container.engine; set engine = \"docker\", "
               "\"podman\" or \"containerd\", or remove the table");
}

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  if (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

void check_mounts(const ContainerConfig& container, ContainerRules& rules) {
  std::map<std::string, std::string> sources;  // by target
  for (const std::vector<std::string>& mount : container.mounts) {
    const auto [at, added] = sources.emplace(normal(mount[1]), mount[0]);
    if (added) continue;
    rules.broken("E2", {key_of("mounts")},
                 fmt::format("{} is the target of two mounts, of {} and of {}; give one of them "
                             "another",
                             quote(at->first), quote(at->second), quote(mount[0])));
  }
  for (const auto& [name, value] : container.ulimits)
    if (std::string error = check_ulimit_value(name, value); !error.empty())
      rules.broken("E2", {key_of("ulimits")}, std::move(error));
  constexpr std::uint64_t kLeastMemory = 6u << 20;  // Docker's own
  if (const auto memory = parse_size(container.memory);
      !container.memory.empty() && *memory < kLeastMemory)
    rules.broken("E2", {key_of("memory")},
                 fmt::format("{} is less than the 6 MiB without which engines start nothing; use "
                             "more",
                             quote(container.memory)));
  constexpr double kLeastCpus = 0.01;  // Docker's own
  if (container.cpus > 0 && container.cpus < kLeastCpus)
    rules.broken("E2", {key_of("cpus")},
                 fmt::format("{} is less than the {} CPUs that engines can limit to; use more, or "
                             "0 for no limit",
                             container.cpus, kLeastCpus));
}

/// The options in an argument of an engine: "--env" in "--env=A=b", "-d", "-i" and "-e" in
/// "-dieA=b". ctr accepts "-env", too.
std::vector<std::string> options_in(const std::string& argument) {
  constexpr std::string_view kWithValue = "acehlmpuvw";
  const std::string flag = argument.substr(0, argument.find('='));
  if (!flag.starts_with('-') || flag.starts_with("--")) return {flag};
  std::vector<std::string> options = {'-' + flag};
  for (const char letter : flag.substr(1)) {
    options.push_back({'-', letter});
    if (kWithValue.contains(letter)) break;
  }
  return options;
}

/// Refuses arguments that would break a guarantee of Sortie: that nothing is left behind, that no
/// secret is in a process list, that output arrives.
void check_extra_args(const ContainerConfig& container, ContainerRules& rules) {
  struct Taken {
    std::string_view flag, why;
  };
  constexpr std::string_view kOutput = "the ranks' input and output go through Sortie; remove it";
  constexpr std::string_view kLife = "how long a container lives is the run's affair; remove it";
  constexpr std::string_view kEnv = "it would be in the process list; use runner.container.env";
  constexpr std::string_view kLabels = "use runner.container.labels";
  constexpr Taken kTaken[] = {
      {"--name", "Sortie names the containers after the run; remove it"},
      {"--rm", kLife},
      {"--restart", kLife},
      {"--init", "Sortie's own init is the first process inside; remove it"},
      {"--stop-signal", "ranks end by TERM, runner.grace and KILL; remove it"},
      {"--stop-timeout", "ranks end by TERM, runner.grace and KILL; set runner.grace"},
      {"--cidfile", "containers are found by their labels; remove it"},
      {"--detach", kOutput},
      {"-d", kOutput},
      {"--interactive", kOutput},
      {"-i", kOutput},
      {"--tty", kOutput},
      {"-t", kOutput},
      {"--attach", kOutput},
      {"-a", kOutput},
      {"--log-driver", kOutput},
      {"--env", kEnv},
      {"-e", kEnv},
      {"--env-file", kEnv},
      {"--label", kLabels},
      {"-l", kLabels},
      {"--label-file", kLabels},
      {"--entrypoint", "use runner.container.entrypoint"},
      {"--user", "use runner.container.user"},
      {"-u", "use runner.container.user"},
      {"--network", "use runner.container.network"},
      {"--net", "use runner.container.network"},
      {"--ipc", "use runner.container.ipc"},
      {"--shm-size", "use runner.container.shm_size"},
      {"--volume", "use runner.container.mounts"},
      {"-v", "use runner.container.mounts"},
      {"--workdir", "use runner.container.workdir"},
      {"-w", "use runner.container.workdir"},
      {"--gpus", "use runner.container.gpus"},
      {"--privileged", "use runner.container.privileged"},
      {"--memory", "use runner.container.memory"},
      {"-m", "use runner.container.memory"},
      {"--cpus", "use runner.container.cpus"},
      {"--pull", "use runner.container.pull"},
      {"--pid",
       "a container with its own processes is how Sortie knows that none is left; remove "
       "it"}};
  if (!container.extra_args.empty() && !container.extra_args.front().empty() &&
      !container.extra_args.front().starts_with('-'))
    rules.broken("E4", {key_of("extra_args")},
                 fmt::format("{} is not an option; start with one, like \"--cpuset-mems\"",
                             quote(shorten(container.extra_args.front()))));
  for (const std::string& argument : container.extra_args) {
    const std::vector<std::string> options = options_in(argument);
    const auto taken = std::ranges::find_first_of(kTaken, options, {}, &Taken::flag);
    if (taken != std::end(kTaken))
      rules.broken("E4", {key_of("extra_args")},
                   fmt::format("{}: {}", quote(taken->flag), taken->why));
    if (argument.empty())
      rules.broken("E4", {key_of("extra_args")},
                   "\"\" is empty, and an engine would take it for the image; remove it");
    if (argument == "--")
      rules.broken("E4", {key_of("extra_args")},
                   "\"--\" would end the options before Sortie's own; remove it");
  }
}

void check_together(const RunnerConfig& runner, ContainerRules& rules) {
  const ContainerConfig& container = runner.container;
  if (container.ipc == "host" && !container.shm_size.empty())
    rules.broken("E5", {key_of("shm_size"), key_of("ipc")},
                 "has no effect with ipc = \"host\", which uses the host's own /dev/shm; remove "
                 "one of the two");
  if (container.ipc == "shareable" && container.scope == "rank")
    rules.broken("E5", {key_of("ipc"), key_of("scope")},
                 "gives each rank's container a /dev/shm of its own that no other uses; leave ipc "
                 "empty, and the containers of a host's ranks share one");
  if (container.network != "host" && runner.mpi == "on")
    rules.broken("E5", {key_of("network"), "runner.mpi"},
                 fmt::format("{} keeps MPI programs from the host's PMIx server, which "
                             "runner.mpi = \"on\" asks for; use \"host\"",
                             quote(container.network)));
  if (!runner.work_dir.empty() && !container.workdir.empty())
    rules.broken("E5", {"runner.work_dir", key_of("workdir")},
                 "runner.container.workdir is set too; remove one of the two");
  if (container.entrypoint.size() > 1)
    for (const std::string& word : container.entrypoint)
      if (word == kImageEntrypoint)
        rules.broken("E5", {key_of("entrypoint")},
                     fmt::format("\"{}\" stands alone, for what the image has; write the whole "
                                 "entrypoint",
                                 kImageEntrypoint));
  if (!container.entrypoint.empty() && container.entrypoint.front().empty())
    rules.broken("E5", {key_of("entrypoint")},
                 "the program's name is empty; write it first, or [] for none");
}

/// The innermost mount that contains a path; both are normalized. nullptr if there is none.
const std::vector<std::string>* mount_of(const ContainerConfig& container,
                                         const std::string& path) {
  const std::vector<std::string>* best = nullptr;
  for (const std::vector<std::string>& mount : container.mounts)
    if (lies_under(path, normal(mount[1])) &&
        (!best || normal(mount[1]).size() > normal((*best)[1]).size()))
      best = &mount;
  return best;
}

/// The message about a path that no mount contains.
std::string not_mounted(const ContainerConfig& container, const std::string& path,
                        const std::string& folder, bool write) {
  for (const std::vector<std::string>& mount : container.mounts)
    if (const std::string source = normal(mount[0]); lies_under(path, source))
      return fmt::format("{} is its path on the host; inside the container it is {}: write that",
                         quote(path), quote(normal(mount[1] + "/" + path.substr(source.size()))));
  return fmt::format(
      "{} is under no mount, so it would not be there inside the container; add [{}, {}{}] to "
      "runner.container.mounts, the first being where it is on the hosts",
      quote(path), quote(folder), quote(folder), write ? "" : ", \"ro\"");
}

class MountRules {
 public:
  MountRules(const ContainerConfig& container, ContainerRules& rules)
      : container_(container), rules_(rules) {}

  /// Requires that a path is mounted. `parent`: the message proposes to mount its parent folder.
  void needs(std::string_view key, const std::string& text, bool parent, bool write) {
    if (text.empty() || text.starts_with(kStagePlaceholder)) return;
    const std::string path = normal(text);
    const std::vector<std::string>* best = mount_of(container_, path);
    std::string folder = parent ? std::filesystem::path(path).parent_path().string() : path;
    if (folder == "/") folder = path;
    if (!best)
      return rules_.broken("E3", {std::string(key), key_of("mounts")},
                           not_mounted(container_, path, folder, write));
    if (!write || best->size() < 3) return;
    for (const std::string& option : split((*best)[2], ','))
      if (option == "ro")
        rules_.broken("E3", {std::string(key), key_of("mounts")},
                      fmt::format("{} is under the mount of {} at {}, which is read-only; take "
                                  "\"ro\" away from it",
                                  quote(path), quote((*best)[0]), quote((*best)[1])));
  }

 private:
  const ContainerConfig& container_;
  ContainerRules& rules_;
};

}  // namespace

bool lies_under(std::string_view path, std::string_view folder) {
  if (folder == "/") return path.starts_with('/');
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

std::string on_host(const ContainerConfig& container, const std::string& path) {
  const std::vector<std::string>* mount =
      path.empty() ? nullptr : mount_of(container, normal(path));
  if (!mount) return path;
  return normal((*mount)[0] + "/" + normal(path).substr(normal((*mount)[1]).size()));
}

std::vector<Violation> check_container(const RunnerConfig& runner) {
  ContainerRules rules;
  const ContainerConfig& container = runner.container;
  if (!container.used()) {
    check_without_engine(runner, rules);
    return rules.take();
  }
  if (container.image.empty())
    rules.broken("E1", {key_of("image"), key_of("engine")},
                 "no image to start; set it, like image = \"trainer:1\"");
  check_mounts(container, rules);
  check_extra_args(container, rules);
  check_together(runner, rules);
  return rules.take();
}

std::vector<Violation> check_mounted(const JobConfig& job) {
  ContainerRules rules;
  MountRules mounts(job.runner.container, rules);
  if (!job.runner.container.used()) return {};
  for (const DataPath& data : data_paths(job.data)) mounts.needs(data.key, data.path, true, false);
  mounts.needs("trainer.save_dir", job.trainer.save_dir, false, true);
  mounts.needs("trainer.load_dir", job.trainer.load_dir, false, false);
  mounts.needs("trainer.load_weights_from", job.trainer.load_weights_from, false, false);
  mounts.needs("profiler.profiler_output", job.profiler.profiler_output, true, true);
  return rules.take();
}

}  // namespace sortie::config
