#include "launcher/control/run_index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <tuple>

#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kListed = 5;

/// Folder of symbolic links to each logger.log_dir used by runs.
fs::path links_folder(const fs::path& state) {
  return state / "log-dirs";
}

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  return !fs::is_symlink(folder, ignored) && fs::is_directory(folder, ignored) &&
         folder.filename().string().size() >= 15 && fs::exists(folder / "plan.json", ignored);
}

}  // namespace

Result<RunIndex> RunIndex::open(const std::string& log_dir) {
  RunIndex index;
  SORTIE_ASSIGN_OR_RETURN(const fs::path state, state_folder(log_dir));
  std::error_code ignored;
  index.states_.push_back(fs::absolute(state, ignored));
  if (!log_dir.empty()) return index;
  for (const auto& entry : fs::directory_iterator(links_folder(state), ignored)) {
    const fs::path target = fs::read_symlink(entry.path(), ignored);
    if (!target.empty() && std::ranges::find(index.states_, target) == index.states_.end())
      index.states_.push_back(target);
  }
  return index;
}

void RunIndex::remember(const fs::path& log_dir) {
  const auto state = state_folder("");
  std::error_code ignored;
  const fs::path target = fs::absolute(log_dir, ignored).lexically_normal();
  if (!state || target == *state) return;
  const fs::path links = links_folder(*state);
  fs::create_directories(links, ignored);
  fs::permissions(links, fs::perms::owner_all, ignored);
  for (const auto& entry : fs::directory_iterator(links, ignored))
    if (!fs::exists(entry.path(), ignored)) fs::remove(entry.path(), ignored);  // deleted since
  fs::create_symlink(target, links / fmt::format("{:016x}", std::hash<std::string>{}(target)),
                     ignored);
}

namespace {
/// Sort key: the time in the ID, then, for runs of the same second, when their config was written.
std::tuple<std::string, fs::file_time_type> begin_of(const fs::path& run) {
  constexpr std::size_t kTimeBytes = std::string_view("20261121-095400").size();
  std::error_code missing;
  const auto written = fs::last_write_time(run / "config.toml", missing);
  return {run.filename().string().substr(0, kTimeBytes), missing ? fs::file_time_type{} : written};
}
}  // namespace

std::vector<fs::path> RunIndex::runs() const {
  std::vector<fs::path> out;
  std::error_code ignored;
  for (const fs::path& state : states_)
    for (const auto& entry : fs::directory_iterator(state / "runs", ignored))
      if (is_run(entry.path())) out.push_back(entry.path());
  std::ranges::sort(out, {}, begin_of);
  return out;
}

Result<fs::path> RunIndex::find(const std::string& name) const {
  std::error_code ignored;
  if (name.find('/') != name.npos) {
    const fs::path path = fs::canonical(name, ignored);
    if (!path.empty() && is_run(path)) return path;
    return fail(ErrorCode::usage, name + ": is no folder of a run; `sortie ps --all` lists runs");
  }
  const std::vector<fs::path> all = runs();
  if (name == "last") {
    if (!all.empty()) return all.back();
    return fail(ErrorCode::usage,
                fmt::format("last: there is no run yet in {}; start one with `sortie run`",
                            states_.front().string()));
  }
  std::vector<fs::path> hits;
  for (const fs::path& run : all) {
    if (run.filename() == name) return run;
    // The ending of an ID distinguishes runs of the same second, and is what users remember.
    if (const std::string id = run.filename().string();
        id.starts_with(name) || id.ends_with("-" + name))
      hits.push_back(run);
  }
  if (hits.size() == 1) return hits.front();
  std::vector<std::string> names;
  for (const fs::path& run : hits.empty() ? all : hits) names.push_back(run.filename().string());
  if (names.size() > kListed)
    names.erase(names.begin(), names.end() - static_cast<std::ptrdiff_t>(kListed));
  if (hits.empty())
    return fail(ErrorCode::usage,
                fmt::format("{}: no such run; {}", name,
                            names.empty() ? "there is none yet"
                                          : fmt::format("the latest are {}; `sortie ps --all` "
                                                        "lists them",
                                                        fmt::join(names, ", "))));
  return fail(ErrorCode::usage,
              fmt::format("{}: {} runs have an id that starts so: {}; give more of the id", name,
                          hits.size(), fmt::join(names, ", ")));
}

}  // namespace sortie::launcher
