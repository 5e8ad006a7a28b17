#include "common/config/assign.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "common/base/split.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

using Type = Value::Type;
using Errors = std::vector<AssignError>;

Errors wrong_type(const Field& field, const Value& value, std::string_view must,
                  const std::string& advice = {}) {
  const std::string is = field.flags & kMayHoldSecrets ? describe_kind(value) : describe(value);
  std::string text = fmt::format("must be {}, not {}", must, is);
  if (!advice.empty())
    text += "; " + advice;
  else
    text += fmt::format("; write {} = {}", name_of(field), default_text(field));
  return {{value.at, std::move(text)}};
}

Errors assign_to(const Field& field, const Value& value, bool& target) {
  if (value.type != Type::boolean)
    return wrong_type(field, value, "true or false",
                      value.type == Type::text && (value.text == "true" || value.text == "false")
                          ? "write it without quotes"
                          : "write true or false");
  target = value.boolean;
  return {};
}

Errors assign_to(const Field& field, const Value& value, std::int64_t& target) {
  if (value.type != Type::integer)
    return wrong_type(field, value, "a whole number", fmt::format("use {}", allowed_text(field)));
  target = value.integer;
  return {};
}

Errors assign_to(const Field& field, const Value& value, double& target) {
  if (value.type != Type::integer && value.type != Type::number)
    return wrong_type(field, value, "a number", fmt::format("use {}", allowed_text(field)));
  target = value.type == Type::integer ? static_cast<double>(value.integer) : value.number;
  return {};
}

Errors assign_to(const Field& field, const Value& value, std::string& target) {
  if (value.type != Type::text) return wrong_type(field, value, "a string");
  target = value.text;
  return {};
}

Errors assign_to(const Field& field, const Value& value, Milliseconds& target) {
  if (value.type == Type::integer || value.type == Type::number)
    return {{value.at, fmt::format("{} has no unit; write \"{}s\", or with ms, m or h",
                                   describe(value), describe(value))}};
  if (value.type != Type::text)
    return wrong_type(field, value, "a duration", "write one like \"30s\"");
  const auto duration = parse_duration(value.text);
  if (!duration) return {{value.at, duration.error().message}};
  target = *duration;
  return {};
}

/// The list that was probably meant by a text like "[a,b]": a shell removes the double quotes of
/// --set KEY=["a","b"]. Empty if the text is no such list.
std::string list_without_quotes(std::string_view text) {
  if (!text.starts_with('[') || !text.ends_with(']') || text.starts_with("[[")) return {};
  std::vector<std::string> items;
  for (std::string_view item : split_filled(text.substr(1, text.size() - 2), ',')) {
    while (item.starts_with(' ') || item.starts_with('"')) item.remove_prefix(1);
    while (item.ends_with(' ') || item.ends_with('"')) item.remove_suffix(1);
    if (!item.empty()) items.push_back(quote(item));
  }
  return fmt::format("[{}]", fmt::join(items, ","));
}

Errors assign_to(const Field& field, const Value& value, std::vector<std::string>& target) {
  if (const std::string meant = list_without_quotes(value.text);
      value.type == Type::text && !meant.empty())
    return wrong_type(field, value, "a list of strings",
                      fmt::format("write {}, on a command line in single quotes: --set '{}={}'",
                                  shorten(meant), field.key, shorten(meant)));
  if (value.type == Type::text)
    return wrong_type(
        field, value, "a list of strings",
        fmt::format("write [{}]", quote(value.text.empty() ? "..." : shorten(value.text))));
  if (value.type != Type::list)
    return wrong_type(field, value, "a list of strings", "write [\"...\", \"...\"]");
  target.clear();
  for (const Value& item : value.items) {
    if (item.type != Type::text)
      return {{item.at,
               fmt::format("must hold strings only, not {}; put it in quotes", describe(item))}};
    target.push_back(item.text);
  }
  return {};
}

Errors assign_to(const Field& field, const Value& value,
                 std::map<std::string, std::string>& target) {
  if (value.type != Type::table)
    return wrong_type(field, value, "a table of strings",
                      fmt::format("write {} = {{ NAME = \"value\" }}", name_of(field)));
  target.clear();
  for (const Value& item : value.items) {
    if (item.type != Type::text)
      return {{item.at, fmt::format("{} must be a string, not {}; put it in quotes",
                                    shorten(item.key), describe_kind(item))}};
    target[item.key] = item.text;
  }
  return {};
}

/// "[[\"a\", \"b\"], [\"c\", \"d\"]]": the probable meaning of a flat list of strings.
std::string corrected(const Value& value) {
  std::vector<std::vector<std::string>> rows;
  for (const Value& item : value.items) {
    const bool options =
        !rows.empty() && rows.back().size() == 2 && item.text.find('/') == item.text.npos;
    if (rows.empty() || (rows.back().size() >= 2 && !options)) rows.emplace_back();
    rows.back().push_back(quote(item.text));
  }
  return fmt::format("[[{}]]", fmt::join(rows | std::views::transform([](const auto& row) {
                                           return fmt::format("{}", fmt::join(row, ", "));
                                         }),
                                         "], ["));
}

bool is_text(const Value& value) {
  return value.type == Type::text;
}

Errors assign_to(const Field& field, const Value& value,
                 std::vector<std::vector<std::string>>& target) {
  const auto write = [&](const Value& flat) {
    return fmt::format("write {} = {}", name_of(field), corrected(flat));
  };
  if (value.type != Type::list)
    return wrong_type(field, value, "a list of lists of strings",
                      "write [[\"...\", \"...\"], [\"...\", \"...\"]]");
  if (!value.items.empty() && std::ranges::all_of(value.items, is_text))
    return {{value.at, fmt::format("each item is a list of its own; {}", write(value))}};
  target.clear();
  for (const Value& item : value.items) {
    if (item.type != Type::list || !std::ranges::all_of(item.items, is_text))
      return {{item.at, fmt::format("must hold lists of strings only, not {}; write each like "
                                    "[\"...\", \"...\"]",
                                    describe(item))}};
    if (item.items.size() > 3)
      return {{item.at, fmt::format("{} strings are more than one item; {}", item.items.size(),
                                    write(item))}};
    std::vector<std::string>& row = target.emplace_back();
    for (const Value& text : item.items) row.push_back(text.text);
  }
  return {};
}

/// The errors of each item, at its own position.
Errors check_items(const Field& field, const Value& value, const JobConfig& job) {
  Errors errors;
  JobConfig scratch;
  for (const Value& item : value.items) {
    Slot slot = field.slot(scratch);
    if (auto* const* list = std::get_if<std::vector<std::string>*>(&slot)) **list = {item.text};
    if (auto* const* table = std::get_if<std::map<std::string, std::string>*>(&slot))
      **table = {{item.key, item.text}};
    if (auto* const* lists = std::get_if<std::vector<std::vector<std::string>>*>(&slot)) {
      (*lists)->assign(1, {});
      for (const Value& text : item.items) (*lists)->front().push_back(text.text);
    }
    if (std::string error = check_value(field, scratch); !error.empty())
      errors.push_back({value.type == Type::table ? item.key_at : item.at, std::move(error)});
  }
  if (value.items.empty() || errors.empty())
    if (std::string error = check_value(field, job); !error.empty())
      errors.push_back({value.at, std::move(error)});
  return errors;
}

}  // namespace

std::vector<AssignError> assign(const Field& field, const Value& value, JobConfig& job) {
  JobConfig candidate;
  Errors errors = std::visit([&](auto* target) { return assign_to(field, value, *target); },
                             field.slot(candidate));
  if (errors.empty()) errors = check_items(field, value, candidate);
  if (!errors.empty()) return errors;
  // Both slots hold the same alternative, because they belong to the same field.
  std::visit([&]<class T>(T* target) { *target = std::move(*std::get<T*>(field.slot(candidate))); },
             field.slot(job));
  return {};
}

Result<Value> override_value(Kind kind, std::string_view text) {
  const bool quoted = text.starts_with('"') || text.starts_with('\'');
  Value value;
  const bool wants_text = kind == Kind::text;
  if ((!wants_text || quoted) && parse_value(text, value)) return value;
  if (quoted)
    return fail(
        ErrorCode::config,
        fmt::format("the value begins with {} and is no string in quotes; remove the quote, "
                    "or write one at both ends",
                    text.front()));
  return text_value(text);
}

Value text_value(std::string_view text) {
  Value value;
  value.type = Value::Type::text;
  value.text = text;
  return value;
}

}  // namespace sortie::config
