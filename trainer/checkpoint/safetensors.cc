#include "trainer/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

struct TypeRow {
  StorageType type;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array kTypes = {
    TypeRow{StorageType::boolean, "BOOL", 1},    TypeRow{StorageType::u8, "U8", 1},
    TypeRow{StorageType::i8, "I8", 1},           TypeRow{StorageType::f8_e5m2, "F8_E5M2", 1},
    TypeRow{StorageType::f8_e4m3, "F8_E4M3", 1}, TypeRow{StorageType::i16, "I16", 2},
    TypeRow{StorageType::u16, "U16", 2},         TypeRow{StorageType::f16, "F16", 2},
    TypeRow{StorageType::bf16, "BF16", 2},       TypeRow{StorageType::i32, "I32", 4},
    TypeRow{StorageType::u32, "U32", 4},         TypeRow{StorageType::f32, "F32", 4},
    TypeRow{StorageType::i64, "I64", 8},         TypeRow{StorageType::u64, "U64", 8},
    TypeRow{StorageType::f64, "F64", 8},
};

const TypeRow& row_of(StorageType type) {
  const auto index = static_cast<std::size_t>(type);
  SORTIE_CHECK(index < kTypes.size() && kTypes[index].type == type);
  return kTypes[index];
}

}  // namespace

std::size_t storage_bytes(StorageType type) {
  return row_of(type).bytes;
}

std::string_view storage_name(StorageType type) {
  return row_of(type).name;
}

std::optional<StorageType> storage_from_name(std::string_view name) {
  for (const TypeRow& row : kTypes)
    if (row.name == name) return row.type;
  return std::nullopt;
}

std::optional<std::int64_t> num_elements(const Dims& shape) {
  constexpr std::int64_t kMax = std::int64_t{1} << 62;
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t size) { return size < 0; }))
    return std::nullopt;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t product = 1;
  for (const std::int64_t size : shape) {
    if (product > kMax / size) return std::nullopt;
    product *= size;
  }
  return product;
}

std::string make_safetensors_header(std::vector<TensorEntry>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty()) root["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (TensorEntry& entry : tensors) {
    const auto elements = num_elements(entry.shape);
    SORTIE_CHECK(elements.has_value() && entry.name != "__metadata__" && !entry.name.empty());
    entry.begin = at;
    at += static_cast<std::uint64_t>(*elements) * storage_bytes(entry.type);
    entry.end = at;
    SORTIE_CHECK(!root.contains(entry.name), "tensor {} twice", entry.name);
    root[entry.name] = {{"dtype", storage_name(entry.type)},
                        {"shape", entry.shape},
                        {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = root.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  SORTIE_CHECK(text.size() <= kMaxSafetensorsHeader, "a header of {} bytes", text.size());
  const std::uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

}  // namespace sortie::trainer
