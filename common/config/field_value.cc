// The value of a field: its kind, its check, its text, and the resolution of paths.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "common/base/check.h"
#include "common/config/container_forms.h"
#include "common/config/fields.h"
#include "common/config/forms.h"
#include "common/config/secret.h"
#include "common/config/stage.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

template <class... F>
struct Overload : F... {
  using F::operator()...;
};
template <class... F>
Overload(F...) -> Overload<F...>;  // clang 16 does not deduce it for an aggregate

/// Reads only. The const_cast is safe, because a slot function does not modify the job.
Slot slot_of(const Field& field, const JobConfig& job) {
  return field.slot(const_cast<JobConfig&>(job));
}

Milliseconds duration(std::string_view text) {
  const auto value = parse_duration(text);
  SORTIE_CHECK(value.has_value(), "bad duration {} in the field table", text);
  return *value;
}

std::string join(const std::vector<std::string_view>& words, std::string_view between) {
  std::string text;
  for (const std::string_view word : words) {
    if (!text.empty()) text += between;
    text += word;
  }
  return text;
}

std::string check_choice(const Choices& choices, std::string_view text) {
  if (std::ranges::find(choices.words, text) != choices.words.end()) return {};
  const std::string_view near = nearest(text, choices.words);
  return fmt::format(
      "{} is not one of {}; {}", quote(shorten(text)), join(choices.words, " | "),
      near.empty() ? "write one of them" : fmt::format("did you mean \"{}\"?", near));
}

std::string out_of_range(const Field& field, const std::string& value) {
  return fmt::format("{} is out of range; use {}", value, allowed_text(field));
}

bool in_range(const NumberRange& range, auto value) {
  const auto min = static_cast<decltype(value)>(range.min);
  const auto max = static_cast<decltype(value)>(range.max);
  return (range.without_min ? value > min : value >= min) &&
         (range.without_max ? value < max : value <= max);
}

/// A value that the trainer reads as f32 must be in the range there, too, and not be lost.
std::string check_number(const Field& field, const NumberRange& range, double value) {
  if (!in_range(range, value)) return out_of_range(field, number_text(value));
  if (range.wide) return {};
  constexpr float kLeast = std::numeric_limits<float>::min();
  if (value != 0 && std::abs(value) < double{kLeast})
    return fmt::format("{} is lost in f32, which the trainer computes in; use at least {}{}",
                       number_text(value), kLeast, in_range(range, 0.0) ? ", or 0" : "");
  if (!in_range(range, static_cast<float>(value)))
    return fmt::format("{} is {} in f32, which the trainer computes in; use {}", number_text(value),
                       static_cast<float>(value), allowed_text(field));
  return {};
}

std::string check_text(const Field& field, std::string_view text) {
  if (const auto* choices = std::get_if<Choices>(&field.rule)) return check_choice(*choices, text);
  if (std::string error = check_any(text); !error.empty()) return error;
  if (const auto* form = std::get_if<Form>(&field.rule)) return form->check(text);
  return {};
}

std::string list_text(const std::vector<std::string>& items) {
  std::string text = "[";
  for (const std::string& item : items) text += (text.size() > 1 ? ", " : "") + quote(item);
  return text + "]";
}

bool hidden(const Field& field, std::string_view name) {
  return (field.flags & kSecrets) || ((field.flags & kMayHoldSecrets) && looks_secret(name));
}

std::filesystem::path absolute(const std::string_view path, std::string_view base,
                               std::string_view home) {
  namespace fs = std::filesystem;
  const fs::path joined = path == "~"              ? fs::path(home)
                          : path.starts_with("~/") ? fs::path(home) / path.substr(2)
                                                   : fs::path(base) / path;
  return joined.lexically_normal();
}

}  // namespace

Kind kind_of(const Field& field) {
  JobConfig job;
  return static_cast<Kind>(field.slot(job).index());
}

std::string_view section_of(const Field& field) {
  return field.key.substr(0, field.key.rfind('.'));
}

std::string_view name_of(const Field& field) {
  return field.key.substr(field.key.rfind('.') + 1);
}

std::string check_value(const Field& field, const JobConfig& job) {
  const Overload check{
      [&](const bool*) { return std::string(); },
      [&](const std::int64_t* value) {
        const auto* range = std::get_if<IntegerRange>(&field.rule);
        SORTIE_CHECK(range != nullptr, "{} has no range", field.key);
        return *value >= range->min && *value <= range->max
                   ? std::string()
                   : out_of_range(field, fmt::format("{}", *value));
      },
      [&](const double* value) {
        const auto* range = std::get_if<NumberRange>(&field.rule);
        SORTIE_CHECK(range != nullptr, "{} has no range", field.key);
        return check_number(field, *range, *value);
      },
      [&](const std::string* value) { return check_text(field, *value); },
      [&](const std::vector<std::string>* value) {
        for (const std::string& item : *value)
          if (std::string error = check_text(field, item); !error.empty()) return error;
        return std::string();
      },
      [&](const std::map<std::string, std::string>* value) {
        for (const auto& [name, text] : *value) {
          if (std::string error = check_text(field, name); !error.empty()) return error;
          if (check_any(text).empty()) continue;
          return fmt::format("the value of {} has a NUL character; remove it", name);
        }
        return std::string();
      },
      [&](const Milliseconds* value) {
        const auto* range = std::get_if<DurationRange>(&field.rule);
        SORTIE_CHECK(range != nullptr, "{} has no range", field.key);
        return *value >= duration(range->min) && *value <= duration(range->max)
                   ? std::string()
                   : out_of_range(field, quote(duration_text(*value)));
      },
      [&](const std::vector<std::vector<std::string>>* value) {
        const auto* form = std::get_if<Form>(&field.rule);
        SORTIE_CHECK(form != nullptr, "{} has no form", field.key);
        for (const std::vector<std::string>& items : *value) {
          for (const std::string& item : items)
            if (std::string error = check_any(item); !error.empty()) return error;
          if (std::string error = form->check(join_items(items)); !error.empty()) return error;
        }
        return std::string();
      },
  };
  return std::visit(check, slot_of(field, job));
}

std::string allowed_text(const Field& field) {
  return std::visit(
      Overload{
          [](std::monostate) { return std::string("true | false"); },
          [](const IntegerRange& range) { return fmt::format("{} to {}", range.min, range.max); },
          [](const NumberRange& range) {
            if (!range.without_min && !range.without_max)
              return fmt::format("{} to {}", range.min, range.max);
            return fmt::format("a number {} {} and {} {}",
                               range.without_min ? ">" : ">=", range.min,
                               range.without_max ? "<" : "<=", range.max);
          },
          [](const DurationRange& range) { return fmt::format("{} to {}", range.min, range.max); },
          [](const Choices& choices) { return join(choices.words, " | "); },
          [](const Form& form) { return std::string(form.description); },
      },
      field.rule);
}

std::string value_text(const Field& field, const JobConfig& job) {
  return std::visit(Overload{
                        [](const bool* value) { return std::string(*value ? "true" : "false"); },
                        [](const std::int64_t* value) { return fmt::format("{}", *value); },
                        [](const double* value) { return number_text(*value); },
                        [](const std::string* value) { return quote(*value); },
                        [](const std::vector<std::string>* value) { return list_text(*value); },
                        [](const std::vector<std::vector<std::string>>* value) {
                          std::string text = "[";
                          for (const std::vector<std::string>& items : *value)
                            text += (text.size() > 1 ? ", " : "") + list_text(items);
                          return text + "]";
                        },
                        [&](const std::map<std::string, std::string>* value) {
                          std::string text = "{";
                          for (const auto& [name, item] : *value)
                            text += fmt::format("{}{} = {}", text.size() > 1 ? ", " : " ",
                                                check_env_name(name).empty() ? name : quote(name),
                                                quote(hidden(field, name) ? kSecretShown : item));
                          return text + (value->empty() ? "}" : " }");
                        },
                        [](const Milliseconds* value) { return quote(duration_text(*value)); },
                    },
                    slot_of(field, job));
}

std::string default_text(const Field& field) {
  return value_text(field, JobConfig{});
}

void resolve_paths(JobConfig& job, std::string_view base, std::string_view home) {
  for (const Field& field : fields()) {
    if (!(field.flags & kPath)) continue;
    const auto resolve = [&](std::string& path) {
      const std::string_view tokenizer =
          field.key == "data.tokenizer" ? tokenizer_file(path) : std::string_view();
      if (path.starts_with(kStagePlaceholder) || tokenizer.starts_with(kStagePlaceholder))
        return;  // differs from host to host
      if (field.key == "runner.stage") {
        const StageItem item = parse_stage_item(path);
        path = fmt::format("{} -> {}", absolute(item.path, base, home).string(), item.name);
      } else if (field.key != "data.tokenizer")
        path = path.empty() ? path : absolute(path, base, home).string();
      else if (!tokenizer.empty())
        path.replace(path.size() - tokenizer.size(), tokenizer.size(),
                     absolute(std::string(tokenizer), base, home).string());
    };
    const Slot slot = field.slot(job);
    if (auto* const* list = std::get_if<std::vector<std::string>*>(&slot))
      std::ranges::for_each(**list, resolve);
    else if (auto* const* table = std::get_if<std::map<std::string, std::string>*>(&slot))
      for (auto& [name, path] : **table) resolve(path);
    else
      resolve(*std::get<std::string*>(slot));
  }
}

}  // namespace sortie::config
