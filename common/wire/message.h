// Every message between launcher, runner and sortie-pmix, as plain structs. codec.h encodes them as
// frames and decodes them. README.md gives the grammar and the allowed order.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/wire/container_messages.h"
#include "common/wire/file_messages.h"
#include "common/wire/forward_messages.h"
#include "common/wire/pmix_messages.h"
#include "common/wire/tunnel_messages.h"

namespace sortie::wire {

/// Raised on every incompatible change. Hello carries it; a mismatch ends the connection.
inline constexpr std::uint32_t kProtocolVersion = 8;

/// Names and values of environment variables.
using Environment = std::vector<std::pair<std::string, std::string>>;

enum class Stream : std::uint8_t { out = 1, err = 2 };

/// Value of JobSpec::master_port: any free port.
inline constexpr std::uint32_t kAnyPort = 1u << 16;

/// How the ranks of a host share its cores: see common/cpu/binding.h.
enum class CpuBinding : std::uint8_t { none = 0, automatic = 1, core = 2, numa = 3 };

// ---- launcher -> runner -------------------------------------------------------------------------

/// First message of each side.
struct Hello {
  std::uint32_t protocol_version = kProtocolVersion;
  std::string build;  // content hash of the runner binary (from the launcher: the expected one)
};

/// One rank to start. argv and env are passed unchanged; no shell parses them.
struct RankSpec {
  std::uint32_t rank = 0;  // global
  std::uint32_t local_rank = 0;
  std::uint32_t slot = 0;  // device id
  Environment env;         // overrides JobSpec::env
};

/// `count` hosts with consecutive numbers and `ranks` ranks each. A name is `prefix`, the number
/// (counted from `first`, with at least `width` digits), `suffix`. With width 0 there is one host
/// without a number, named `prefix`.
struct NodeRun {
  std::string prefix;
  std::uint64_t first = 0;
  std::uint32_t width = 0;
  std::string suffix;
  std::uint32_t count = 1;
  std::uint32_t ranks = 0;
};

/// The part of the plan for one host. Answered by JobReady or RunnerError.
struct JobSpec {
  std::string run_id;  // [a-z0-9-]{1,64}
  std::uint32_t attempt = 1;
  std::string host;  // this host's name in the plan
  std::uint32_t node_rank = 0;
  std::uint32_t world_size = 0;
  std::vector<std::string> argv;
  std::string work_dir;  // the home folder is used if it can not be entered (need_work_dir)
  Environment env;
  std::vector<RankSpec> ranks;
  std::string config_toml;  // resolved config for the trainer, written to a 0600 file that
                            // SORTIE_CONFIG names; may be empty
  std::uint32_t grace_ms = 10000;
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
  std::uint8_t mpi = 0;  // 0 off, 1 auto (only if libpmix can be loaded), 2 required
  /// Hosts and ranks of the whole job, for PMIx. Folded (node_list.h), because every host gets it.
  std::vector<NodeRun> nodes;
  std::uint32_t output_window = 4u << 20;  // bytes of output that may be unacknowledged
  /// Only for the host of rank 0: the numeric addresses at which the other hosts were reached, and
  /// the port to reserve for MASTER_PORT (0 = none). JobReady has the answers.
  std::vector<std::string> peers;
  std::uint32_t master_port = 0;
  CpuBinding cpu_binding = CpuBinding::none;
  std::uint8_t autostart = 0;      // 1: ranks start as soon as JobReady is sent; no Start follows
  std::uint32_t input_window = 0;  // bytes of Input that may be unacknowledged; 0 = no stdin.
                                   // Only for a job of one rank on this host
  /// How long ranks are held for adoption after the launcher is lost; 0 = not held.
  std::uint32_t hold_ms = 0;
  ContainerSpec container;  // engine empty = no containers
  /// Only for the host of rank 0: a file whose first number is the last committed step
  /// (recovery.progress_file); empty = none.
  std::string progress_file;
  std::uint32_t epoch = 1;    // of the launcher (Adopt)
  std::uint8_t health = 0;    // 1: run sortie-health while the ranks run
  std::uint8_t memory = 0;    // 1: ranks get the folder of the host's memory holder (HoldMemory)
  std::uint8_t forwards = 0;  // 1: ranks may open streams to other hosts (ForwardOpen)
  /// 1: the job is refused if work_dir can not be entered. Without effect in containers.
  std::uint8_t need_work_dir = 0;
};

/// Starts the ranks. Sent to all hosts once every host has answered JobReady.
struct Start {
  /// Variables that were not known before (MASTER_ADDR, MASTER_PORT ...); they override
  /// JobSpec::env for all ranks.
  Environment env;
};

/// Sends SIGTERM now and SIGKILL after grace_ms (0 = at once). May be repeated with 0 to end the
/// grace early.
struct Stop {
  std::uint32_t grace_ms = 0;
  std::string reason;  // for the log
  /// 1: a rank or a host has failed, so that waiting for it is futile. 0: all ranks are alive and
  /// can still complete a step together.
  std::uint8_t peers_lost = 0;
};

/// Position of a rank, from its last progress line to the runner (common/training/progress.h).
struct RankProgress {
  std::uint32_t rank = 0;
  std::uint64_t step = 0;         // current step, from 1; 0 = before the first
  std::uint8_t section = 0;       // training::Section
  std::uint64_t sequence = 0;     // number of collectives that it has begun
  std::uint32_t standing_ms = 0;  // time since its progress last changed
  std::uint32_t silent_ms = 0;    // time since its last progress line
  /// Time per step in sections of its own work (data, forward, backward, optimizer), without waits
  /// for other ranks. Measured over at least ten seconds and one step; 0 = unknown.
  std::uint32_t own_us = 0;
  /// The longest period without a change that ended since the last heartbeat, and the section in
  /// which it was.
  std::uint32_t longest_ms = 0;
  std::uint8_t longest_section = 0;
};

/// In both directions, every heartbeat_interval_ms. Any other message also counts as a heartbeat.
struct Heartbeat {
  std::uint64_t sequence = 0;
  std::uint64_t time_unix_ms = 0;  // sender's clock; 0 = unknown
  std::uint64_t time_boot_ms = 0;  // sender's monotonic clock (boot_clock.h); 0 = unknown
  /// From the launcher: number of RankEvents of this host that it has processed in this job.
  std::uint64_t events = 0;
  /// From the runner: its running ranks that have reported progress.
  std::vector<RankProgress> ranks;
  /// From the host of JobSpec::progress_file: the step in it, plus 1; 0 = unknown.
  std::uint64_t committed_step = 0;
};

/// The launcher has written `bytes` more of the output that it received.
struct OutputCredit {
  std::uint64_t bytes = 0;
};

/// The run is complete; the runner cleans up and exits 0. Sent after Finished.
struct Goodbye {};

// ---- runner -> launcher -------------------------------------------------------------------------

/// The job is accepted and prepared (PMIx up, cgroup made). Contains facts about the host.
struct JobReady {
  std::string hostname;
  std::uint32_t cpus = 0;  // usable by the runner
  std::uint64_t memory_bytes = 0;
  std::string kernel;
  std::string cgroup;  // "v2 <path>" or "none: <why>"
  std::string pmix;    // "libpmix 4.2.2" or "none: <why>"
  /// Addresses of all interfaces that are up, in the kernel's order: "eth0 10.1.0.2/24",
  /// "eth0 fd00::2/64".
  std::vector<std::string> addresses;
  /// {peer of JobSpec::peers, local address of the route to it}; peers without a route are omitted.
  std::vector<std::pair<std::string, std::string>> routes;
  std::uint32_t master_port = 0;      // reserved until the end of the run; 0 = none requested
  std::string binding;                // "core: 2 ranks on 8 cores" or "none: <why>"
  std::vector<std::string> cpu_sets;  // per rank of JobSpec::ranks: "0-3,8"; empty if not bound
  std::uint64_t time_unix_ms = 0;     // runner's clock; 0 = unknown
  /// Identifies the machine: equal for two host names of one machine. Empty = unknown.
  std::string machine_id;
  std::uint64_t time_boot_ms = 0;  // the same time by boot_clock.h
  std::uint32_t gpus = 0;          // GPUs of the host, used or not
  std::uint8_t no_work_dir = 0;    // 1: work_dir can not be entered, the home folder is used
};

struct RankStarted {
  std::uint32_t rank = 0;
  std::uint32_t pid = 0;
};

/// Bytes that a rank wrote, in order per (rank, stream); at most 64 KiB per message.
struct Output {
  std::uint32_t rank = 0;
  Stream stream = Stream::out;
  std::string bytes;
};

/// One line that a rank sent over SORTIE_SOCKET: a JSON object of at most 64 KiB.
struct RankEvent {
  std::uint32_t rank = 0;
  std::string json;
};

/// launcher -> runner: one line for a rank, a JSON object of at most 64 KiB. It is sent on those
/// connections to the rank's SORTIE_SOCKET that asked for answers ({"type":"listen"}), and dropped
/// if there are none. A rank repeats a request that was not answered.
struct RankAnswer {
  std::uint32_t rank = 0;
  std::string json;
};

/// A rank has ended, and all of its descendants too.
struct RankExited {
  std::uint32_t rank = 0;
  std::uint8_t signaled = 0;  // 1: `code` is a signal number
  std::uint32_t code = 0;
  std::uint8_t core_dumped = 0;
  /// OOM kills in the last one to two minutes. 1: the counter of the rank's own cgroup rose,
  /// however the rank ended. 2: the rank got a SIGKILL that the runner did not send, and the
  /// counter of a parent cgroup or of the whole host rose.
  std::uint8_t oom_killed = 0;
  std::uint8_t stopped = 0;            // ended because of Stop (a consequence, not a cause)
  std::uint64_t time_unix_ms = 0;      // time of detection by the runner's clock
  std::uint32_t leftovers_killed = 0;  // descendants that had to be killed after it
  std::uint64_t memory_limit_bytes =
      0;                           // limit of its container, if that caused the kill; 0 = unknown
  std::uint64_t time_boot_ms = 0;  // time of detection by boot_clock.h; 0 = unknown
  std::uint8_t not_finalized = 0;  // exit code 0 after MPI_Init without MPI_Finalize
  std::string left;  // descendant that could not be killed, and why; empty = none is left
};

/// All ranks have ended, and no process of theirs is left but RankExited::left. Sent once, after
/// the last RankExited.
struct Finished {};

/// The runner can not continue (bad job, spawn failed, PMIx missing but required ...).
struct RunnerError {
  std::string code;        // error_code_name()
  std::string message;     // without the host's name; the launcher adds it
  std::int32_t rank = -1;  // -1 = the host
};

// ---- a host that was lost while ranks ran and is reachable again --------------------------------

/// launcher -> a fresh runner, after Hello and instead of JobSpec: end everything of this run here.
/// A runner of the run that still works has `patience_ms` to do so itself.
struct Sweep {
  std::string run_id;
  std::uint32_t patience_ms = 0;
  std::string cgroup;  // cgroup of the job from JobReady; empty = none
  std::string engine;  // engine of the ranks' containers; empty = none
};
/// The answer, and the last message. Nothing is left except for the processes in `left`.
struct Swept {
  std::uint32_t killed = 0;       // number of processes that had to be killed
  std::vector<std::string> left;  // "1234 python3 (state D)", at most 32
};

// ---- hangs and sick hosts ----------------------------------------------------------------------

/// launcher -> runner: collect the stacks of these ranks, as many as possible within `timeout_ms`.
/// Answered by one StackDump per rank.
struct DumpStacks {
  std::vector<std::uint32_t> ranks;
  std::uint32_t timeout_ms = 3000;
};
/// runner -> launcher.
struct StackDump {
  std::uint32_t rank = 0;
  /// "program": stacks that the program wrote itself, plus the kernel's view of its threads;
  /// "kernel: <why>": only the kernel's view; "none: <why>".
  std::string how;
  std::string text;  // at most 256 KiB
};
/// runner -> launcher: an observation of the host's health helper, a JSON object of at most 64 KiB
/// (runner/health/README.md) with its number "n"; if it is sent again, also its age "age_ms".
/// Untrusted.
struct HealthEvent {
  std::string json;
};

// ---- stdin of a job of one rank -----------------------------------------------------------------

/// launcher -> runner: the next bytes of the rank's stdin; at most 64 KiB, and within
/// JobSpec::input_window.
struct Input {
  std::string bytes;
  std::uint8_t eof = 0;  // 1: nothing follows
};
/// runner -> launcher: `bytes` more have been written to the rank or dropped.
struct InputCredit {
  std::uint64_t bytes = 0;
  std::uint8_t closed = 0;  // 1: the rank has closed its stdin; further input is dropped
};

// ---- host checks: the messages of `sortie check` ------------------------------------------------

/// launcher -> runner, after Hello and instead of JobSpec. May be sent any number of times; each is
/// answered by at least one CheckReport. runner/check/README.md specifies the objects.
struct CheckRequest {
  std::string json;  // at most 1 MiB
};

/// runner -> launcher: a part of the answer. Untrusted: sizes and contents are checked.
struct CheckReport {
  std::string json;  // at most 256 KiB
};

// ---- adoption: a new launcher takes over a job, or the same launcher reconnects -----------------

/// Bytes of a rank's stream that the launcher's files contain.
struct LogSize {
  std::uint32_t rank = 0;
  Stream stream = Stream::out;
  std::uint64_t bytes = 0;
};

/// launcher -> a fresh runner, instead of JobSpec: find the runner that holds this job and hand the
/// connection over to it. Answered by Adopted, from that runner, or by RunnerError: `lost` if no
/// runner holds the job any more, `io` if that could not be determined.
///
/// The pair (epoch, link) must be higher than any that the holder has accepted. A higher epoch
/// means another launcher. The same epoch with a higher link means the same launcher on a new
/// connection; its previous connection becomes invalid.
struct Adopt {
  std::uint32_t protocol_version = kProtocolVersion;
  std::string run_id;
  std::uint32_t attempt = 1;
  std::uint32_t node_rank = 0;
  std::uint32_t epoch = 0;
  std::vector<LogSize> log_sizes;
  std::uint32_t link = 0;    // number of this launcher's connection to this host, from 1
  std::uint64_t events = 0;  // same epoch: number of RankEvents that it has processed in this job
};

/// The holder accepts orders from this launcher from now on. RankStarted of all ranks, output that
/// the files lack, RankExited of ended ranks, and open PMIx requests follow.
struct Adopted {
  std::uint32_t epoch = 0;
  std::uint32_t link = 0;
  std::uint64_t events = 0;  // number of RankEvents of this host before the next one
};

// ---- checkpoints in memory ----------------------------------------------------------------------

/// launcher -> a fresh runner, after Hello and instead of JobSpec: keep a folder in this host's
/// memory for the run, until Goodbye. Both sides send heartbeats from then on. If the launcher is
/// lost, the folder is kept for `hold_ms`, unless another holder has taken it over.
struct HoldMemory {
  std::string run_id;
  std::string host;  // this host's name in the plan
  std::uint32_t hold_ms = 0;
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
  std::uint32_t epoch = 1;  // of the launcher; refused if the memory belongs to a later one
};
/// The answer to HoldMemory, unless that is RunnerError.
struct MemoryHeld {
  std::string folder;
};

using Message =
    std::variant<Hello, JobSpec, Start, Stop, Heartbeat, OutputCredit, Goodbye, JobReady,
                 RankStarted, Output, RankEvent, RankExited, Finished, RunnerError, PmixSetup,
                 PmixReady, PmixFence, PmixFenceDone, PmixModexRequest, PmixModexReply, PmixAbort,
                 Sweep, Swept, PmixNames, PmixNamesDone, PmixNotice, PmixExited, Input, InputCredit,
                 Adopt, Adopted, CheckRequest, CheckReport, FilesOpen, FilesManifest, FilesWanted,
                 FilePiece, FilesCredit, FilesServe, FilesFetch, FilesProgress, FilesDone,
                 ImageOrder, ImageProgress, ImageReady, ImageQuery, ImageLacking, ImageLoad,
                 DumpStacks, StackDump, HealthEvent, HoldMemory, MemoryHeld, RankAnswer,
                 ForwardOpen, ForwardData, ForwardCredit, ForwardClose, TunnelOrder, TunnelReport>;

/// Whether the message belongs to a byte stream between hosts (forward_messages.h).
inline bool is_of_stream(const Message& message) {
  return std::holds_alternative<ForwardOpen>(message) ||
         std::holds_alternative<ForwardData>(message) ||
         std::holds_alternative<ForwardCredit>(message) ||
         std::holds_alternative<ForwardClose>(message);
}

}  // namespace sortie::wire
