// Text forms and rules of runner.stage and `{stage}`, and the expansion of the latter. Pure
// functions.
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
  std::string name;  // name for the ranks; by default the last component of the path
};
StageItem parse_stage_item(std::string_view text);

/// Checks the form of an item: returns "why; what to do", or "" for valid text.
std::string check_stage_item(std::string_view text);

/// Rules S2 (names) and S3 (where `{stage}` is allowed, and which names may follow it).
std::vector<Violation> check_stage(const JobConfig& job);

/// Whether an item with that name is staged.
bool is_staged(const RunnerConfig& runner, std::string_view name);

/// Replaces every `{stage}` by the folder.
std::string with_stage(std::string text, std::string_view folder);
/// Does this in all paths of a job that a rank reads from.
void resolve_stage(JobConfig& job, std::string_view folder);

}  // namespace sortie::config
