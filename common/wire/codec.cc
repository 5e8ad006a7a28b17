#include "common/wire/codec.h"

#include <fmt/core.h>

#include <limits>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <tuple>

#include "common/wire/members.h"

namespace sortie::wire {
namespace {

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
template <class E>
requires std::is_enum_v<E>
void put(Writer& w, Tag tag, E v) {
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
requires kIsNested<M>
void put(Writer& w, Tag tag, const std::vector<M>& v) {
  for (const M& item : v) {
    Writer nested(w, tag);
    put_members(nested, item);
  }
}
void put(Writer& w, Tag tag, const ContainerSpec& v) {
  Writer nested(w, tag);
  put_members(nested, v);
}
template <class M>
void put_members(Writer& w, const M& message) {
  Tag tag = 0;
  std::apply([&](const auto&... member) { (put(w, ++tag, member), ...); }, members(message));
}

// The getters throw protozero::exception (or out_of_range_error) for anything outside the grammar.
// decode() catches it.
struct out_of_range_error : protozero::exception {
  const char* what() const noexcept override { return "value out of range"; }
};

struct wire_type_error : protozero::exception {
  const char* what() const noexcept override { return "field has the wrong wire type"; }
};
/// Throws if a field's wire type is not the one that `put` writes. The reader would only assert.
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
void get_enum(Reader& r, E& v, std::uint32_t last, std::uint32_t first = 1) {
  const std::uint32_t wide = r.get_uint32();
  if (wide < first || wide > last) throw out_of_range_error{};
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
  get_enum(r, v, 4);
}
void get(Reader& r, CpuBinding& v) {
  get_enum(r, v, 3, 0);
}
void get(Reader& r, ContainerScope& v) {
  get_enum(r, v, 1, 0);
}
void get(Reader& r, std::string& v) {
  v = r.get_bytes();
}
/// Number of list items that the message may still contain. An empty item takes two bytes in a
/// frame and fifty in memory, so a frame within its size limit could otherwise exhaust the memory.
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
requires kIsNested<M>
void get(Reader& r, std::vector<M>& v) {
  take_item();
  Reader nested = r.get_message();
  get_members(nested, v.emplace_back());
}

void get(Reader& r, ContainerSpec& v) {
  take_item();
  Reader nested = r.get_message();
  get_members(nested, v);
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
          // Reading a member consumes the field, so the remaining members are not compared with it.
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
