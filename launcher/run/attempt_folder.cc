#include "launcher/run/attempt_folder.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

/// The file of older runs, whose place a site called `names` takes.
fs::path older_names_file(const fs::path& run) {
  return run / "sites" / "names";
}

}  // namespace

fs::path attempt_folder(const fs::path& run, std::uint32_t attempt) {
  return attempt <= 1 ? run : run / "attempts" / std::to_string(attempt);
}

std::uint32_t latest_attempt(const fs::path& run) {
  std::uint32_t latest = 1;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(run / "attempts", error)) {
    const std::string name = entry.path().filename().string();
    std::uint32_t number = 0;
    const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
    std::error_code missing;
    if (bad == std::errc{} && end == name.data() + name.size() && number > latest &&
        fs::exists(entry.path() / "plan.json", missing))
      latest = number;
  }
  return latest;
}

fs::path site_folder(const fs::path& run, const std::string& site) {
  return run / "sites" / site;
}

fs::path site_names_file(const fs::path& run) {
  std::error_code ignored;
  const fs::path path = run / kSiteNamesFile;
  return fs::exists(path, ignored) ? path : older_names_file(run);
}

std::vector<std::string> sites_in(const fs::path& run) {
  std::vector<std::string> names;
  std::ifstream file(site_names_file(run));
  for (std::string name; std::getline(file, name);)
    if (!name.empty() && !file.eof()) names.push_back(name);
  return names;
}

std::optional<fs::path> run_of_site(const fs::path& folder) {
  const fs::path sites = folder.parent_path(), run = sites.parent_path();
  std::error_code ignored;
  if (sites.filename() != "sites" || !(fs::exists(run / kSiteNamesFile, ignored) ||
                                       fs::is_regular_file(older_names_file(run), ignored)))
    return std::nullopt;
  return run;
}

}  // namespace sortie::launcher
