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
     "What starts the containers; containerd is spoken to through nerdctl or ctr, whichever the host has; empty = no containers"},
    {"runner.container.image", container<&Container::image>, Form{"NAME[:TAG] or NAME@sha256:...", check_image}, "",
     "Image of the ranks; every host must come to the same one before any rank starts"},
    {"runner.container.pull", container<&Container::pull>, Choices{{"missing", "always", "never"}}, "",
     "When hosts pull it: where it is missing, always, or never (`sortie image push` puts it there)"},
    {"runner.container.mounts", container<&Container::mounts>, Form{"[host path, container path] or [host path, container path, options]", check_mount}, "",
     "Files and folders of each host inside the containers, like [[\"/host/data\", \"/data\", \"ro\"], [\"/host/ckpt\", \"/ckpt\"]]; all must be there"},
    {"runner.container.shm_size", container<&Container::shm_size>, Form{"a size like 16GiB", check_size}, "",
     "Size of /dev/shm in a container, which MPI and NCCL use between the ranks of a host; empty = the engine's default (64 MiB)"},
    {"runner.container.ipc", container<&Container::ipc>, Form{"private | host | shareable", check_ipc}, "",
     "Whose shared memory a container has; empty = its own, shared by the containers of a host's ranks"},
    {"runner.container.network", container<&Container::network>, Form{"host | none | a network of the engine", check_engine_network}, "",
     "Network of the containers; MPI and ranks on several hosts need host"},
    {"runner.container.gpus", container<&Container::gpus>, Choices{{"auto", "slots", "all", "none"}}, "",
     "GPUs inside: slots = those of the container's slots, required; auto = the same where the host has GPUs; all = every one"},
    {"runner.container.devices", container<&Container::devices>, Form{"DEVICE[:PATH[:rwm]]", check_device}, "",
     "More devices inside, like \"/dev/infiniband\""},
    {"runner.container.ulimits", container<&Container::ulimits>, Form{"NAME = \"SOFT[:HARD]\"", check_ulimit}, "",
     "Limits of the processes inside, -1 = none; a table of yours replaces this one ({} = none: an engine without the right to raise limits, a rootless one for instance, starts nothing otherwise)"},
    {"runner.container.capabilities", container<&Container::capabilities>, Form{"names like SYS_PTRACE", check_capability}, "",
     "Linux capabilities that the containers get beyond the engine's defaults"},
    {"runner.container.privileged", container<&Container::privileged>, {}, "",
     "All devices and capabilities of the host: whoever is inside is root of the host"},
    {"runner.container.user", container<&Container::user>, Form{"UID[:GID] or a name", check_container_user}, "",
     "User of the ranks; a name is looked up in the image; empty = the uid and gid that start the run on the host"},
    {"runner.container.workdir", container<&Container::workdir>, Form{"an absolute path", check_inner_path}, "",
     "Working folder of the ranks inside; empty = runner.work_dir, else the image's"},
    {"runner.container.entrypoint", container<&Container::entrypoint>, Form{"argv", check_any}, "",
     "Put before the program; [\"(image)\"] = what the image has, [] = nothing"},
    {"runner.container.env", container<&Container::env>, Form{"NAME = \"value\"", check_env_name}, "",
     "Environment variables of every rank inside, like runner.env: over those of the image", kMayHoldSecrets},
    {"runner.container.labels", container<&Container::labels>, Form{"NAME = \"value\"", check_label}, "",
     "Labels of the containers, beside Sortie's own"},
    {"runner.container.extra_args", container<&Container::extra_args>, Form{"argv", check_any}, "",
     "More arguments of the engine's run command, before the image"},
    {"runner.container.scope", container<&Container::scope>, Choices{{"host", "rank"}}, "",
     "One container per host that holds all its ranks, or one per rank"},
    {"runner.container.cpus", container<&Container::cpus>, NumberRange{0, 65536}, "CPUs",
     "Most that a rank may use; 0 = no limit. One container per host has the sum of its ranks"},
    {"runner.container.memory", container<&Container::memory>, Form{"a size like 32GiB", check_size}, "",
     "Most memory of a rank; empty = no limit. One container per host has the sum of its ranks"},
    {"runner.container.credentials_file", container<&Container::credentials_file>, Form{"a path", check_path}, "",
     "Docker config.json with logins to registries, on the launcher's machine, readable by its owner alone; shown nowhere, used for pulls alone", kPath},
  };
}
// clang-format on

}  // namespace sortie::config
