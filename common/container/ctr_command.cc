// `ctr run`. It has few options: a setting that it does not support is an error, never ignored.
#include <fmt/core.h>

#include "common/base/split.h"
#include "common/container/run_words.h"

namespace sortie::container {
namespace {

using wire::ContainerSpec;
using wire::Mount;

std::unexpected<Error> missing(std::string_view what) {
  return fail(ErrorCode::unsupported,
              fmt::format("ctr can not do this: {}; install nerdctl", what));
}

Result<> add_ctr_mount(Argv& argv, const Mount& mount) {
  if ((mount.source + mount.target).find(',') != std::string::npos)
    return missing("mount a path with a comma, " + mount.source);
  std::string options = "rbind";
  for (const std::string& option : split_filled(mount.options, ',')) options += ':' + option;
  add(argv, "--mount",
      fmt::format("type=bind,src={},dst={},options={}", mount.source, mount.target, options));
  return {};
}

Result<> check(const ContainerSpec& spec, const Box& box) {
  if (!spec.ulimits.empty()) return missing("ulimits");
  if (!spec.ipc.empty() && spec.ipc != "private" && spec.ipc != "host")
    return missing("ipc = \"" + spec.ipc + '"');
  if (spec.ipc.empty() && (box.ipc_shared || !box.ipc_of.empty()))
    return missing("shared memory between containers (scope = \"rank\" without ipc)");
  if (!spec.network.empty() && spec.network != "host" && spec.network != "none")
    return missing("network = \"" + spec.network + '"');
  return {};
}

Result<> add_memory(Argv& argv, const ContainerSpec& spec) {
  if (spec.ipc == "host") {
    add(argv, "--with-ns", "ipc:/proc/1/ns/ipc");
    return add_ctr_mount(argv, {"/dev/shm", "/dev/shm", "rw"});
  }
  if (spec.shm_bytes > 0)
    add(argv, "--mount",
        fmt::format("type=tmpfs,src=shm,dst=/dev/shm,options=nosuid:noexec:nodev:mode=1777:size={}",
                    spec.shm_bytes));
  return {};
}

Result<> add_ctr_gpus(Argv& argv, const ContainerSpec& spec, const HostFacts& host) {
  if (!wants_gpus(spec, host)) return {};
  if (host.gpu_vendor == GpuVendor::amd) {
    add_amd_devices(argv);
    return {};
  }
  if (host.gpus.empty() || spec.gpus == "all") return missing("gpus = \"all\"");
  for (const std::string& gpu : host.gpus) {
    if (gpu.find_first_not_of("0123456789") != std::string::npos)
      return missing("a GPU by its UUID, " + gpu);
    add(argv, "--gpus", gpu);
  }
  return {};
}

/// ctr starts the image's own user; container-init then switches to this one.
Result<std::string> user_of(const ContainerSpec& spec, const HostFacts& host) {
  if (spec.user.empty()) return fmt::format("{}:{}", host.uid, host.gid);
  if (spec.user.find_first_not_of("0123456789:") != std::string::npos)
    return missing("user = \"" + spec.user + "\" by name");
  return spec.user;
}

}  // namespace

Result<Argv> ctr_run_command(const ContainerSpec& spec, const HostFacts& host, const Box& box,
                             const std::string& image, const std::string& socket) {
  SORTIE_TRY(check(spec, box));
  Argv argv = {host.program, "run", "--detach", "--null-io"};
  add_labels(argv, spec, host, box);
  if (spec.network != "none") argv.emplace_back("--net-host");
  SORTIE_TRY(add_memory(argv, spec));
  if (spec.rank_cpus_milli > 0) add(argv, "--cpus", cpus_text(spec, box));
  if (spec.rank_memory_bytes > 0)
    add(argv, "--memory-limit", std::to_string(spec.rank_memory_bytes * box.ranks));
  SORTIE_TRY(add_ctr_gpus(argv, spec, host));
  for (const std::string& device : spec.devices) add(argv, "--device", device);
  for (const std::string& capability : spec.capabilities)
    add(argv, "--cap-add", "CAP_" + capability);
  if (spec.privileged) argv.emplace_back("--privileged");
  SORTIE_TRY(add_ctr_mount(argv, {host.runner, std::string(kRunnerInside), "ro"}));
  SORTIE_TRY(add_ctr_mount(argv, {host.run_folder, host.run_folder, "rw"}));
  if (!host.memory_folder.empty())
    SORTIE_TRY(add_ctr_mount(argv, {host.memory_folder, host.memory_folder, "rw"}));
  for (const Mount& mount : spec.mounts) SORTIE_TRY(add_ctr_mount(argv, mount));
  if (!spec.workdir.empty()) add(argv, "--cwd", spec.workdir);
  argv.insert(argv.end(), spec.extra_args.begin(), spec.extra_args.end());
  SORTIE_ASSIGN_OR_RETURN(const std::string user, user_of(spec, host));
  for (const std::string& word : {image, container_name(box), std::string(kRunnerInside),
                                  std::string("container-init"), socket, user})
    argv.push_back(word);
  return argv;
}

}  // namespace sortie::container
