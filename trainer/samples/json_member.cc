#include "trainer/samples/json_member.h"

#include <fmt/core.h>

namespace sortie::trainer {
namespace {

using Json = nlohmann::json;

bool is_kind(const Json& value, JsonKind kind) {
  switch (kind) {
    case JsonKind::text:
      return value.is_string();
    case JsonKind::whole_number:
      return value.is_number_integer();
    case JsonKind::list:
      return value.is_array();
    case JsonKind::object:
      return value.is_object();
  }
  return false;
}

std::string_view kind_name(JsonKind kind) {
  constexpr std::string_view kNames[] = {"a string", "a whole number", "a list", "an object"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view kind_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::object:
      return "an object";
    default:
      return "a number";
  }
}

}  // namespace

Result<Json> parse_json_object(std::string_view line) {
  Json value = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return fail(ErrorCode::data, "not JSON");
  SORTIE_TRY(check_json_kind(value, "the line", JsonKind::object));
  return value;
}

Result<const Json*> json_member(const Json& object, std::string_view key, JsonKind kind) {
  const auto found = object.find(key);
  if (found == object.end()) return fail(ErrorCode::data, fmt::format("no \"{}\"", key));
  SORTIE_TRY(check_json_kind(*found, fmt::format("\"{}\"", key), kind));
  return &*found;
}

Result<> check_json_kind(const Json& value, std::string_view what, JsonKind kind) {
  if (is_kind(value, kind)) return {};
  return fail(ErrorCode::data,
              fmt::format("{} is {}, not {}", what, kind_name(value), kind_name(kind)));
}

}  // namespace sortie::trainer
