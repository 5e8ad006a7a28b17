// Where a run folder has what belongs to one attempt: its plan and its ranks' logs. The first
// attempt's are in the run folder itself (plan.json, logs/), those of attempt N > 1 in attempts/N.
// Of a run over several sites each site has a folder of its own, like a run's, in sites/NAME.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sortie::launcher {

std::filesystem::path attempt_folder(const std::filesystem::path& run, std::uint32_t attempt);

/// The newest attempt that has a plan; 1 where there is none.
std::uint32_t latest_attempt(const std::filesystem::path& run);

std::filesystem::path site_folder(const std::filesystem::path& run, const std::string& site);

/// The names of the sites of a run, in the order in which they came; empty where it has none.
std::vector<std::string> sites_in(const std::filesystem::path& run);

/// The folder of the run that this one of a site belongs to; nothing for one that is of no site.
std::optional<std::filesystem::path> run_of_site(const std::filesystem::path& folder);

}  // namespace sortie::launcher
