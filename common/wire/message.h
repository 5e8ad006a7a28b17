// Every message between launcher, runner and sortie-pmix, as plain structs. codec.h turns each into
// a frame payload and back; README.md gives the grammar and the order in which they may appear.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/wire/file_messages.h"

namespace sortie::wire {

/// Raised on every incompatible change; Hello carries it and a mismatch ends the connection.
inline constexpr std::uint32_t kProtocolVersion = 2;

enum class Stream : std::uint8_t { out = 1, err = 2 };

// ---- launcher -> runner -------------------------------------------------------------------------

/// First message of either side.
struct Hello {
  std::uint32_t protocol_version = kProtocolVersion;
  std::string build;  // content hash of the runner binary (launcher: the one it expects)
};

/// One rank as the runner must start it. argv and env arrive byte for byte, no shell parses them.
struct RankSpec {
  std::uint32_t rank = 0;  // global
  std::uint32_t local_rank = 0;
  std::uint32_t slot = 0;                                // device id
  std::vector<std::pair<std::string, std::string>> env;  // on top of JobSpec::env
};

/// The runner's slice of the plan. Answered by JobReady or RunnerError.
struct JobSpec {
  std::string run_id;  // [a-z0-9-]{1,64}
  std::uint32_t attempt = 1;
  std::string host;  // this host's name in the plan
  std::uint32_t node_rank = 0;
  std::uint32_t world_size = 0;
  std::vector<std::string> argv;
  std::string work_dir;  // used where it exists, else the home folder
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<RankSpec> ranks;
  std::string config_toml;  // resolved config, for the trainer: a 0600 file named by SORTIE_CONFIG;
                            // may be empty
  std::uint32_t grace_ms = 10000;
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
  std::uint8_t mpi = 0;  // 0 off, 1 auto (only where libpmix loads), 2 required
  /// Hosts and ranks of the whole job, for PMIx: node_hosts[i] holds node_ranks[i] ("0,1,2").
  std::vector<std::string> node_hosts;
  std::vector<std::string> node_ranks;
  std::uint32_t output_window = 4u << 20;  // bytes of output that may be unacknowledged
};

/// Start the ranks. Sent to all hosts when every host has answered JobReady.
struct Start {};

/// TERM now, KILL after grace_ms (0 = at once). Sent again with 0 to cut the grace short.
struct Stop {
  std::uint32_t grace_ms = 0;
  std::string reason;  // for the log
};

/// Both ways, every heartbeat_interval_ms. Any message counts as a sign of life.
struct Heartbeat {
  std::uint64_t sequence = 0;
};

/// The launcher has written `bytes` more of the output it was sent.
struct OutputCredit {
  std::uint64_t bytes = 0;
};

/// Everything is accounted for; the runner cleans up and exits 0. Sent after Finished.
struct Goodbye {};

// ---- runner -> launcher -------------------------------------------------------------------------

/// Facts of the host, sent with the job accepted and everything prepared (PMIx up, cgroup made).
struct JobReady {
  std::string hostname;
  std::uint32_t cpus = 0;  // that the runner may use
  std::uint64_t memory_bytes = 0;
  std::string kernel;
  std::string cgroup;  // "v2 <path>" or "none: <why>"
  std::string pmix;    // "libpmix 4.2.2" or "none: <why>"
};

struct RankStarted {
  std::uint32_t rank = 0;
  std::uint32_t pid = 0;
};

/// Bytes that a rank wrote, in order per (rank, stream); at most 64 KiB each.
struct Output {
  std::uint32_t rank = 0;
  Stream stream = Stream::out;
  std::string bytes;
};

/// One line that a rank sent through SORTIE_SOCKET: a JSON object, at most 64 KiB.
struct RankEvent {
  std::uint32_t rank = 0;
  std::string json;
};

/// A rank is gone and so is everything it left behind.
struct RankExited {
  std::uint32_t rank = 0;
  std::uint8_t signaled = 0;  // 1: `code` is a signal number
  std::uint32_t code = 0;
  std::uint8_t core_dumped = 0;
  std::uint8_t oom_killed = 0;         // by the counters of the cgroup
  std::uint8_t stopped = 0;            // ended because of Stop (a consequence, not a cause)
  std::uint64_t time_unix_ms = 0;      // runner's clock, when the death was seen
  std::uint32_t leftovers_killed = 0;  // descendants that had to be ended after it
};

/// Every rank is gone and nothing is left; sent once, after the last RankExited.
struct Finished {};

/// The runner can not go on (bad job, spawn failed, PMIx missing but required ...).
struct RunnerError {
  std::string code;        // error_code_name()
  std::string message;     // without the host's name; the launcher adds it
  std::int32_t rank = -1;  // -1 = the host
};

// ---- PMIx, relayed: sortie-pmix <-> runner <-> launcher -----------------------------------------

/// runner -> sortie-pmix, first message.
struct PmixSetup {
  std::string nspace;  // unique per run and attempt
  std::string host;
  std::vector<std::string> node_hosts;
  std::vector<std::string> node_ranks;
  std::uint32_t world_size = 0;
  std::vector<std::uint32_t> local_ranks;
  std::string tmp_dir;  // 0700, made and removed by the runner
};

/// sortie-pmix -> runner: per local rank (same order as local_ranks) the environment to add.
struct PmixReady {
  std::string version;
  std::vector<std::string>
      env;  // "NAME=value" for all ranks, and after each "#rank N" line for that rank
};

/// A fence that this host has reached, with its blob. Launcher answers PmixFenceDone to all of
/// them.
struct PmixFence {
  std::string key;               // participants and sequence number, equal on all hosts
  std::uint32_t node_count = 0;  // how many hosts take part
  std::string data;
};
struct PmixFenceDone {
  std::string key;
  std::int32_t status = 0;  // 0 or a PMIx error
  std::string data;         // all blobs, concatenated
};

/// Direct modex: data of a rank on another host is asked for, and the answer.
struct PmixModexRequest {
  std::uint64_t id = 0;
  std::uint32_t rank = 0;
};
struct PmixModexReply {
  std::uint64_t id = 0;
  std::uint32_t rank = 0;
  std::int32_t status = 0;
  std::string data;
};

/// A rank called MPI_Abort (or PMIx_Abort).
struct PmixAbort {
  std::uint32_t rank = 0;
  std::int32_t status = 0;
  std::string message;
};

using Message =
    std::variant<Hello, JobSpec, Start, Stop, Heartbeat, OutputCredit, Goodbye, JobReady,
                 RankStarted, Output, RankEvent, RankExited, Finished, RunnerError, PmixSetup,
                 PmixReady, PmixFence, PmixFenceDone, PmixModexRequest, PmixModexReply, PmixAbort,
                 FilesOpen, FilesManifest, FilesWanted, FilePiece, FilesCredit, FilesServe,
                 FilesFetch, FilesProgress, FilesDone>;

}  // namespace sortie::wire
