// Lines of optimizer.training_groups: "head include=head.*,embedding.* weight_decay=0
// learning_rate=1e-4"; and patterns of parameter names with * ? [...] as in a shell.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

struct TrainingGroup {
  std::string name;
  std::vector<std::string> include, exclude;  // patterns
  std::optional<double> weight_decay;         // unset = optimizer.weight_decay
  LearningRateSchedulerConfig schedule;       // the job's, except for keys that the line sets
};

/// Parses a line; `schedule` is the job's. Fails with ErrorCode::config and "why; what to do".
Result<TrainingGroup> parse_training_group(std::string_view line,
                                           const LearningRateSchedulerConfig& schedule);

bool name_matches(const std::string& pattern, const std::string& name);
bool any_matches(const std::vector<std::string>& patterns, const std::string& name);

// Checks as in forms.h.
std::string check_training_group(std::string_view line);
std::string check_parameter_pattern(std::string_view pattern);

}  // namespace sortie::config
