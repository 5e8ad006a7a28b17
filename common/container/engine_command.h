// The exact command lines for container engines, as pure functions: what the runner calls and what
// `sortie plan` shows are the same words. Always an argv for an engine's client, never a text for a
// shell, and nothing of the user's variables in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/wire/container_messages.h"

namespace sortie::container {

enum class Engine : std::uint8_t { docker, podman, nerdctl, ctr };

using Argv = std::vector<std::string>;

/// "docker", "podman", "nerdctl", "ctr"; nothing for another name.
std::optional<Engine> engine_named(std::string_view name);
std::string_view engine_name(Engine engine);
/// The clients that do for what a config calls its engine, the better one first: "containerd" is
/// nerdctl or ctr; empty for an unknown name.
std::vector<Engine> clients_of(std::string_view engine);

/// Where the runner's own program is inside every container: it is process 1 there.
inline constexpr std::string_view kRunnerInside = "/.sortie/runner";

/// The labels of a container of Sortie's.
inline constexpr std::string_view kRunLabel = "sortie.run";
inline constexpr std::string_view kAttemptLabel = "sortie.attempt";
inline constexpr std::string_view kNodeLabel = "sortie.node";
inline constexpr std::string_view kRankLabel = "sortie.rank";
inline constexpr std::string_view kUidLabel = "sortie.uid";          // of the runner
inline constexpr std::string_view kFolderLabel = "sortie.folder";    // run folder: held = alive
inline constexpr std::string_view kMachineLabel = "sortie.machine";  // who can tell whether it is

/// One container of a run.
struct Box {
  std::string run_id;
  std::uint32_t attempt = 1;
  std::uint32_t node_rank = 0;
  std::optional<std::uint32_t> rank;  // nothing: it holds all `ranks` of its host
  std::uint32_t ranks = 1;            // inside; limits are per rank
  std::string ipc_of;                 // name of the container whose /dev/shm it shares
  bool ipc_shared = false;            // others will share its /dev/shm
};

enum class GpuVendor : std::uint8_t { none, nvidia, amd };

/// What is true of a host; `sortie plan` fills in what it knows and names for the rest.
struct HostFacts {
  std::string program;  // the engine's client: "/usr/bin/docker"
  std::uint32_t uid = 0, gid = 0;
  std::vector<std::uint32_t> groups;  // further groups of the runner
  std::string runner;                 // its program
  std::string run_folder;             // the same path inside
  std::string machine;                // boot and pid namespace of the runner; empty = not known
  std::string memory_folder;          // for checkpoints in memory, likewise; empty = none
  bool rootless = false;              // the engine runs as the user
  bool userns_remap = false;          // the daemon maps users unless told otherwise
  bool selinux = false;               // enforcing
  /// Containers outlive the engine's restarts. It would take `--rm` for leave to remove them then.
  bool live_restore = false;
  GpuVendor gpu_vendor = GpuVendor::none;
  std::vector<std::string> gpus;          // of the ranks inside: indexes or UUIDs
  std::vector<std::uint32_t> gpu_groups;  // that may open the devices, AMD
};

/// "sortie-<run>-a<attempt>-n<node>[-r<rank>]", at most 76 bytes.
std::string container_name(const Box& box);

/// Starts the container, detached, with `container-init` as process 1. `image` is what the engine
/// knows it by (an id, or a name for ctr). Error: what this engine can not do.
Result<Argv> start_command(const wire::ContainerSpec& spec, const HostFacts& host, const Box& box,
                           const std::string& image, const std::string& socket);

/// About the engine: JSON, but for ctr.
Argv info_command(Engine engine, const std::string& program);
/// About an image: JSON; fails where it is not there. ctr: its line of the list.
Argv inspect_image_command(Engine engine, const std::string& program, const std::string& image);
Argv pull_command(Engine engine, const std::string& program, const std::string& image);
/// The image as a tar stream on stdout, and from stdin.
Argv save_command(Engine engine, const std::string& program, const std::string& image);
Argv load_command(Engine engine, const std::string& program);

/// Names or ids, one a line, of all containers with a label (`value` empty: whatever it says).
Argv list_command(Engine engine, const std::string& program, std::string_view label,
                  std::string_view value = {});
/// Name, state and labels: JSON; the engine's JSON.
Argv inspect_command(Engine engine, const std::string& program,
                     const std::vector<std::string>& names);
/// Ends and removes containers; to be called one after the other. An error of one that says that
/// there is no such thing is none.
std::vector<Argv> remove_commands(Engine engine, const std::string& program,
                                  const std::vector<std::string>& names);

/// For a person: words that a shell would have to quote are quoted.
std::string shown(const Argv& argv);

}  // namespace sortie::container
