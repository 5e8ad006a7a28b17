#include "launcher/run_lookup.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "launcher/console.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kNamed = 5;

std::vector<std::string> run_ids(const fs::path& runs) {
  std::vector<std::string> ids;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(runs, error))
    if (!entry.is_symlink(error) && entry.is_directory(error))
      ids.push_back(entry.path().filename().string());
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

Result<fs::path> find_run(const fs::path& state, const std::string& name) {
  const fs::path runs = state / "runs";
  const std::vector<std::string> ids = run_ids(runs);
  if (ids.empty())
    return fail(ErrorCode::not_found,
                fmt::format("{}: no run is there yet; a config with another "
                            "logger.log_dir has its runs below that (--log-dir)",
                            runs.string()));
  if (name == "last") return runs / ids.back();
  if (std::ranges::binary_search(ids, name)) return runs / name;
  std::vector<std::string> found;
  for (const std::string& id : ids)
    if (!name.empty() && id.starts_with(name)) found.push_back(id);
  if (found.size() == 1) return runs / found.front();
  if (found.empty())
    return fail(ErrorCode::not_found,
                fmt::format("{}: no run in {} begins like that; the newest is {}", printable(name),
                            runs.string(), ids.back()));
  std::string text;
  for (std::size_t i = 0; i < std::min(found.size(), kNamed); ++i)
    text += (i == 0 ? "" : ", ") + found[i];
  return fail(
      ErrorCode::usage,
      fmt::format("{}: {} runs begin like that: {}{}; more letters make it one", printable(name),
                  found.size(), text, found.size() > kNamed ? " ..." : ""));
}

}  // namespace sortie::launcher
