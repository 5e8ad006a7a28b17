// The run command of docker, podman and nerdctl, word by word.
#include <fmt/core.h>

#include <algorithm>

#include "common/base/split.h"
#include "common/container/run_words.h"

namespace sortie::container {
namespace {

using wire::ContainerSpec;
using wire::Mount;

/// A CSV field, as --mount and --gpus expect it.
std::string csv_field(const std::string& field) {
  if (field.find_first_of(",\"\n") == std::string::npos) return field;
  std::string quoted = "\"";
  for (const char letter : field) {
    if (letter == '"') quoted += '"';
    quoted += letter;
  }
  return quoted + '"';
}

bool is_propagation(const std::string& option) {
  return option == "private" || option == "rprivate" || option == "shared" || option == "rshared" ||
         option == "slave" || option == "rslave";
}

/// Uses --mount, which fails if the source is missing. --volume, which would create an empty
/// folder, is used only for options that --mount does not support.
void add_mount(Argv& argv, const Mount& mount) {
  std::string words;
  bool plain = true;
  for (const std::string& option : split_filled(mount.options, ',')) {
    if (option == "ro")
      words += ",readonly";
    else if (is_propagation(option))
      words += ",bind-propagation=" + option;
    else if (option != "rw")
      plain = false;
  }
  if (plain) {
    argv.push_back("--mount");
    argv.push_back("type=bind," + csv_field("source=" + mount.source) + ',' +
                   csv_field("target=" + mount.target) + words);
  } else {
    argv.push_back("--volume");
    argv.push_back(mount.source + ':' + mount.target + ':' + mount.options);
  }
}

/// Sets the runner's user and groups, so that files have the same owners as without a container.
void add_user(Argv& argv, Engine engine, const ContainerSpec& spec, const HostFacts& host) {
  if (engine == Engine::podman && host.rootless) argv.emplace_back("--userns=keep-id");
  if (engine == Engine::docker && host.userns_remap) argv.emplace_back("--userns=host");
  if (!spec.user.empty()) return add(argv, "--user", spec.user);
  if (engine != Engine::podman && host.rootless)
    return add(argv, "--user", "0:0");  // root inside is the caller outside
  add(argv, "--user", fmt::format("{}:{}", host.uid, host.gid));
  if (engine == Engine::podman && host.rootless && !host.groups.empty())
    return add(argv, "--group-add", "keep-groups");
  for (const std::uint32_t group : host.groups)
    if (group != host.gid) add(argv, "--group-add", std::to_string(group));
}

void add_namespaces(Argv& argv, const ContainerSpec& spec, const HostFacts& host, const Box& box) {
  add(argv, "--network", spec.network.empty() ? "host" : spec.network);
  const std::string ipc = !spec.ipc.empty()     ? spec.ipc
                          : !box.ipc_of.empty() ? "container:" + box.ipc_of
                          : box.ipc_shared      ? "shareable"
                                                : "";
  if (!ipc.empty()) add(argv, "--ipc", ipc);
  if (spec.shm_bytes > 0 && ipc != "host" && !ipc.starts_with("container:"))
    add(argv, "--shm-size", std::to_string(spec.shm_bytes));
  if (host.selinux) add(argv, "--security-opt", "label=disable");
}

void add_limits(Argv& argv, const ContainerSpec& spec, const Box& box) {
  for (const auto& [name, value] : spec.ulimits) add(argv, "--ulimit", name + '=' + value);
  if (spec.rank_cpus_milli > 0) add(argv, "--cpus", cpus_text(spec, box));
  if (spec.rank_memory_bytes == 0) return;
  const std::string bytes = std::to_string(spec.rank_memory_bytes * box.ranks);
  add(argv, "--memory", bytes);
  add(argv, "--memory-swap", bytes);  // the same number: no swap on top
}

void add_gpus(Argv& argv, Engine engine, const ContainerSpec& spec, const HostFacts& host) {
  if (!wants_gpus(spec, host)) return;
  if (host.gpu_vendor == GpuVendor::amd) {
    add_amd_devices(argv);
    for (const std::uint32_t group : host.gpu_groups)
      add(argv, "--group-add", std::to_string(group));
    return;
  }
  const bool all = spec.gpus == "all" || host.gpus.empty();
  if (engine == Engine::podman) {
    if (all) return add(argv, "--device", "nvidia.com/gpu=all");
    for (const std::string& gpu : host.gpus) add(argv, "--device", "nvidia.com/gpu=" + gpu);
    return;
  }
  if (all) return add(argv, "--gpus", "all");
  std::string devices = "device=";
  for (const std::string& gpu : host.gpus) devices += (devices.ends_with('=') ? "" : ",") + gpu;
  add(argv, "--gpus", csv_field(devices));
}

}  // namespace

Result<Argv> start_command(const ContainerSpec& spec, const HostFacts& host, const Box& box,
                           const std::string& image, const std::string& socket) {
  const std::optional<Engine> engine = engine_named(spec.engine);
  if (!engine) return fail(ErrorCode::config, "no container engine is called " + spec.engine);
  if (*engine == Engine::ctr) return ctr_run_command(spec, host, box, image, socket);
  Argv argv = {host.program, "run", "--detach"};
  if (!host.live_restore) argv.emplace_back("--rm");
  add(argv, "--name", container_name(box));
  add_labels(argv, spec, host, box);
  add_user(argv, *engine, spec, host);
  add_namespaces(argv, spec, host, box);
  add_limits(argv, spec, box);
  add_gpus(argv, *engine, spec, host);
  add_rights(argv, spec);
  add_mount(argv, {host.runner, std::string(kRunnerInside), "ro"});
  add_mount(argv, {host.run_folder, host.run_folder, "rw"});
  if (!host.memory_folder.empty()) add_mount(argv, {host.memory_folder, host.memory_folder, "rw"});
  for (const Mount& mount : spec.mounts) add_mount(argv, mount);
  if (*engine != Engine::nerdctl) add(argv, "--log-driver", "none");
  if (!spec.workdir.empty()) add(argv, "--workdir", spec.workdir);
  add(argv, "--entrypoint", std::string(kRunnerInside));
  argv.insert(argv.end(), spec.extra_args.begin(), spec.extra_args.end());
  argv.push_back(image);
  argv.emplace_back("container-init");
  argv.push_back(socket);
  return argv;
}

}  // namespace sortie::container
