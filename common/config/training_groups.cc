#include "common/config/training_groups.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>

#include "common/base/split.h"
#include "common/config/assign.h"
#include "common/config/fields.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

/// Sets one key of the field table. Returns "why; what to do" if that fails, else "".
std::string set_key(const std::string& key, const std::string& value, JobConfig& job) {
  const Field* field = find_field(key);
  if (field == nullptr)
    return fmt::format(
        "{} is no key of a group; use include, exclude, weight_decay or a key of "
        "[learning_rate_scheduler]",
        quote(shorten(key.substr(key.find('.') + 1))));
  const Result<Value> parsed = override_value(kind_of(*field), value);
  if (!parsed) return fmt::format("{}: {}", name_of(*field), parsed.error().message);
  const auto errors = assign(*field, *parsed, job);
  return errors.empty() ? "" : fmt::format("{}: {}", name_of(*field), errors.front().message);
}

}  // namespace

Result<TrainingGroup> parse_training_group(std::string_view line,
                                           const LearningRateSchedulerConfig& schedule) {
  const std::vector<std::string> words = split_filled(line, ' ');
  if (words.empty() || words[0].contains('='))
    return fail(ErrorCode::config, "a group starts with its name; write \"NAME include=PATTERN\"");
  TrainingGroup group;
  group.name = words[0];
  JobConfig job;
  job.learning_rate_scheduler = schedule;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (equals == std::string::npos)
      return fail(ErrorCode::config,
                  fmt::format("{} has no '='; write KEY=VALUE", quote(shorten(words[i]))));
    const std::string key = words[i].substr(0, equals), value = words[i].substr(equals + 1);
    std::string error;
    if (key == "include" || key == "exclude") {
      for (std::string& pattern : split_filled(value, ',')) {
        if (error.empty()) error = check_parameter_pattern(pattern);
        (key == "include" ? group.include : group.exclude).push_back(std::move(pattern));
      }
    } else if (key == "weight_decay") {
      error = set_key("optimizer.weight_decay", value, job);
      group.weight_decay = job.optimizer.weight_decay;
    } else {
      error = set_key("learning_rate_scheduler." + key, value, job);
    }
    if (!error.empty()) return fail(ErrorCode::config, std::move(error));
  }
  if (group.include.empty())
    return fail(ErrorCode::config,
                fmt::format("group {} includes nothing; write include=PATTERN", group.name));
  group.schedule = job.learning_rate_scheduler;
  return group;
}

bool name_matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool any_matches(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& p) { return name_matches(p, name); });
}

std::string check_training_group(std::string_view line) {
  const auto group = parse_training_group(line, {});
  return group ? "" : group.error().message;
}

std::string check_parameter_pattern(std::string_view pattern) {
  if (pattern.empty()) return "an empty pattern matches nothing; write one like \"layers.0.*\"";
  constexpr std::string_view kMarks = "._-*?[]!^";
  for (const char c : pattern)
    if (!std::isalnum(static_cast<unsigned char>(c)) && !kMarks.contains(c))
      return fmt::format(
          "{} is no pattern of a parameter's name; use letters, digits, . _ - and "
          "* ? [...]",
          quote(shorten(pattern)));
  return {};
}

}  // namespace sortie::config
