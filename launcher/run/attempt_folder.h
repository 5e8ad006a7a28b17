// Where a run folder has what belongs to one attempt: its plan and its ranks' logs. The first
// attempt's are in the run folder itself (plan.json, logs/), those of attempt N > 1 in attempts/N.
#pragma once

#include <cstdint>
#include <filesystem>

namespace sortie::launcher {

std::filesystem::path attempt_folder(const std::filesystem::path& run, std::uint32_t attempt);

/// The newest attempt that has a plan; 1 where there is none.
std::uint32_t latest_attempt(const std::filesystem::path& run);

}  // namespace sortie::launcher
