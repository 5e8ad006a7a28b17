// The fields of each message in the order of their protobuf numbers, and the messages' names for
// logs. Only codec.cc needs this.
#pragma once

#include <array>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>

#include "common/wire/message.h"

namespace sortie::wire {

/// Structs that are elements of lists in other messages.
template <class M>
inline constexpr bool kIsNested =
    std::is_same_v<M, RankSpec> || std::is_same_v<M, LogSize> || std::is_same_v<M, FileEntry> ||
    std::is_same_v<M, PieceRange> || std::is_same_v<M, Mount> || std::is_same_v<M, NodeRun> ||
    std::is_same_v<M, RankProgress>;

/// Members of each message in declaration order; position + 1 is the protobuf field number.
template <class M>
auto members(M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, Hello>) return std::tie(m.protocol_version, m.build);
  if constexpr (std::is_same_v<T, NodeRun>)
    return std::tie(m.prefix, m.first, m.width, m.suffix, m.count, m.ranks);
  if constexpr (std::is_same_v<T, RankSpec>) return std::tie(m.rank, m.local_rank, m.slot, m.env);
  if constexpr (std::is_same_v<T, JobSpec>)
    return std::tie(m.run_id, m.attempt, m.host, m.node_rank, m.world_size, m.argv, m.work_dir,
                    m.env, m.ranks, m.config_toml, m.grace_ms, m.heartbeat_interval_ms,
                    m.heartbeat_timeout_ms, m.mpi, m.nodes, m.output_window, m.peers, m.master_port,
                    m.cpu_binding, m.autostart, m.input_window, m.hold_ms, m.container,
                    m.progress_file, m.epoch, m.health, m.memory, m.forwards, m.need_work_dir);
  if constexpr (std::is_same_v<T, Mount>) return std::tie(m.source, m.target, m.options);
  if constexpr (std::is_same_v<T, ContainerSpec>)
    return std::tie(m.engine, m.image, m.scope, m.mounts, m.shm_bytes, m.ipc, m.network, m.gpus,
                    m.devices, m.ulimits, m.ulimits_are_wishes, m.capabilities, m.privileged,
                    m.user, m.workdir, m.entrypoint, m.labels, m.extra_args, m.rank_cpus_milli,
                    m.rank_memory_bytes, m.image_id);
  if constexpr (std::is_same_v<T, ImageOrder>)
    return std::tie(m.engine, m.image, m.pull, m.credentials, m.mount_sources,
                    m.heartbeat_interval_ms, m.heartbeat_timeout_ms, m.user);
  if constexpr (std::is_same_v<T, ImageQuery>)
    return std::tie(m.engine, m.image, m.image_id, m.diff_ids, m.heartbeat_interval_ms,
                    m.heartbeat_timeout_ms);
  if constexpr (std::is_same_v<T, ImageLacking>) return std::tie(m.present, m.layers);
  if constexpr (std::is_same_v<T, ImageLoad>) return std::tie(m.engine, m.image, m.file);
  if constexpr (std::is_same_v<T, ImageProgress>) return std::tie(m.text);
  if constexpr (std::is_same_v<T, ImageReady>)
    return std::tie(m.image_id, m.repo_digest, m.engine_version, m.bytes, m.pulled);
  if constexpr (std::is_same_v<T, Start>) return std::tie(m.env);
  if constexpr (std::is_same_v<T, Goodbye> || std::is_same_v<T, Finished>) return std::tuple<>();
  if constexpr (std::is_same_v<T, Stop>) return std::tie(m.grace_ms, m.reason, m.peers_lost);
  if constexpr (std::is_same_v<T, Heartbeat>)
    return std::tie(m.sequence, m.time_unix_ms, m.time_boot_ms, m.events, m.ranks,
                    m.committed_step);
  if constexpr (std::is_same_v<T, RankProgress>)
    return std::tie(m.rank, m.step, m.section, m.sequence, m.standing_ms, m.silent_ms, m.own_us,
                    m.longest_ms, m.longest_section);
  if constexpr (std::is_same_v<T, DumpStacks>) return std::tie(m.ranks, m.timeout_ms);
  if constexpr (std::is_same_v<T, StackDump>) return std::tie(m.rank, m.how, m.text);
  if constexpr (std::is_same_v<T, HealthEvent>) return std::tie(m.json);
  if constexpr (std::is_same_v<T, OutputCredit>) return std::tie(m.bytes);
  if constexpr (std::is_same_v<T, JobReady>)
    return std::tie(m.hostname, m.cpus, m.memory_bytes, m.kernel, m.cgroup, m.pmix, m.addresses,
                    m.routes, m.master_port, m.binding, m.cpu_sets, m.time_unix_ms, m.machine_id,
                    m.time_boot_ms, m.gpus, m.no_work_dir);
  if constexpr (std::is_same_v<T, RankStarted>) return std::tie(m.rank, m.pid);
  if constexpr (std::is_same_v<T, Output>) return std::tie(m.rank, m.stream, m.bytes);
  if constexpr (std::is_same_v<T, RankEvent> || std::is_same_v<T, RankAnswer>)
    return std::tie(m.rank, m.json);
  if constexpr (std::is_same_v<T, RankExited>)
    return std::tie(m.rank, m.signaled, m.code, m.core_dumped, m.oom_killed, m.stopped,
                    m.time_unix_ms, m.leftovers_killed, m.memory_limit_bytes, m.time_boot_ms,
                    m.not_finalized, m.left);
  if constexpr (std::is_same_v<T, RunnerError>) return std::tie(m.code, m.message, m.rank);
  if constexpr (std::is_same_v<T, PmixSetup>)
    return std::tie(m.nspace, m.host, m.node_hosts, m.node_ranks, m.world_size, m.local_ranks,
                    m.tmp_dir);
  if constexpr (std::is_same_v<T, PmixReady>) return std::tie(m.version, m.env);
  if constexpr (std::is_same_v<T, PmixFence>) return std::tie(m.key, m.node_count, m.data);
  if constexpr (std::is_same_v<T, PmixFenceDone>) return std::tie(m.key, m.status, m.data);
  if constexpr (std::is_same_v<T, PmixModexRequest>)
    return std::tie(m.id, m.rank, m.key, m.timeout_s);
  if constexpr (std::is_same_v<T, PmixModexReply>) return std::tie(m.id, m.rank, m.status, m.data);
  if constexpr (std::is_same_v<T, PmixAbort>) return std::tie(m.rank, m.status, m.message);
  if constexpr (std::is_same_v<T, FileEntry>)
    return std::tie(m.path, m.kind, m.mode, m.size, m.hashes, m.link_target);
  if constexpr (std::is_same_v<T, PieceRange>) return std::tie(m.entry, m.first, m.count);
  if constexpr (std::is_same_v<T, FilesOpen>)
    return std::tie(m.purpose, m.folder, m.paths, m.key, m.cache_bytes, m.heartbeat_interval_ms,
                    m.heartbeat_timeout_ms, m.relay_address, m.private_folder);
  if constexpr (std::is_same_v<T, FilesManifest>) return std::tie(m.entries, m.last);
  if constexpr (std::is_same_v<T, FilesWanted>)
    return std::tie(m.ranges, m.last, m.relay_port, m.reason);
  if constexpr (std::is_same_v<T, FilePiece>) return std::tie(m.entry, m.piece, m.bytes, m.lost);
  if constexpr (std::is_same_v<T, FilesCredit>) return std::tie(m.bytes);
  if constexpr (std::is_same_v<T, FilesProgress>) return std::tie(m.bytes, m.waits_for);
  if constexpr (std::is_same_v<T, FilesServe>) return std::tie(m.link, m.key);
  if constexpr (std::is_same_v<T, FilesFetch>) return std::tie(m.link, m.key, m.address, m.port);
  if constexpr (std::is_same_v<T, FilesDone>)
    return std::tie(m.folder, m.files_changed, m.bytes_from_launcher, m.bytes_from_hosts);
  if constexpr (std::is_same_v<T, Sweep>)
    return std::tie(m.run_id, m.patience_ms, m.cgroup, m.engine);
  if constexpr (std::is_same_v<T, HoldMemory>)
    return std::tie(m.run_id, m.host, m.hold_ms, m.heartbeat_interval_ms, m.heartbeat_timeout_ms,
                    m.epoch);
  if constexpr (std::is_same_v<T, MemoryHeld>) return std::tie(m.folder);
  if constexpr (std::is_same_v<T, Swept>) return std::tie(m.killed, m.left);
  if constexpr (std::is_same_v<T, PmixNames>)
    return std::tie(m.id, m.rank, m.action, m.wait, m.keys, m.values);
  if constexpr (std::is_same_v<T, PmixNamesDone>)
    return std::tie(m.id, m.status, m.ranks, m.keys, m.values);
  if constexpr (std::is_same_v<T, PmixNotice>) return std::tie(m.rank, m.text);
  if constexpr (std::is_same_v<T, PmixExited>) return std::tie(m.rank, m.not_finalized);
  if constexpr (std::is_same_v<T, Input>) return std::tie(m.bytes, m.eof);
  if constexpr (std::is_same_v<T, InputCredit>) return std::tie(m.bytes, m.closed);
  if constexpr (std::is_same_v<T, LogSize>) return std::tie(m.rank, m.stream, m.bytes);
  if constexpr (std::is_same_v<T, ForwardOpen>) return std::tie(m.id, m.host, m.port);
  if constexpr (std::is_same_v<T, ForwardData> || std::is_same_v<T, ForwardCredit>)
    return std::tie(m.id, m.bytes);
  if constexpr (std::is_same_v<T, ForwardClose>) return std::tie(m.id, m.why);
  if constexpr (std::is_same_v<T, Adopt>)
    return std::tie(m.protocol_version, m.run_id, m.attempt, m.node_rank, m.epoch, m.log_sizes,
                    m.link, m.events);
  if constexpr (std::is_same_v<T, Adopted>) return std::tie(m.epoch, m.link, m.events);
  if constexpr (std::is_same_v<T, CheckRequest> || std::is_same_v<T, CheckReport> ||
                std::is_same_v<T, TunnelOrder> || std::is_same_v<T, TunnelReport>)
    return std::tie(m.json);
}

// clang-format off
/// Names of messages, by position in Message.
inline constexpr std::array<std::string_view, std::variant_size_v<Message>> kNames = {
    "Hello", "JobSpec", "Start", "Stop", "Heartbeat", "OutputCredit", "Goodbye", "JobReady",
    "RankStarted", "Output", "RankEvent", "RankExited", "Finished", "RunnerError", "PmixSetup",
    "PmixReady", "PmixFence", "PmixFenceDone", "PmixModexRequest", "PmixModexReply", "PmixAbort",
    "Sweep", "Swept", "PmixNames", "PmixNamesDone", "PmixNotice", "PmixExited", "Input", "InputCredit", "Adopt",
    "Adopted", "CheckRequest", "CheckReport", "FilesOpen", "FilesManifest", "FilesWanted",
    "FilePiece", "FilesCredit", "FilesServe", "FilesFetch", "FilesProgress", "FilesDone",
    "ImageOrder", "ImageProgress", "ImageReady", "ImageQuery", "ImageLacking", "ImageLoad",
    "DumpStacks", "StackDump", "HealthEvent", "HoldMemory", "MemoryHeld", "RankAnswer", "ForwardOpen", "ForwardData", "ForwardCredit", "ForwardClose", "TunnelOrder", "TunnelReport"};
// clang-format on

}  // namespace sortie::wire
