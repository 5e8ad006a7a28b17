// Where a run folder holds the files of one attempt: its plan and the logs of its ranks. The first
// attempt uses the run folder itself (plan.json, logs/), attempt N > 1 uses attempts/N. In a run
// over several sites each site has a separate folder in sites/NAME, with the layout of a run
// folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace sortie::launcher {

std::filesystem::path attempt_folder(const std::filesystem::path& run, std::uint32_t attempt);

/// Returns the newest attempt that has a plan; 1 if there is none.
std::uint32_t latest_attempt(const std::filesystem::path& run);

std::filesystem::path site_folder(const std::filesystem::path& run, const std::string& site);

/// File of the run folder with the names of all sites, one per line. No site has its folder there:
/// the name of a site has no dot.
inline constexpr const char* kSiteNamesFile = "sites/names.txt";

/// Returns the file that sites_in() reads: kSiteNamesFile, or that of a run of an older Sortie.
std::filesystem::path site_names_file(const std::filesystem::path& run);

/// Returns the names of the sites of a run, in the order in which they joined. Empty if it has
/// none.
std::vector<std::string> sites_in(const std::filesystem::path& run);

/// Returns the run folder to which the site folder `folder` belongs; nullopt if `folder` is not a
/// site folder.
std::optional<std::filesystem::path> run_of_site(const std::filesystem::path& folder);

}  // namespace sortie::launcher
