// The exact command lines for container engines, as pure functions: the runner executes the same
// words that `sortie plan` shows. Each is an argv for an engine's client, never text for a shell,
// and contains none of the user's environment variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/process_status.h"
#include "common/base/result.h"
#include "common/wire/container_messages.h"

namespace sortie::container {

enum class Engine : std::uint8_t { docker, podman, nerdctl, ctr };

using Argv = std::vector<std::string>;

/// "docker", "podman", "nerdctl", "ctr"; nullopt for another name.
std::optional<Engine> engine_named(std::string_view name);
std::string_view engine_name(Engine engine);
/// The clients for an engine as named in the config, the preferred one first: "containerd" gives
/// nerdctl and ctr. Empty for an unknown name.
std::vector<Engine> clients_of(std::string_view engine);

/// Path of the runner's own program in every container, where it is process 1.
inline constexpr std::string_view kRunnerInside = "/.sortie/runner";

/// Labels of Sortie's containers.
inline constexpr std::string_view kRunLabel = "sortie.run";
inline constexpr std::string_view kAttemptLabel = "sortie.attempt";
inline constexpr std::string_view kNodeLabel = "sortie.node";
inline constexpr std::string_view kRankLabel = "sortie.rank";
inline constexpr std::string_view kUidLabel = "sortie.uid";          // uid of the runner
inline constexpr std::string_view kFolderLabel = "sortie.folder";    // run folder: locked = alive
inline constexpr std::string_view kMachineLabel = "sortie.machine";  // where that can be tested

/// One container of a run.
struct Box {
  std::string run_id;
  std::uint32_t attempt = 1;
  std::uint32_t node_rank = 0;
  std::optional<std::uint32_t> rank;  // nullopt: it holds all `ranks` of its host
  std::uint32_t ranks = 1;            // number of ranks inside; limits are per rank
  std::string ipc_of;                 // container whose /dev/shm it uses; empty = its own
  bool ipc_shared = false;            // other containers will use its /dev/shm
};

enum class GpuVendor : std::uint8_t { none, nvidia, amd };

/// Facts about a host. `sortie plan` fills in what it knows, and placeholders for the rest.
struct HostFacts {
  std::string program;  // the engine's client: "/usr/bin/docker"
  std::uint32_t uid = 0, gid = 0;
  std::vector<std::uint32_t> groups;  // supplementary groups of the runner
  std::string runner;                 // the runner's program
  std::string run_folder;             // mounted at the same path
  std::string machine;                // boot and pid namespace of the runner; empty = unknown
  std::string memory_folder;          // for checkpoints in memory, mounted likewise; empty = none
  bool rootless = false;              // the engine runs as the user
  bool userns_remap = false;          // the daemon maps users by default
  bool selinux = false;               // enforcing
  /// Containers survive restarts of the engine. With `--rm` the engine would remove them then.
  bool live_restore = false;
  GpuVendor gpu_vendor = GpuVendor::none;
  std::vector<std::string> gpus;          // GPUs of the ranks inside: indexes or UUIDs
  std::vector<std::uint32_t> gpu_groups;  // groups that may open the devices (AMD)
};

/// "sortie-<run>-a<attempt>-n<node>[-r<rank>]", at most 76 bytes.
std::string container_name(const Box& box);

/// Starts the container, detached, with `container-init` as process 1. `image` is the engine's name
/// for the image (an id, or a name for ctr). Fails if the engine does not support the settings.
Result<Argv> start_command(const wire::ContainerSpec& spec, const HostFacts& host, const Box& box,
                           const std::string& image, const std::string& socket);

/// The image's name as containerd stores it: "docker.io/library/alpine:latest" for "alpine", by
/// Docker's rules.
std::string full_image_name(const std::string& image);
/// The names under which containerd may have the image, the preferred one first: its full name, and
/// the name as written, with which `ctr images import` or `tag` may have stored it.
std::vector<std::string> containerd_names(const std::string& image);

/// An entry of the list of `ctr images list`.
struct ListedImage {
  std::string name;    // one of containerd_names()
  std::string digest;  // "sha256:<hex>" of its manifest or index
};
/// Finds the image in the table that inspect_image_command() prints for ctr.
std::optional<ListedImage> listed_image(const std::string& image, std::string_view table);

/// Prints facts about the engine as JSON; for ctr as text.
Argv info_command(Engine engine, const std::string& program);
/// Prints facts about an image as JSON; fails if it does not exist. For ctr: a table for
/// listed_image().
Argv inspect_image_command(Engine engine, const std::string& program, const std::string& image);
Argv pull_command(Engine engine, const std::string& program, const std::string& image);
/// Commands that write an image as a tar stream to stdout. Each one but the first is for another
/// name of the image, to be tried if those before it fail.
std::vector<Argv> save_commands(Engine engine, const std::string& program,
                                const std::string& image);

/// Lists names or ids, one per line, of all containers with a label (empty `value` = any value).
Argv list_command(Engine engine, const std::string& program, std::string_view label,
                  std::string_view value = {});
/// Prints name, state and labels as JSON, in the engine's own format.
Argv inspect_command(Engine engine, const std::string& program,
                     const std::vector<std::string>& names);
/// Prints the state of a container, for has_ended().
Argv state_command(Engine engine, const std::string& program, const std::string& name);
/// Whether a container has ended, by the result of its state_command(). Engines remove it then,
/// except ctr.
bool has_ended(Engine engine, std::string_view name, const ProcessStatus& status,
               std::string_view output);
/// Kill and remove containers; to be run in order. An error that says that a container does not
/// exist can be ignored.
std::vector<Argv> remove_commands(Engine engine, const std::string& program,
                                  const std::vector<std::string>& names);

/// Text for the user: words are quoted for a shell where necessary.
std::string shown(const Argv& argv);

}  // namespace sortie::container
