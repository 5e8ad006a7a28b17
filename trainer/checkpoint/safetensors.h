// The safetensors format: header text and its checks. No files here; README.md has an example.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

/// Sizes from the slowest to the fastest dimension; empty for a scalar.
using Dims = std::vector<std::int64_t>;

/// Element types of the format.
enum class StorageType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64,
};

std::size_t storage_bytes(StorageType type);
/// As in a header: "F32", "BF16", "F8_E4M3" ...
std::string_view storage_name(StorageType type);
std::optional<StorageType> storage_from_name(std::string_view name);

/// Product of the sizes; nullopt if one is negative or the product exceeds 2^62.
std::optional<std::int64_t> num_elements(const Dims& shape);

struct TensorEntry {
  std::string name;
  StorageType type = StorageType::f32;
  Dims shape{};
  std::uint64_t begin = 0;  // offset in the data section, in bytes
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors{};  // by position in the file
  std::map<std::string, std::string> metadata{};
  std::uint64_t data_begin = 0;  // offset in the file, in bytes
};

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Parses the header of a file of `file_bytes` bytes. `head` is the beginning of the file: at least
/// the whole header, or the whole file. Refuses what the format forbids: a header that is too long
/// or not JSON, duplicate names, unknown types, sizes that do not match, gaps, overlaps, bytes
/// after the last tensor. Safe on any bytes. `where` begins the error message.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head,
                                                   std::uint64_t file_bytes, std::string_view where,
                                                   ErrorCode code = ErrorCode::checkpoint);

/// Sets begin and end of each entry, in the given order. Returns the bytes before the data: length,
/// JSON and padding to a multiple of 8.
std::string make_safetensors_header(std::vector<TensorEntry>& tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace sortie::trainer
