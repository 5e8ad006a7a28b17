#include "trainer/hf/weight_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sortie::trainer {

Result<std::set<std::string>> parse_weight_index(std::string_view text, std::string_view where) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&](std::string_view what) {
    return fail(ErrorCode::data, fmt::format("{}: {}", where, what));
  };
  if (json.is_discarded()) return bad("not JSON; the file is damaged");
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return bad("no weight_map in it");
  std::set<std::string> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string()) return bad(fmt::format("the file of {} is no text", name));
    const std::string one = file;
    if (one.empty() || one == "." || one == ".." || one.find('/') != one.npos ||
        one.find('\0') != one.npos)
      return bad(fmt::format("{} is in {}, which is no file of the folder", name, one));
    files.insert(one);
  }
  if (files.empty()) return bad("it names no file");
  return files;
}

}  // namespace sortie::trainer
