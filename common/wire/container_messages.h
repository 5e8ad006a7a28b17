// Containers on the wire: how the ranks of a host are put into containers, and the image that must
// be there before. Engines are named "docker", "podman", "nerdctl" and "ctr".
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sortie::wire {

/// A folder or file of the host inside the container. Both paths are absolute.
struct Mount {
  std::string source;
  std::string target;
  std::string options;  // "rw" or "ro", and what the engine knows beside them, comma-separated
};

/// One container for all ranks of the host, or one for each.
enum class ContainerScope : std::uint8_t { host = 0, rank = 1 };

/// The ranks' containers. Variables do not stand here: they travel as those of bare ranks do, and
/// never through an engine's argv.
struct ContainerSpec {
  std::string engine;  // empty = no containers
  std::string image;   // as the config names it
  ContainerScope scope = ContainerScope::host;
  std::vector<Mount> mounts;
  std::uint64_t shm_bytes = 0;       // of /dev/shm; 0 = the engine's default
  std::string ipc;                   // private | host | shareable; empty = by scope
  std::string network;               // host | none | a network of the engine
  std::string gpus;                  // auto | slots | all | none
  std::vector<std::string> devices;  // /dev/infiniband or SOURCE:TARGET:rwm
  std::vector<std::pair<std::string, std::string>> ulimits;  // {"memlock", "-1"}
  /// 1: they are wishes. Where the engine may not grant them, containers have what it has.
  std::uint8_t ulimits_are_wishes = 0;
  std::vector<std::string> capabilities;  // added, without CAP_
  std::uint8_t privileged = 0;
  std::string user;     // "UID[:GID]" or a name of the image; empty = that of the runner
  std::string workdir;  // empty = the image's
  /// Put before JobSpec::argv; {""} = nothing, although the image has one; empty = the image's own.
  std::vector<std::string> entrypoint;
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<std::string> extra_args;  // for the engine's run command, before the image
  std::uint32_t rank_cpus_milli = 0;    // limit per rank, 1000 = one CPU; 0 = none
  std::uint64_t rank_memory_bytes = 0;  // limit per rank; 0 = none
  /// What all hosts have agreed on (ImageReady::image_id): started is this, not what the name means
  /// by then.
  std::string image_id;
};

/// launcher -> runner, before JobSpec: have this image. Answered by ImageProgress* and ImageReady
/// or RunnerError.
struct ImageOrder {
  std::string engine;
  std::string image;
  std::uint8_t pull = 0;    // 0 only where it is missing, 1 always, 2 never
  std::string credentials;  // a Docker config.json, for the pull alone; empty = the host's own
  std::vector<std::string> mount_sources;  // absolute; must be there before anything is pulled
  /// A pull takes its time: signs of life go both ways from here on.
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
};

/// For a person; at most one a second.
struct ImageProgress {
  std::string text;
};

struct ImageReady {
  std::string image_id;        // "sha256:<hex>" of its configuration: equal where the image is
  std::string repo_digest;     // "name@sha256:<hex>"; empty for one that never was in a registry
  std::string engine_version;  // "docker 20.10.24"
  std::uint64_t bytes = 0;
  std::uint8_t pulled = 0;  // 1: it was not there, or was replaced
};

// ---- `sortie image push`: an image of the launcher's machine, without a registry ---------------

/// launcher -> runner, after Hello: is this image here, and if not, how many of its layers are,
/// from the first one on? Answered by ImageLacking or RunnerError.
struct ImageQuery {
  std::string engine;
  std::string image;                  // the name that it is to have
  std::string image_id;               // "sha256:<hex>"
  std::vector<std::string> diff_ids;  // of its layers, "sha256:<hex>"
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
};

struct ImageLacking {
  std::uint8_t present = 0;  // 1: under that name; nothing is lacking
  std::uint32_t layers = 0;  // so many are here
};

/// launcher -> runner, when FilesDone has come: have the engine load this archive, and remove it.
/// Answered by ImageReady or RunnerError.
struct ImageLoad {
  std::string engine;
  std::string image;
  std::string file;  // absolute
};

}  // namespace sortie::wire
