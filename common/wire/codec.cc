#include "common/wire/codec.h"

#include <fmt/core.h>

#include <array>
#include <limits>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <tuple>

namespace sortie::wire {
namespace {

/// Members of each message in declaration order; position + 1 is the protobuf field number.
template <class M>
auto members(M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, Hello>) return std::tie(m.protocol_version, m.build);
  if constexpr (std::is_same_v<T, RankSpec>) return std::tie(m.rank, m.local_rank, m.slot, m.env);
  if constexpr (std::is_same_v<T, JobSpec>)
    return std::tie(m.run_id, m.attempt, m.host, m.node_rank, m.world_size, m.argv, m.work_dir,
                    m.env, m.ranks, m.config_toml, m.grace_ms, m.heartbeat_interval_ms,
                    m.heartbeat_timeout_ms, m.mpi, m.node_hosts, m.node_ranks, m.output_window,
                    m.peers, m.master_port, m.cpu_binding, m.autostart, m.input_window, m.hold_ms);
  if constexpr (std::is_same_v<T, Start>) return std::tie(m.env);
  if constexpr (std::is_same_v<T, Goodbye> || std::is_same_v<T, Finished>) return std::tuple<>();
  if constexpr (std::is_same_v<T, Stop>) return std::tie(m.grace_ms, m.reason);
  if constexpr (std::is_same_v<T, Heartbeat>) return std::tie(m.sequence, m.time_unix_ms);
  if constexpr (std::is_same_v<T, OutputCredit>) return std::tie(m.bytes);
  if constexpr (std::is_same_v<T, JobReady>)
    return std::tie(m.hostname, m.cpus, m.memory_bytes, m.kernel, m.cgroup, m.pmix, m.addresses,
                    m.routes, m.master_port, m.binding, m.cpu_sets, m.time_unix_ms);
  if constexpr (std::is_same_v<T, RankStarted>) return std::tie(m.rank, m.pid);
  if constexpr (std::is_same_v<T, Output>) return std::tie(m.rank, m.stream, m.bytes);
  if constexpr (std::is_same_v<T, RankEvent>) return std::tie(m.rank, m.json);
  if constexpr (std::is_same_v<T, RankExited>)
    return std::tie(m.rank, m.signaled, m.code, m.core_dumped, m.oom_killed, m.stopped,
                    m.time_unix_ms, m.leftovers_killed);
  if constexpr (std::is_same_v<T, RunnerError>) return std::tie(m.code, m.message, m.rank);
  if constexpr (std::is_same_v<T, PmixSetup>)
    return std::tie(m.nspace, m.host, m.node_hosts, m.node_ranks, m.world_size, m.local_ranks,
                    m.tmp_dir);
  if constexpr (std::is_same_v<T, PmixReady>) return std::tie(m.version, m.env);
  if constexpr (std::is_same_v<T, PmixFence>) return std::tie(m.key, m.node_count, m.data);
  if constexpr (std::is_same_v<T, PmixFenceDone>) return std::tie(m.key, m.status, m.data);
  if constexpr (std::is_same_v<T, PmixModexRequest>) return std::tie(m.id, m.rank);
  if constexpr (std::is_same_v<T, PmixModexReply>) return std::tie(m.id, m.rank, m.status, m.data);
  if constexpr (std::is_same_v<T, PmixAbort>) return std::tie(m.rank, m.status, m.message);
  if constexpr (std::is_same_v<T, FileEntry>)
    return std::tie(m.path, m.kind, m.mode, m.size, m.hashes, m.link_target);
  if constexpr (std::is_same_v<T, PieceRange>) return std::tie(m.entry, m.first, m.count);
  if constexpr (std::is_same_v<T, FilesOpen>)
    return std::tie(m.purpose, m.folder, m.paths, m.key, m.cache_bytes, m.heartbeat_interval_ms,
                    m.heartbeat_timeout_ms, m.relay_address);
  if constexpr (std::is_same_v<T, FilesManifest>) return std::tie(m.entries, m.last);
  if constexpr (std::is_same_v<T, FilesWanted>)
    return std::tie(m.ranges, m.last, m.relay_port, m.reason);
  if constexpr (std::is_same_v<T, FilePiece>) return std::tie(m.entry, m.piece, m.bytes);
  if constexpr (std::is_same_v<T, FilesCredit> || std::is_same_v<T, FilesProgress>)
    return std::tie(m.bytes);
  if constexpr (std::is_same_v<T, FilesServe>) return std::tie(m.link, m.key);
  if constexpr (std::is_same_v<T, FilesFetch>) return std::tie(m.link, m.key, m.address, m.port);
  if constexpr (std::is_same_v<T, FilesDone>)
    return std::tie(m.folder, m.files_changed, m.bytes_from_launcher, m.bytes_from_hosts);
  if constexpr (std::is_same_v<T, Sweep>) return std::tie(m.run_id, m.patience_ms, m.cgroup);
  if constexpr (std::is_same_v<T, Swept>) return std::tie(m.killed, m.left);
  if constexpr (std::is_same_v<T, PmixNames>)
    return std::tie(m.id, m.rank, m.action, m.wait, m.keys, m.values);
  if constexpr (std::is_same_v<T, PmixNamesDone>)
    return std::tie(m.id, m.status, m.ranks, m.keys, m.values);
  if constexpr (std::is_same_v<T, PmixNotice>) return std::tie(m.rank, m.text);
  if constexpr (std::is_same_v<T, Input>) return std::tie(m.bytes, m.eof);
  if constexpr (std::is_same_v<T, InputCredit>) return std::tie(m.bytes, m.closed);
  if constexpr (std::is_same_v<T, LogSize>) return std::tie(m.rank, m.stream, m.bytes);
  if constexpr (std::is_same_v<T, Adopt>)
    return std::tie(m.protocol_version, m.run_id, m.attempt, m.node_rank, m.epoch, m.log_sizes);
  if constexpr (std::is_same_v<T, Adopted>) return std::tie(m.epoch);
  if constexpr (std::is_same_v<T, CheckRequest> || std::is_same_v<T, CheckReport>)
    return std::tie(m.json);
}

using Writer = protozero::pbf_writer;
using Reader = protozero::pbf_reader;
using Tag = protozero::pbf_tag_type;

void put(Writer& w, Tag tag, std::uint8_t v) {
  w.add_uint32(tag, v);
}
void put(Writer& w, Tag tag, std::uint16_t v) {
  w.add_uint32(tag, v);
}
void put(Writer& w, Tag tag, std::uint32_t v) {
  w.add_uint32(tag, v);
}
void put(Writer& w, Tag tag, std::uint64_t v) {
  w.add_uint64(tag, v);
}
void put(Writer& w, Tag tag, std::int32_t v) {
  w.add_sint32(tag, v);
}
void put(Writer& w, Tag tag, Stream v) {
  w.add_uint32(tag, static_cast<std::uint32_t>(v));
}
void put(Writer& w, Tag tag, FileKind v) {
  w.add_uint32(tag, static_cast<std::uint32_t>(v));
}
void put(Writer& w, Tag tag, FilesPurpose v) {
  w.add_uint32(tag, static_cast<std::uint32_t>(v));
}
void put(Writer& w, Tag tag, PmixNames::Action v) {
  w.add_uint32(tag, static_cast<std::uint32_t>(v));
}
void put(Writer& w, Tag tag, CpuBinding v) {
  w.add_uint32(tag, static_cast<std::uint32_t>(v));
}
void put(Writer& w, Tag tag, const std::string& v) {
  w.add_bytes(tag, v);
}
void put(Writer& w, Tag tag, const std::vector<std::string>& v) {
  for (const std::string& item : v) w.add_bytes(tag, item);
}
void put(Writer& w, Tag tag, const std::vector<std::uint32_t>& v) {
  for (std::uint32_t item : v) w.add_uint32(tag, item);
}
void put(Writer& w, Tag tag, const std::vector<std::pair<std::string, std::string>>& v) {
  for (const auto& [name, value] : v) {
    Writer pair(w, tag);
    pair.add_bytes(1, name);
    pair.add_bytes(2, value);
  }
}
template <class M>
void put_members(Writer& w, const M& message);
template <class M>
requires std::is_same_v<M, RankSpec> || std::is_same_v<M, LogSize> ||
    std::is_same_v<M, FileEntry> || std::is_same_v<M, PieceRange>
void put(Writer& w, Tag tag, const std::vector<M>& v) {
  for (const M& item : v) {
    Writer nested(w, tag);
    put_members(nested, item);
  }
}
template <class M>
void put_members(Writer& w, const M& message) {
  Tag tag = 0;
  std::apply([&](const auto&... member) { (put(w, ++tag, member), ...); }, members(message));
}

// A getter throws protozero::exception (or out_of_range_error) on anything outside the grammar;
// decode() catches.
struct out_of_range_error : protozero::exception {
  const char* what() const noexcept override { return "value out of range"; }
};

struct wire_type_error : protozero::exception {
  const char* what() const noexcept override { return "field has the wrong wire type"; }
};
/// A field of another wire type than `put` gives it is an error, not an assertion of the reader.
void expect(const Reader& r, protozero::pbf_wire_type type) {
  if (r.wire_type() != type) throw wire_type_error{};
}

void get(Reader& r, std::uint8_t& v) {
  const std::uint32_t wide = r.get_uint32();
  if (wide > 255) throw out_of_range_error{};
  v = static_cast<std::uint8_t>(wide);
}
void get(Reader& r, std::uint16_t& v) {
  const std::uint32_t wide = r.get_uint32();
  if (wide > 65535) throw out_of_range_error{};
  v = static_cast<std::uint16_t>(wide);
}
void get(Reader& r, std::uint32_t& v) {
  v = r.get_uint32();
}
void get(Reader& r, std::uint64_t& v) {
  v = r.get_uint64();
}
void get(Reader& r, std::int32_t& v) {
  v = r.get_sint32();
}
template <class E>
void get_enum(Reader& r, E& v, std::uint32_t last) {
  const std::uint32_t wide = r.get_uint32();
  if (wide < 1 || wide > last) throw out_of_range_error{};
  v = static_cast<E>(wide);
}
void get(Reader& r, Stream& v) {
  get_enum(r, v, 2);
}
void get(Reader& r, FileKind& v) {
  get_enum(r, v, 3);
}
void get(Reader& r, FilesPurpose& v) {
  get_enum(r, v, 3);
}
void get(Reader& r, PmixNames::Action& v) {
  const std::uint32_t wide = r.get_uint32();
  if (wide < 1 || wide > 3) throw out_of_range_error{};
  v = static_cast<PmixNames::Action>(wide);
}
void get(Reader& r, CpuBinding& v) {
  const std::uint32_t wide = r.get_uint32();
  if (wide > static_cast<std::uint32_t>(CpuBinding::numa)) throw out_of_range_error{};
  v = static_cast<CpuBinding>(wide);
}
void get(Reader& r, std::string& v) {
  v = r.get_bytes();
}
/// Items of lists that the message may still hold: an empty one is two bytes in a frame and fifty
/// in memory, so that a frame within its limit could otherwise fill a machine.
thread_local std::size_t items_left = 0;
struct too_many_items_error : protozero::exception {
  const char* what() const noexcept override { return "too many items in its lists"; }
};
void take_item() {
  if (items_left == 0) throw too_many_items_error{};
  --items_left;
}

void get(Reader& r, std::vector<std::string>& v) {
  take_item();
  v.push_back(r.get_bytes());
}
void get(Reader& r, std::vector<std::uint32_t>& v) {
  take_item();
  v.push_back(r.get_uint32());
}
void get(Reader& r, std::vector<std::pair<std::string, std::string>>& v) {
  take_item();
  Reader pair = r.get_message();
  auto& entry = v.emplace_back();
  while (pair.next()) {
    if (pair.tag() != 1 && pair.tag() != 2) {
      pair.skip();
      continue;
    }
    std::string& half = pair.tag() == 1 ? entry.first : entry.second;
    expect(pair, protozero::pbf_wire_type::length_delimited);
    half = pair.get_bytes();
  }
}
template <class M>
void get_members(Reader& r, M& message);
template <class M>
requires std::is_same_v<M, RankSpec> || std::is_same_v<M, LogSize> ||
    std::is_same_v<M, FileEntry> || std::is_same_v<M, PieceRange>
void get(Reader& r, std::vector<M>& v) {
  take_item();
  Reader nested = r.get_message();
  get_members(nested, v.emplace_back());
}

/// The wire type that `put` uses for a member.
template <class T>
constexpr protozero::pbf_wire_type wire_type_of() {
  if constexpr (std::is_integral_v<T> || std::is_enum_v<T> ||
                std::is_same_v<T, std::vector<std::uint32_t>>)
    return protozero::pbf_wire_type::varint;
  else
    return protozero::pbf_wire_type::length_delimited;
}
template <class M>
void get_members(Reader& r, M& message) {
  auto all = members(message);
  while (r.next()) {
    bool known = false;
    Tag tag = 0;
    std::apply(
        [&](auto&... member) {
          [[maybe_unused]] auto read = [&](auto& target) {
            if (r.tag() != ++tag) return;
            expect(r, wire_type_of<std::remove_reference_t<decltype(target)>>());
            get(r, target);
            known = true;
          };
          // The cursor moves on once a member took the field: `tag` keeps counting, no other
          // matches.
          ((known ? void() : read(member)), ...);
        },
        all);
    if (!known) r.skip();
  }
}

template <std::size_t... I>
Result<Message> decode_by_type(const FrameView& frame, std::index_sequence<I...>) {
  Message message;
  const std::size_t index = static_cast<std::size_t>(frame.type) - 1;
  Reader reader(frame.payload.data(), frame.payload.size());
  ((index == I ? get_members(reader, message.emplace<I>()) : void()), ...);
  return message;
}

constexpr std::array<std::string_view, std::variant_size_v<Message>> kNames = {"Hello",
                                                                               "JobSpec",
                                                                               "Start",
                                                                               "Stop",
                                                                               "Heartbeat",
                                                                               "OutputCredit",
                                                                               "Goodbye",
                                                                               "JobReady",
                                                                               "RankStarted",
                                                                               "Output",
                                                                               "RankEvent",
                                                                               "RankExited",
                                                                               "Finished",
                                                                               "RunnerError",
                                                                               "PmixSetup",
                                                                               "PmixReady",
                                                                               "PmixFence",
                                                                               "PmixFenceDone",
                                                                               "PmixModexRequest",
                                                                               "PmixModexReply",
                                                                               "PmixAbort",
                                                                               "Sweep",
                                                                               "Swept",
                                                                               "PmixNames",
                                                                               "PmixNamesDone",
                                                                               "PmixNotice",
                                                                               "Input",
                                                                               "InputCredit",
                                                                               "Adopt",
                                                                               "Adopted",
                                                                               "CheckRequest",
                                                                               "CheckReport",
                                                                               "FilesOpen",
                                                                               "FilesManifest",
                                                                               "FilesWanted",
                                                                               "FilePiece",
                                                                               "FilesCredit",
                                                                               "FilesServe",
                                                                               "FilesFetch",
                                                                               "FilesProgress",
                                                                               "FilesDone"};

}  // namespace

void append_frame(std::string& bytes, const Message& message) {
  const std::size_t opened = open_frame(bytes, static_cast<std::uint8_t>(message.index() + 1));
  Writer writer(bytes);
  std::visit([&](const auto& concrete) { put_members(writer, concrete); }, message);
  close_frame(bytes, opened);
}

std::string encode(const Message& message) {
  std::string bytes;
  append_frame(bytes, message);
  return bytes;
}

Result<Message> decode(const FrameView& frame) {
  if (frame.type == 0 || frame.type > std::variant_size_v<Message>)
    return fail(ErrorCode::protocol, fmt::format("unknown message type {}", frame.type));
  items_left = kMaxItems;
  try {
    return decode_by_type(frame, std::make_index_sequence<std::variant_size_v<Message>>{});
  } catch (const protozero::exception& error) {
    return fail(ErrorCode::protocol,
                fmt::format("malformed {}: {}", kNames[frame.type - 1u], error.what()));
  }
}

std::string_view message_name(const Message& message) {
  return kNames[message.index()];
}

}  // namespace sortie::wire
