// Parses a safetensors header event by event: no tree is built from a hostile one, and duplicate
// names are detected (a tree would keep the last).
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "trainer/checkpoint/safetensors.h"

namespace sortie::trainer {
namespace {

class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;
  std::string problem;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_float(double, const std::string&) override { return refuse("a fraction"); }
  bool binary(nlohmann::json::binary_t&) override { return refuse("binary data"); }
  bool number_integer(std::int64_t) override { return refuse("a negative number"); }

  bool number_unsigned(std::uint64_t value) override {
    if (place_ == Place::shape) {
      if (value > kMaxNumber) return refuse("a size that is too large");
      entry_.shape.push_back(static_cast<std::int64_t>(value));
      return entry_.shape.size() <= kMaxDims || refuse("more than 64 dimensions");
    }
    if (place_ == Place::offsets) {
      if (num_offsets_ == 2) return refuse("a third data offset");
      (num_offsets_++ == 0 ? entry_.begin : entry_.end) = value;
      return true;
    }
    return refuse("a number");
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      header.metadata[key_] = value;
      return true;
    }
    if (place_ == Place::entry && key_ == "dtype") {
      const auto type = storage_from_name(value);
      if (!type) return fail_with(fmt::format("tensor {}: type {} is unknown", entry_.name, value));
      entry_.type = *type;
      return true;
    }
    return refuse("a string");
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::start) {
      place_ = Place::root;
      return true;
    }
    if (place_ != Place::root) return refuse("an object");
    seen_.clear();
    if (key_ == "__metadata__") {
      place_ = Place::metadata;
    } else {
      place_ = Place::entry;
      entry_ = TensorEntry{.name = key_};
      num_offsets_ = 0;
    }
    return true;
  }

  bool key(std::string& name) override {
    key_ = name;
    if (place_ == Place::root)
      return names_.insert(name).second || fail_with(fmt::format("tensor {} comes twice", name));
    if (place_ == Place::entry && name != "dtype" && name != "shape" && name != "data_offsets")
      return fail_with(fmt::format("tensor {}: unknown field {}", entry_.name, name));
    return seen_.insert(name).second || fail_with(fmt::format("field {} comes twice", name));
  }

  bool end_object() override {
    if (place_ == Place::entry) {
      if (seen_.size() != 3 || num_offsets_ != 2)
        return fail_with(
            fmt::format("tensor {}: needs dtype, shape and two data_offsets", entry_.name));
      header.tensors.push_back(std::move(entry_));
    }
    place_ = place_ == Place::root ? Place::end : Place::root;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::entry && key_ == "shape") {
      place_ = Place::shape;
    } else if (place_ == Place::entry && key_ == "data_offsets") {
      place_ = Place::offsets;
    } else {
      return refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    place_ = Place::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail_with(fmt::format("the header is not JSON at byte {}", position));
  }

 private:
  enum class Place { start, root, metadata, entry, shape, offsets, end };
  static constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << 62;
  static constexpr std::size_t kMaxDims = 64;

  bool fail_with(std::string text) {
    if (problem.empty()) problem = std::move(text);
    return false;
  }
  bool refuse(std::string_view what) {
    return fail_with(fmt::format("{} at {}, where the format has none", what,
                                 key_.empty() ? "the start" : key_));
  }

  Place place_ = Place::start;
  std::string key_;
  TensorEntry entry_;
  int num_offsets_ = 0;
  std::set<std::string> names_;
  std::set<std::string> seen_;  // fields of the entry, or keys of the metadata
};

/// Sorts the tensors by position. Checks that each has the size of its type and shape, and that
/// they are contiguous up to the end of the file: returns "" or what is wrong.
std::string check_layout(SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
            });
  std::uint64_t at = 0;
  for (const TensorEntry& entry : header.tensors) {
    const auto elements = num_elements(entry.shape);
    const std::uint64_t size = storage_bytes(entry.type);
    if (!elements || static_cast<std::uint64_t>(*elements) > data_bytes / size)
      return fmt::format("tensor {}: larger than the {} bytes of data in the file", entry.name,
                         data_bytes);
    if (entry.begin != at)
      return fmt::format("tensor {}: starts at byte {}, but the one before it ends at byte {}",
                         entry.name, entry.begin, at);
    const std::uint64_t bytes = static_cast<std::uint64_t>(*elements) * size;
    if (entry.end < entry.begin || entry.end - entry.begin != bytes)
      return fmt::format("tensor {}: bytes {} to {} given, but {} needed", entry.name, entry.begin,
                         entry.end, bytes);
    at = entry.end;
  }
  if (at != data_bytes)
    return fmt::format("the tensors end at byte {} of the data, the file at {}", at, data_bytes);
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head,
                                                   std::uint64_t file_bytes, std::string_view where,
                                                   ErrorCode code) {
  auto broken = [&](std::string_view what) {
    return fail(code,
                fmt::format("{}: {}; the file is damaged or no safetensors file", where, what));
  };
  std::uint64_t length = 0;
  if (head.size() < sizeof length)
    return broken(fmt::format("{} bytes, too short for a header", head.size()));
  std::memcpy(&length, head.data(), sizeof length);
  if (length > kMaxSafetensorsHeader)
    return broken(
        fmt::format("a header of {} bytes, over the limit of {}", length, kMaxSafetensorsHeader));
  if (length > head.size() - sizeof length || file_bytes < sizeof length + length)
    return broken(fmt::format("truncated: {} bytes, the header alone has {}", file_bytes,
                              sizeof length + length));
  const auto* text = reinterpret_cast<const char*>(head.data()) + sizeof length;
  if (length == 0 || *text != '{') return broken("the header does not start with {");
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(text, text + length, &events)) return broken(events.problem);
  events.header.data_begin = sizeof length + length;
  if (const std::string problem =
          check_layout(events.header, file_bytes - events.header.data_begin);
      !problem.empty())
    return broken(problem);
  return std::move(events.header);
}

}  // namespace sortie::trainer
