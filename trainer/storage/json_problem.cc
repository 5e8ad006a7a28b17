#include "trainer/storage/json_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace sortie::trainer {
namespace {

// Ids of the library's exceptions, which it documents.
constexpr int kWrongType = 302, kOtherType = 303, kNoContainer = 304, kNoObject = 306,
              kNoElement = 401, kNoKey = 403, kOwnWords = 501;

/// "[json.exception.type_error.302] type must be ..." without the part in brackets.
std::string_view without_number(std::string_view what) {
  const std::size_t end = what.find("] ");
  return end == what.npos ? what : what.substr(end + 2);
}

std::string kind_of_value(std::string_view type) {
  if (type == "array") return "a list";
  if (type == "null") return "null";
  return fmt::format("{} {}", type == "object" ? "an" : "a", type);
}

std::string place_of_byte(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte > 0 ? byte - 1 : 0);
  const auto line = std::ranges::count(before, '\n') + 1;
  const std::size_t begin = before.rfind('\n');
  const std::size_t column = before.size() - (begin == before.npos ? 0 : begin + 1) + 1;
  return fmt::format("line {}, column {}", line, column);
}

}  // namespace

std::string json_problem(const std::exception& error, std::string_view text) {
  const std::string_view what = without_number(error.what());
  if (const auto* syntax = dynamic_cast<const nlohmann::json::parse_error*>(&error)) {
    if (text.empty()) return "the file is empty";
    if (syntax->byte > text.size()) return "not valid JSON: the text ends too early";
    return fmt::format("{}: not valid JSON", place_of_byte(text, syntax->byte));
  }
  const auto* known = dynamic_cast<const nlohmann::json::exception*>(&error);
  const int id = known == nullptr ? 0 : known->id;
  if (id == kOwnWords) return std::string(what);
  if (id == kNoElement) return "a list is too short";
  if (id == kNoKey) {  // key 'vocab' not found
    const std::size_t begin = what.find('\''), end = what.rfind('\'');
    if (begin != end) return fmt::format("no \"{}\"", what.substr(begin + 1, end - begin - 1));
  }
  if (id == kNoContainer || id == kNoObject)  // cannot use at() with string
    return fmt::format("{}, where an object{} is expected",
                       kind_of_value(what.substr(what.rfind(' ') + 1)),
                       id == kNoObject ? "" : " or a list");
  if (id == kOtherType)  // incompatible ReferenceType for get_ref, actual type is number
    return fmt::format("{}, where another kind of value is expected",
                       kind_of_value(what.substr(what.rfind(' ') + 1)));
  constexpr std::string_view kMust = "type must be ", kIs = ", but is ";
  const std::size_t middle = what.find(kIs);
  if (id == kWrongType && what.starts_with(kMust) && middle != what.npos)
    return fmt::format("{}, where {} is expected", kind_of_value(what.substr(middle + kIs.size())),
                       kind_of_value(what.substr(kMust.size(), middle - kMust.size())));
  return fmt::format("a value of another kind than expected ({})", what);
}

}  // namespace sortie::trainer
