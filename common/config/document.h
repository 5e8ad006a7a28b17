// TOML text to a tree of values that know their line and column. The only user of toml++ is
// document.cc, so that its templates are compiled once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::config {

/// Line and column as editors count them, from 1.
struct Position {
  int line = 0;
  int column = 0;
  auto operator<=>(const Position&) const = default;
};

struct Value {
  enum class Type { boolean, integer, number, text, list, table, date };
  Type type = Type::table;
  Position at;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<Value> items;  // of a list or a table
  std::string key;           // of an item of a table
  Position key_at;
};

struct SyntaxError {
  Position at;
  std::string message;  // "why; what to do"
};

struct Document {
  Value root;                       // a table; without the lines that have errors
  std::vector<SyntaxError> errors;  // in order of position
};

inline constexpr int kMaxNesting = 8;         // lists and inline tables inside each other
inline constexpr int kMaxDotsPerLine = 2048;  // bounds the depth that the parser goes to
inline constexpr int kMaxDepth = 64;          // of tables, those of dotted keys included
inline constexpr std::size_t kMaxSyntaxErrors = 20;

/// Goes on after a line with an error, so that one call shows the errors of all lines.
Document parse_document(std::string_view text);

/// Parses one TOML value, e.g. the right side of --set. Nothing when `text` is no single value.
bool parse_value(std::string_view text, Value& value);

/// How a message calls a value: `the string "x"`, `12`, `a list`.
std::string describe(const Value& value);
/// The same without its content: `a string`, `a number`.
std::string describe_kind(const Value& value);

}  // namespace sortie::config
