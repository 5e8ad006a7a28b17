// Every message between launcher, runner and sortie-pmix, as plain structs. codec.h turns each into
// a frame payload and back; README.md gives the grammar and the order in which they may appear.
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

/// Raised on every incompatible change; Hello carries it and a mismatch ends the connection.
inline constexpr std::uint32_t kProtocolVersion = 7;

/// Names and values of variables.
using Environment = std::vector<std::pair<std::string, std::string>>;

enum class Stream : std::uint8_t { out = 1, err = 2 };

/// For JobSpec::master_port: any port that is free.
inline constexpr std::uint32_t kAnyPort = 1u << 16;

/// How the ranks of a host share its cores: see common/cpu/binding.h.
enum class CpuBinding : std::uint8_t { none = 0, automatic = 1, core = 2, numa = 3 };

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
  std::uint32_t slot = 0;  // device id
  Environment env;         // on top of JobSpec::env
};

/// `count` hosts with consecutive numbers and `ranks` ranks each: `prefix`, the number from `first`
/// on with at least `width` digits, `suffix`. width 0: one host without a number, its name is
/// `prefix`.
struct NodeRun {
  std::string prefix;
  std::uint64_t first = 0;
  std::uint32_t width = 0;
  std::string suffix;
  std::uint32_t count = 1;
  std::uint32_t ranks = 0;
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
  Environment env;
  std::vector<RankSpec> ranks;
  std::string config_toml;  // resolved config, for the trainer: a 0600 file named by SORTIE_CONFIG;
                            // may be empty
  std::uint32_t grace_ms = 10000;
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
  std::uint8_t mpi = 0;  // 0 off, 1 auto (only where libpmix loads), 2 required
  /// Hosts and ranks of the whole job, for PMIx (node_list.h). Folded, because every host gets it.
  std::vector<NodeRun> nodes;
  std::uint32_t output_window = 4u << 20;  // bytes of output that may be unacknowledged
  /// To the host of rank 0 alone: the numeric addresses at which the other hosts were reached, and
  /// the port to hold for MASTER_PORT (0 = none). The answers are in JobReady.
  std::vector<std::string> peers;
  std::uint32_t master_port = 0;
  CpuBinding cpu_binding = CpuBinding::none;
  std::uint8_t autostart = 0;      // 1: the ranks start as soon as JobReady is sent; no Start comes
  std::uint32_t input_window = 0;  // bytes of Input that may be unacknowledged; 0: no stdin.
                                   // Only for a job of one rank on this host
  /// How long ranks are held after the launcher is gone, for another one to adopt them; 0: not.
  std::uint32_t hold_ms = 0;
  ContainerSpec container;  // engine empty = bare processes
  /// To the host of rank 0 alone: a file whose first number is the last committed step
  /// (recovery.progress_file); empty = none.
  std::string progress_file;
  std::uint32_t epoch = 1;    // of the launcher (Adopt)
  std::uint8_t health = 0;    // 1: sortie-health runs beside the ranks
  std::uint8_t memory = 0;    // 1: ranks get the folder of the host's holder (HoldMemory)
  std::uint8_t forwards = 0;  // 1: ranks may ask for streams to other hosts (ForwardOpen)
};

/// Start the ranks. Sent to all hosts when every host has answered JobReady.
struct Start {
  /// What was known only then (MASTER_ADDR, MASTER_PORT ...): on top of JobSpec::env, for all
  /// ranks.
  Environment env;
};

/// TERM now, KILL after grace_ms (0 = at once). Sent again with 0 to cut the grace short.
struct Stop {
  std::uint32_t grace_ms = 0;
  std::string reason;  // for the log
  /// 1: a rank or a host has failed, and who waits for it waits in vain. 0: all ranks are alive,
  /// and can complete a step together.
  std::uint8_t peers_lost = 0;
};

/// Where a rank is, as it has told its runner last (common/training/progress.h).
struct RankProgress {
  std::uint32_t rank = 0;
  std::uint64_t step = 0;         // that it works on, from 1; 0 = before the first
  std::uint8_t section = 0;       // training::Section
  std::uint64_t sequence = 0;     // collectives that it has begun
  std::uint32_t standing_ms = 0;  // how long nothing of what it tells has changed
  std::uint32_t silent_ms = 0;    // since it has told anything
  /// Per step, of the last ten seconds and at least one step: time in sections of its own work
  /// (data, forward, backward, optimizer), not waiting for others; 0 = not told.
  std::uint32_t own_us = 0;
  /// The longest time without a change that has ended since the last heartbeat, and the section in
  /// which that was.
  std::uint32_t longest_ms = 0;
  std::uint8_t longest_section = 0;
};

/// Both ways, every heartbeat_interval_ms. Any message counts as a sign of life.
struct Heartbeat {
  std::uint64_t sequence = 0;
  std::uint64_t time_unix_ms = 0;  // sender's clock; 0 = not told
  std::uint64_t time_boot_ms = 0;  // sender's clock that never jumps (boot_clock.h); 0 = not told
  /// From the launcher: RankEvents of this host that it has taken, since the job began.
  std::uint64_t events = 0;
  /// From the runner: its ranks that have told where they are, until they end.
  std::vector<RankProgress> ranks;
  /// From the host of JobSpec::progress_file: the step there, plus 1; 0 = not known.
  std::uint64_t committed_step = 0;
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
  /// Of all interfaces that are up, in the kernel's order: "eth0 10.1.0.2/24", "eth0 fd00::2/64".
  std::vector<std::string> addresses;
  /// {peer of JobSpec::peers, the address here from which it is reached}, where there is a route.
  std::vector<std::pair<std::string, std::string>> routes;
  std::uint32_t master_port = 0;      // held for this run until its end; 0 = not asked for
  std::string binding;                // "core: 2 ranks on 8 cores" or "none: <why>"
  std::vector<std::string> cpu_sets;  // per rank of JobSpec::ranks: "0-3,8"; none when not bound
  std::uint64_t time_unix_ms = 0;     // runner's clock; 0 = not told
  /// The machine behind the name: equal for two names of one machine. Empty = unknown.
  std::string machine_id;
  std::uint64_t time_boot_ms = 0;  // time_unix_ms by boot_clock.h
  std::uint32_t gpus = 0;          // of the host, whether ranks use them or not
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

/// launcher -> runner: one line for a rank, which gets it on the connections to its SORTIE_SOCKET
/// that have asked for answers ({"type":"listen"}); dropped when there is none. The asker repeats
/// what it was not answered. A JSON object of at most 64 KiB.
struct RankAnswer {
  std::uint32_t rank = 0;
  std::string json;
};

/// A rank is gone and so is everything it left behind.
struct RankExited {
  std::uint32_t rank = 0;
  std::uint8_t signaled = 0;  // 1: `code` is a signal number
  std::uint32_t code = 0;
  std::uint8_t core_dumped = 0;
  /// Of the one to two minutes before its end. 1: the counter of the rank's own cgroup rose,
  /// however it ended; 2: it died of a SIGKILL that was not ours, and the counter of a group above
  /// it, or of the whole host, rose.
  std::uint8_t oom_killed = 0;
  std::uint8_t stopped = 0;            // ended because of Stop (a consequence, not a cause)
  std::uint64_t time_unix_ms = 0;      // runner's clock, when the death was seen
  std::uint32_t leftovers_killed = 0;  // descendants that had to be ended after it
  std::uint64_t memory_limit_bytes =
      0;                           // of its container, when it was killed for it; 0 = not told
  std::uint64_t time_boot_ms = 0;  // when the death was seen, by boot_clock.h; 0 = not told
};

/// Every rank is gone and nothing is left; sent once, after the last RankExited.
struct Finished {};

/// The runner can not go on (bad job, spawn failed, PMIx missing but required ...).
struct RunnerError {
  std::string code;        // error_code_name()
  std::string message;     // without the host's name; the launcher adds it
  std::int32_t rank = -1;  // -1 = the host
};

// ---- a host that was lost while ranks ran, reached once more ------------------------------------

/// launcher -> a fresh runner, after Hello and instead of JobSpec: end everything of this run here.
/// A runner of it that still works has `patience_ms` to do so itself.
struct Sweep {
  std::string run_id;
  std::uint32_t patience_ms = 0;
  std::string cgroup;  // of the job, as JobReady named it; empty = none
  std::string engine;  // whose containers the ranks are in; empty = none
};
/// The answer, and the last message. Nothing is left but what `left` names.
struct Swept {
  std::uint32_t killed = 0;       // processes that had to be
  std::vector<std::string> left;  // "1234 python3 (state D)", at most 32
};

// ---- hangs and sick hosts ----------------------------------------------------------------------

/// launcher -> runner: the stacks of these ranks are wanted, as far as they can be had within
/// `timeout_ms`. Answered by one StackDump per rank.
struct DumpStacks {
  std::vector<std::uint32_t> ranks;
  std::uint32_t timeout_ms = 3000;
};
/// runner -> launcher.
struct StackDump {
  std::uint32_t rank = 0;
  /// "program": its own account of its stacks, and the kernel's view of its threads; "kernel:
  /// <why>": that view alone; "none: <why>".
  std::string how;
  std::string text;  // at most 256 KiB
};
/// runner -> launcher: what the host's health helper has seen; a JSON object of at most 64 KiB
/// (runner/health/README.md). Never trusted.
struct HealthEvent {
  std::string json;
};

// ---- stdin of a job of one rank -----------------------------------------------------------------

/// launcher -> runner: the next bytes of the rank's stdin, at most 64 KiB, within
/// JobSpec::input_window.
struct Input {
  std::string bytes;
  std::uint8_t eof = 0;  // 1: nothing follows
};
/// runner -> launcher: `bytes` more have been written to the rank or dropped.
struct InputCredit {
  std::uint64_t bytes = 0;
  std::uint8_t closed = 0;  // 1: the rank reads no more; what still comes is dropped
};

// ---- host checks: the conversation of `sortie check` --------------------------------------------

/// launcher -> runner, after Hello and instead of JobSpec; any number of times, each answered by at
/// least one CheckReport. runner/check/README.md has the objects.
struct CheckRequest {
  std::string json;  // at most 1 MiB
};

/// runner -> launcher: a part of the answer. Never trusted: sizes and contents are checked.
struct CheckReport {
  std::string json;  // at most 256 KiB
};

// ---- adoption: a new launcher takes over what a lost one has left; or the same launcher comes
// back over a new connection -

/// How much of a rank's stream the launcher's files hold.
struct LogSize {
  std::uint32_t rank = 0;
  Stream stream = Stream::out;
  std::uint64_t bytes = 0;
};

/// launcher -> a fresh runner, instead of JobSpec: find the runner that holds this job and hand the
/// connection over to it. Answered by Adopted, from that runner, or RunnerError: `lost` when no
/// runner holds the job any more, `io` when that could not be found out.
///
/// The pair (epoch, link) must be higher than any that the holder has obeyed. A higher epoch is
/// another launcher. The same epoch with a higher link is the same launcher, whose last connection
/// is void from then on.
struct Adopt {
  std::uint32_t protocol_version = kProtocolVersion;
  std::string run_id;
  std::uint32_t attempt = 1;
  std::uint32_t node_rank = 0;
  std::uint32_t epoch = 0;
  std::vector<LogSize> log_sizes;
  std::uint32_t link = 0;    // connections of this launcher to this host count from 1
  std::uint64_t events = 0;  // same epoch: RankEvents that it has taken, since the job began
};

/// The holding runner obeys this launcher from now on. RankStarted of all ranks, output that the
/// files do not have, RankExited of those that have ended, and open PMIx requests follow.
struct Adopted {
  std::uint32_t epoch = 0;
  std::uint32_t link = 0;
  std::uint64_t events = 0;  // RankEvents of this host before the next one that is sent
};

// ---- checkpoints in memory ----------------------------------------------------------------------

/// launcher -> a fresh runner, after Hello and instead of JobSpec: keep a folder in this host's
/// memory for the run, until Goodbye. Heartbeats flow from then on. When the launcher is gone it is
/// kept for `hold_ms` more, unless another holder has taken it over.
struct HoldMemory {
  std::string run_id;
  std::string host;  // this host's name in the plan
  std::uint32_t hold_ms = 0;
  std::uint32_t heartbeat_interval_ms = 2000;
  std::uint32_t heartbeat_timeout_ms = 10000;
  std::uint32_t epoch = 1;  // of the launcher: the memory of a later one is refused to it
};
/// The answer; or RunnerError.
struct MemoryHeld {
  std::string folder;
};

using Message =
    std::variant<Hello, JobSpec, Start, Stop, Heartbeat, OutputCredit, Goodbye, JobReady,
                 RankStarted, Output, RankEvent, RankExited, Finished, RunnerError, PmixSetup,
                 PmixReady, PmixFence, PmixFenceDone, PmixModexRequest, PmixModexReply, PmixAbort,
                 Sweep, Swept, PmixNames, PmixNamesDone, PmixNotice, Input, InputCredit, Adopt,
                 Adopted, CheckRequest, CheckReport, FilesOpen, FilesManifest, FilesWanted,
                 FilePiece, FilesCredit, FilesServe, FilesFetch, FilesProgress, FilesDone,
                 ImageOrder, ImageProgress, ImageReady, ImageQuery, ImageLacking, ImageLoad,
                 DumpStacks, StackDump, HealthEvent, HoldMemory, MemoryHeld, RankAnswer,
                 ForwardOpen, ForwardData, ForwardCredit, ForwardClose, TunnelOrder, TunnelReport>;

/// Of a byte stream between hosts, forward_messages.h.
inline bool is_of_stream(const Message& message) {
  return std::holds_alternative<ForwardOpen>(message) ||
         std::holds_alternative<ForwardData>(message) ||
         std::holds_alternative<ForwardCredit>(message) ||
         std::holds_alternative<ForwardClose>(message);
}

}  // namespace sortie::wire
