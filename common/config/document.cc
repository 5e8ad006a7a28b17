#include "common/config/document.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 8
#include <toml++/toml.h>

#include "common/config/text.h"

namespace sortie::config {
namespace {

static_assert(kMaxNesting == TOML_MAX_NESTED_VALUES);

Position position(const toml::source_position& at) {
  return {static_cast<int>(at.line), static_cast<int>(at.column)};
}

Value convert(const toml::node& node) {
  Value value;
  value.at = position(node.source().begin);
  switch (node.type()) {
    case toml::node_type::boolean:
      value.type = Value::Type::boolean;
      value.boolean = node.as_boolean()->get();
      break;
    case toml::node_type::integer:
      value.type = Value::Type::integer;
      value.integer = node.as_integer()->get();
      break;
    case toml::node_type::floating_point:
      value.type = Value::Type::number;
      value.number = node.as_floating_point()->get();
      break;
    case toml::node_type::string:
      value.type = Value::Type::text;
      value.text = node.as_string()->get();
      break;
    case toml::node_type::array:
      value.type = Value::Type::list;
      for (const toml::node& item : *node.as_array()) value.items.push_back(convert(item));
      break;
    case toml::node_type::table:
      value.type = Value::Type::table;
      for (const auto& [key, item] : *node.as_table()) {
        Value& entry = value.items.emplace_back(convert(item));
        entry.key = key.str();
        entry.key_at = position(key.source().begin);
      }
      break;
    default:
      value.type = Value::Type::date;
  }
  return value;
}

/// The parser's "Error while parsing X: why" as "why (in X)", with what to do where that is plain.
std::string explain(std::string_view description) {
  constexpr std::string_view kPrefix = "Error while parsing ";
  std::string_view where;
  std::string_view why = description;
  if (description.starts_with(kPrefix)) {
    const std::size_t colon = description.find(": ");
    if (colon != description.npos) {
      where = description.substr(kPrefix.size(), colon - kPrefix.size());
      why = description.substr(colon + 2);
    }
  }
  if (why.starts_with("cannot redefine existing"))
    return fmt::format("duplicate: {}; remove one of the two", why);
  if (why.starts_with("exceeded maximum nested value depth"))
    return fmt::format("syntax: more than {} lists or tables inside each other; flatten them",
                       kMaxNesting);
  if (why == "could not determine value type")
    return "syntax: this is no TOML value; put strings in quotes";
  return where.empty() ? fmt::format("syntax: {}", why)
                       : fmt::format("syntax: {} (in {})", why, where);
}

std::optional<SyntaxError> too_many_dots(std::string_view text) {
  int line = 1;
  int dots = 0;
  for (const char c : text) {
    if (c == '\n') {
      ++line;
      dots = 0;
    } else if (c == '.' && ++dots > kMaxDotsPerLine) {
      return SyntaxError{
          {line, 1},
          fmt::format("syntax: more than {} dots in one line; split the line", kMaxDotsPerLine)};
    }
  }
  return std::nullopt;
}

/// Turns line `line` (from 1) into spaces; gives the next line that has any content, 0 when there
/// is none or when the line was a header: the lines below it would seem to be of another section.
int blank_line(std::string& text, int line) {
  std::size_t begin = 0;
  for (int i = 1; i < line && begin != text.npos; ++i) {
    begin = text.find('\n', begin);
    if (begin != text.npos) ++begin;
  }
  if (begin == text.npos || begin >= text.size()) return 0;
  const std::size_t end = std::min(text.find('\n', begin), text.size());
  const std::size_t first = text.find_first_not_of(" \t", begin);
  if (first < end && text[first] == '[') return 0;
  std::fill(text.begin() + static_cast<std::ptrdiff_t>(begin),
            text.begin() + static_cast<std::ptrdiff_t>(end), ' ');
  const std::size_t next = text.find_first_not_of(" \t\r\n", end);
  if (next == text.npos) return line;
  return line +
         static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(end),
                                     text.begin() + static_cast<std::ptrdiff_t>(next), '\n'));
}

}  // namespace

Document parse_document(std::string_view text) {
  Document document;
  if (auto error = too_many_dots(text)) {
    document.errors.push_back(std::move(*error));
    return document;
  }
  std::string rest(text);
  int suspect_line = 0;
  for (;;) {
    toml::parse_result result = toml::parse(std::string_view(rest));
    if (result) {
      document.root = convert(std::move(result).table());
      break;
    }
    const Position at = position(result.error().source().begin);
    const std::string_view description = result.error().description();
    // An error in the line after one inside a list is most likely its consequence: the list was not
    // closed. And lines before the last error would have been reported already.
    if (at.line <= suspect_line) break;
    document.errors.push_back({at, explain(description)});
    if (document.errors.size() == kMaxSyntaxErrors) break;
    const int next_line = blank_line(rest, at.line);
    if (next_line == 0) break;
    const bool inside = description.contains("array") || description.contains("table") ||
                        description.contains("-line");
    suspect_line = inside ? next_line : at.line;
  }
  return document;
}

bool parse_value(std::string_view text, Value& value) {
  if (too_many_dots(text)) return false;
  const toml::parse_result result = toml::parse(fmt::format("v = {}", text));
  if (!result || result.table().size() != 1) return false;
  const toml::node* node = result.table().get("v");
  if (node == nullptr) return false;
  value = convert(*node);
  return true;
}

std::string describe(const Value& value) {
  switch (value.type) {
    case Value::Type::boolean:
      return value.boolean ? "true" : "false";
    case Value::Type::integer:
      return fmt::format("{}", value.integer);
    case Value::Type::number:
      return number_text(value.number);
    case Value::Type::text:
      return quote(shorten(value.text));
    case Value::Type::list:
      return "a list";
    case Value::Type::table:
      return "a table";
    case Value::Type::date:
      return "a date or time";
  }
  return "a value";
}

}  // namespace sortie::config
