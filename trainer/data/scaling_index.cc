#include "trainer/data/scaling_index.h"

#include <fmt/core.h>

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "trainer/data/index_format.h"
#include "trainer/storage/json_problem.h"

namespace sortie::trainer {
namespace {

std::optional<TokenType> type_by_numpy_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, TokenType>, 6> kNames = {
      {{"uint8", TokenType::u8},
       {"int8", TokenType::i8},
       {"int16", TokenType::i16},
       {"uint16", TokenType::u16},
       {"int32", TokenType::i32},
       {"int64", TokenType::i64}}};
  for (const auto& [known, type] : kNames)
    if (known == name) return type;
  return std::nullopt;
}

template <class T>
void append(std::vector<std::byte>& out, T value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

Result<std::vector<std::byte>> megatron_index_of_scaling(std::span<const std::byte> idx,
                                                         std::string_view meta,
                                                         std::string_view name) {
  std::string dtype;
  std::string index_dtype;
  std::uint64_t documents = 0;
  std::string_view at;
  try {  // the library reports errors by exceptions; none leaves this function
    const auto json = nlohmann::json::parse(meta);
    const auto read = [&](const char* key, auto& out) {
      at = {};
      const auto& value = json.at(key);
      at = key;
      value.get_to(out);
    };
    read("dtype", dtype);
    read("index_dtype", index_dtype);
    read("document_count", documents);
  } catch (const nlohmann::json::exception& error) {
    return fail(ErrorCode::data,
                fmt::format("{}.meta.json: not that of a memory map of Scaling: {}{}; copy the "
                            "file again from where {}.bin was made",
                            name, at.empty() ? "" : fmt::format("\"{}\": ", at),
                            json_problem(error, meta), name));
  }
  const auto type = type_by_numpy_name(dtype);
  if (!type || index_dtype != "int64")
    return fail(ErrorCode::data,
                fmt::format("{}.meta.json: dtype {} with index_dtype {} is not known here; tokens "
                            "are integers, and their index is int64",
                            name, dtype, index_dtype));
  constexpr std::size_t kEntry = 16;
  if (idx.size() % kEntry != 0 || idx.size() / kEntry != documents)
    return fail(ErrorCode::data,
                fmt::format("{0}.idx: {1} bytes, but {0}.meta.json has {2} documents of 16 bytes; "
                            "the files do not belong together",
                            name, idx.size(), documents));
  std::vector<std::byte> out;
  out.reserve(kIndexHeaderBytes + 20 * documents + 8);
  for (const char c : kIndexMagic) append(out, c);
  append(out, kIndexVersion);
  append(out, *type);
  append(out, documents);
  append(out, documents + 1);
  for (std::uint64_t i = 0; i < documents; ++i) {
    const auto length = load_unaligned<std::int64_t>(idx.data() + kEntry * i + 8);
    if (length < 0 || length > std::numeric_limits<std::int32_t>::max())
      return fail(ErrorCode::data,
                  fmt::format("{}.idx: document {} has length {}", name, i, length));
    append(out, static_cast<std::int32_t>(length));
  }
  for (std::uint64_t i = 0; i < documents; ++i) {
    const auto start = load_unaligned<std::uint64_t>(idx.data() + kEntry * i);
    if (start >= std::uint64_t{1} << 60)  // tokens here, bytes in the Megatron index
      return fail(ErrorCode::data, fmt::format("{}.idx: document {} starts at token {}", name, i,
                                               static_cast<std::int64_t>(start)));
    append(out, start * token_bytes(*type));
  }
  for (std::uint64_t i = 0; i <= documents; ++i) append(out, i);
  return out;
}

}  // namespace sortie::trainer
