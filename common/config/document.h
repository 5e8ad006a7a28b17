// Parses TOML text into a tree of values with their line and column. Only document.cc includes
// toml++, so that its templates are compiled once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::config {

/// Line and column as in editors, from 1.
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
  std::vector<Value> items;  // if this is a list or a table
  std::string key;           // if this is an item of a table
  Position key_at;
};

struct SyntaxError {
  Position at;
  std::string message;  // "why; what to do"
};

struct Document {
  Value root;                       // a table, without lines that have errors; may be empty then
  std::vector<SyntaxError> errors;  // in order of position
};

inline constexpr int kMaxNesting = 8;         // lists and inline tables inside each other
inline constexpr int kMaxDotsPerLine = 2048;  // bounds the parser's recursion depth
inline constexpr int kMaxDepth = 64;          // nested tables, those of dotted keys included
inline constexpr std::size_t kMaxSyntaxErrors = 20;

/// Continues after a line with an error where possible, so that one call reports many errors.
Document parse_document(std::string_view text);

/// Parses one TOML value, e.g. the right side of --set. Returns false if `text` is not exactly one
/// value.
bool parse_value(std::string_view text, Value& value);

/// Text for a value in a message: `the string "x"`, `12`, `a list`.
std::string describe(const Value& value);
/// The same without its content: `a string`, `a number`.
std::string describe_kind(const Value& value);

}  // namespace sortie::config
