// Any bytes as a JSON line, the key before its first line break: where a full parser finds an
// object with a string at the key, the quick reader finds the same string; it never finds one in
// what is neither JSON nor has it.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/check.h"
#include "trainer/data/json_line.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t newline = all.find('\n');
  if (newline == all.npos) return 0;
  if (all.find('\0') != all.npos) return 0;  // the full parser takes it for the end
  const std::string_view key = all.substr(0, newline), line = all.substr(newline + 1);
  std::string buffer;
  const auto text = sortie::trainer::json_line_string(line, key, buffer);
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {  // valid, so that both must agree
    const auto found = json.find(std::string(key));
    const bool there = found != json.end() && found->is_string();
    SORTIE_CHECK(text.has_value() == there, "{}", text ? "found" : text.error().message);
    if (there) SORTIE_CHECK(*text == found->get_ref<const std::string&>());
  }
  return 0;
}
