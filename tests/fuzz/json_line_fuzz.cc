// Fuzzes json_line_string(). The key is the input up to the first newline, the line is the rest. If
// a full parser finds an object, both parsers find the same string at the key, or neither finds
// one.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/check.h"
#include "trainer/data/json_line.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t newline = all.find('\n');
  if (newline == all.npos) return 0;
  if (all.find('\0') != all.npos) return 0;  // the full parser takes it for the end of input
  const std::string_view key = all.substr(0, newline), line = all.substr(newline + 1);
  std::string buffer;
  const auto text = sortie::trainer::json_line_string(line, key, buffer);
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {  // both must agree on valid objects only
    const auto found = json.find(std::string(key));
    const bool there = found != json.end() && found->is_string();
    SORTIE_CHECK(text.has_value() == there, "{}", text ? "found" : text.error().message);
    if (there) SORTIE_CHECK(*text == found->get_ref<const std::string&>());
  }
  return 0;
}
