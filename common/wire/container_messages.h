// Messages about containers: how the ranks of a host run in containers, and the image that must
// exist before. Engines are named "docker", "podman", "nerdctl" and "ctr".
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sortie::wire {

/// A folder or file of the host that is mounted in the container. Both paths are absolute.
struct Mount {
  std::string source;
  std::string target;
  std::string options;  // "rw" or "ro" and other options of the engine, comma-separated
};

/// One container for all ranks of the host, or one per rank.
enum class ContainerScope : std::uint8_t { host = 0, rank = 1 };

/// The ranks' containers. Environment variables are not included: they are sent like those of ranks
/// without a container, never in an engine's argv.
struct ContainerSpec {
  std::string engine;  // empty = no containers
  std::string image;   // as in the config
  ContainerScope scope = ContainerScope::host;
  std::vector<Mount> mounts;
  std::uint64_t shm_bytes = 0;       // size of /dev/shm; 0 = the engine's default
  std::string ipc;                   // private | host | shareable; empty = by scope
  std::string network;               // host | none | a network of the engine
  std::string gpus;                  // auto | slots | all | none
  std::vector<std::string> devices;  // /dev/infiniband or SOURCE:TARGET:rwm
  std::vector<std::pair<std::string, std::string>> ulimits;  // {"memlock", "-1"}
  /// 1: optional. If the engine may not set these limits, containers have the engine's own.
  std::uint8_t ulimits_are_wishes = 0;
  std::vector<std::string> capabilities;  // in addition to the defaults, without "CAP_"
  std::uint8_t privileged = 0;
  std::string user;     // "UID[:GID]" or a name of the image; empty = user of the runner
  std::string workdir;  // empty = the image's
  /// Precedes JobSpec::argv. {""} = none, even if the image has one; empty = the image's own.
  std::vector<std::string> entrypoint;
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<std::string> extra_args;  // for the engine's run command, before the image
  std::uint32_t rank_cpus_milli = 0;    // limit per rank, 1000 = one CPU; 0 = none
  std::uint64_t rank_memory_bytes = 0;  // limit per rank; 0 = none
  /// The image that all hosts have agreed on (ImageReady::image_id). Containers start from it, even
  /// if `image` names another one by then.
  std::string image_id;
};

/// launcher -> runner, before JobSpec: make this image available. Answered by ImageProgress* and
/// ImageReady or RunnerError.
struct ImageOrder {
  std::string engine;
  std::string image;
  std::uint8_t pull = 0;    // 0 if it is missing, 1 always, 2 never
  std::string credentials;  // a Docker config.json, only for the pull; empty = the host's own
  std::vector<std::string> mount_sources;  // absolute; must exist, checked before the pull
  /// Both sides send heartbeats from here on, because a pull may take long.
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
  std::string user;  // as in ContainerSpec
};

/// Progress text for the user; at most one per second.
struct ImageProgress {
  std::string text;
};

struct ImageReady {
  std::string image_id;        // "sha256:<hex>" of its configuration; equal for equal images
  std::string repo_digest;     // "name@sha256:<hex>"; empty if it was never in a registry
  std::string engine_version;  // "docker 20.10.24"
  std::uint64_t bytes = 0;
  std::uint8_t pulled = 0;  // 1: the image was missing or was replaced
};

// ---- `sortie image push`: copies an image from the launcher's machine, without a registry ------

/// launcher -> runner, after Hello: does this host have the image, and if not, how many of its
/// layers, counted from the first? Answered by ImageLacking or RunnerError.
struct ImageQuery {
  std::string engine;
  std::string image;                  // the name that the image is to get
  std::string image_id;               // "sha256:<hex>"
  std::vector<std::string> diff_ids;  // of its layers, "sha256:<hex>"
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
};

struct ImageLacking {
  std::uint8_t present = 0;  // 1: the host has the image under that name
  std::uint32_t layers = 0;  // number of layers that the host has
};

/// launcher -> runner, after FilesDone: load this archive into the engine, then remove the archive.
/// Answered by ImageReady or RunnerError.
struct ImageLoad {
  std::string engine;
  std::string image;
  std::string file;  // absolute
};

}  // namespace sortie::wire
