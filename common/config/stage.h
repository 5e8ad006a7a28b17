// runner.stage and `{stage}`: the text forms and their one meaning. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/schema.h"
#include "common/config/validate.h"

namespace sortie::config {

inline constexpr std::string_view kStagePlaceholder = "{stage}";

/// "path" or "path -> name".
struct StageItem {
  std::string path;
  std::string name;  // under which ranks find it; by default the last component of the path
};
StageItem parse_stage_item(std::string_view text);

/// The form of an item: "why; what to do", and nothing for good text.
std::string check_stage_item(std::string_view text);

/// Rules S2 (names) and S3 (where `{stage}` may stand, and what it may name).
std::vector<Violation> check_stage(const JobConfig& job);

/// Whether an item of that name is staged.
bool is_staged(const RunnerConfig& runner, std::string_view name);

/// Every `{stage}` replaced by the folder.
std::string with_stage(std::string text, std::string_view folder);
/// The same in the paths of a job that a rank reads from.
void resolve_stage(JobConfig& job, std::string_view folder);

}  // namespace sortie::config
