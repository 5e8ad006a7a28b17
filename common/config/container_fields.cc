// The part of the field table about [runner.container].
#include "common/config/container_forms.h"
#include "common/config/fields.h"
#include "common/config/forms.h"

namespace sortie::config {
namespace {

template <auto M>
constexpr auto container = member<&JobConfig::runner, &RunnerConfig::container, M>;
using Container = ContainerConfig;

}  // namespace

// clang-format off
std::vector<Field> container_fields() {
  return {
    {"runner.container.engine", container<&Container::engine>, Form{"docker | podman | containerd", check_engine}, "",
     "Container engine; containerd is used through nerdctl or ctr, whichever the host has; empty = no containers"},
    {"runner.container.image", container<&Container::image>, Form{"NAME[:TAG] or NAME@sha256:...", check_image}, "",
     "Image of the ranks; all hosts must have the same image ID before any rank starts"},
    {"runner.container.pull", container<&Container::pull>, Choices{{"missing", "always", "never"}}, "",
     "When hosts pull the image: if it is missing, always, or never (copy it with `sortie image push`)"},
    {"runner.container.mounts", container<&Container::mounts>, Form{"[host path, container path] or [host path, container path, options]", check_mount}, "",
     "Files and folders of each host inside the containers, like [[\"/host/data\", \"/data\", \"ro\"], [\"/host/ckpt\", \"/ckpt\"]]; each host path must exist"},
    {"runner.container.shm_size", container<&Container::shm_size>, Form{"a size like 16GiB", check_size}, "",
     "Size of /dev/shm in a container, which MPI and NCCL use between the ranks of a host; empty = the engine's default (64 MiB)"},
    {"runner.container.ipc", container<&Container::ipc>, Form{"private | host | shareable", check_ipc}, "",
     "IPC namespace (shared memory) of a container; empty = a private one, shared by the containers of a host's ranks"},
    {"runner.container.network", container<&Container::network>, Form{"host | none | a network of the engine", check_engine_network}, "",
     "Network of the containers; MPI and ranks on several hosts need host"},
    {"runner.container.gpus", container<&Container::gpus>, Choices{{"auto", "slots", "all", "none"}}, "",
     "GPUs in the container: slots = those of its slots, required; auto = the same if the host has GPUs; all = all GPUs of the host"},
    {"runner.container.devices", container<&Container::devices>, Form{"DEVICE[:PATH[:rwm]]", check_device}, "",
     "More devices in the container, like \"/dev/infiniband\""},
    {"runner.container.ulimits", container<&Container::ulimits>, Form{"NAME = \"SOFT[:HARD]\"", check_ulimit}, "",
     "Resource limits in the container, -1 = unlimited; your table replaces the default one. Use {} with an engine that may not raise limits, such as a rootless one"},
    {"runner.container.capabilities", container<&Container::capabilities>, Form{"names like SYS_PTRACE", check_capability}, "",
     "Linux capabilities of the containers in addition to the engine's defaults"},
    {"runner.container.privileged", container<&Container::privileged>, {}, "",
     "Give the containers all devices and capabilities of the host; processes inside are then root of the host"},
    {"runner.container.user", container<&Container::user>, Form{"UID[:GID] or a name", check_container_user}, "",
     "User of the ranks; a name is looked up in the image; empty = the uid and gid of the runner on the host"},
    {"runner.container.workdir", container<&Container::workdir>, Form{"an absolute path", check_inner_path}, "",
     "Working folder of the ranks inside; empty = runner.work_dir, else the image's"},
    {"runner.container.entrypoint", container<&Container::entrypoint>, Form{"argv", check_any}, "",
     "Entrypoint, put before the program; [\"(image)\"] = that of the image, [] = none"},
    {"runner.container.env", container<&Container::env>, Form{"NAME = \"value\"", check_env_name}, "",
     "Environment variables of every rank in the container, like runner.env; they override those of the image", kMayHoldSecrets},
    {"runner.container.labels", container<&Container::labels>, Form{"NAME = \"value\"", check_label}, "",
     "Labels of the containers, in addition to Sortie's own"},
    {"runner.container.extra_args", container<&Container::extra_args>, Form{"argv", check_any}, "",
     "More arguments of the engine's run command, before the image"},
    {"runner.container.scope", container<&Container::scope>, Choices{{"host", "rank"}}, "",
     "One container per host that holds all its ranks, or one per rank"},
    {"runner.container.cpus", container<&Container::cpus>, NumberRange{0, 65536, false, false, true}, "CPUs",
     "CPU limit of a rank; 0 = no limit. With one container per host the limit is the sum over its ranks"},
    {"runner.container.memory", container<&Container::memory>, Form{"a size like 32GiB", check_size}, "",
     "Memory limit of a rank; empty = no limit. With one container per host the limit is the sum over its ranks"},
    {"runner.container.credentials_file", container<&Container::credentials_file>, Form{"a path", check_path}, "",
     "Docker config.json with logins to registries, on the launcher's machine, readable only by its owner; never shown, used only for pulls", kPath},
  };
}
// clang-format on

}  // namespace sortie::config
