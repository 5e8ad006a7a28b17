#include "trainer/checkpoint/find.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>

#include "trainer/checkpoint/lineage.h"
#include "trainer/checkpoint/rollbacks.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStepPrefix = "step-";

/// Returns the step of a folder name; nullopt for all other names.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  if (error != std::errc{} || stop != end || step < 0 || checkpoint_name(step) != name)
    return std::nullopt;
  return step;
}

/// Folders with their steps, newest first.
Result<std::vector<CheckpointEntry>> list_folders(const fs::path& save_dir) {
  std::vector<CheckpointEntry> entries, aside;
  std::error_code error;
  for (fs::directory_iterator at(save_dir, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (const auto step = step_of(name))
      entries.push_back({.folder = at->path(), .step = *step});
    else if (name.starts_with(kAsidePrefix))
      if (const auto old = step_of(name.substr(kAsidePrefix.size())))
        aside.push_back({.folder = at->path(), .step = *old});
  }
  if (error && error != std::errc::no_such_file_or_directory)
    return fail(ErrorCode::checkpoint,
                fmt::format("list {}: {}", save_dir.string(), error.message()));
  for (CheckpointEntry& old : aside)
    if (std::ranges::find(entries, old.step, &CheckpointEntry::step) == entries.end())
      entries.push_back(std::move(old));
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step > b.step; });
  return entries;
}

void check_entry(CheckpointEntry& entry, CheckDepth depth, const OnProgress& progress = {}) {
  auto manifest = check_checkpoint(entry.folder, depth, /*stop=*/{}, progress);
  entry.manifest.reset();
  if (manifest && manifest->step != entry.step)
    entry.problem =
        fmt::format("{}: its manifest is of step {}", entry.folder.string(), manifest->step);
  else if (manifest)
    entry.manifest = std::move(*manifest);
  else
    entry.problem = std::move(manifest).error().message;
}

/// Folders in the save folder and in its kBestFolder, newest step first. Entries of kBestFolder
/// that are of another run than those of the save folder are marked as a problem.
Result<std::vector<CheckpointEntry>> list_candidates(const fs::path& save_dir) {
  SORTIE_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> entries, list_folders(save_dir));
  const fs::path best_folder = save_dir / kBestFolder;
  std::error_code ignored;
  if (!fs::is_directory(best_folder, ignored)) return entries;
  SORTIE_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> best, list_folders(best_folder));
  const auto regular = std::ranges::find_if(entries, [](CheckpointEntry& entry) {
    check_entry(entry, CheckDepth::sizes);
    return entry.manifest.has_value();
  });
  for (CheckpointEntry& entry : best) {
    entry.best = true;
    check_entry(entry, CheckDepth::sizes);
    if (!entry.manifest || regular == entries.end() ||
        same_run(*regular->manifest, *entry.manifest))
      continue;
    entry.manifest.reset();
    entry.problem = fmt::format("{}: it is of another run than those in {}", entry.folder.string(),
                                save_dir.string());
  }
  entries.insert(entries.end(), std::make_move_iterator(best.begin()),
                 std::make_move_iterator(best.end()));
  std::ranges::stable_sort(entries, std::greater(), &CheckpointEntry::step);
  return entries;
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:08}", kStepPrefix, step);
}

Result<std::vector<CheckpointEntry>> list_checkpoints(const fs::path& save_dir, CheckDepth depth,
                                                      const OnProgress& progress) {
  SORTIE_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> entries, list_folders(save_dir));
  for (CheckpointEntry& entry : entries) check_entry(entry, depth, progress);
  return entries;
}

std::vector<fs::path> site_folders(const fs::path& save_dir) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(save_dir, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().starts_with(kSiteFolderPrefix)) continue;
    const auto entries = list_candidates(at->path());
    if (entries && !entries->empty()) found.push_back(at->path());
  }
  std::ranges::sort(found);
  return found;
}

std::string site_folders_hint(const fs::path& save_dir) {
  const std::vector<fs::path> folders = site_folders(save_dir);
  std::string names;
  for (const fs::path& folder : folders)
    names += fmt::format("{}{}", names.empty() ? "" : " or ", folder.string());
  return names.empty() ? "" : "; it has the checkpoints of sites: name " + names;
}

Result<> check_has_no_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  fs::path found = fs::exists(folder / kCommitFile, ignored) ? folder : fs::path();
  for (const fs::path& place : {folder, folder / kBestFolder}) {
    SORTIE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, list_folders(place));
    if (found.empty() && !entries.empty()) found = entries.front().folder;
  }
  if (found.empty()) return {};
  return fail(ErrorCode::usage,
              fmt::format("{}: there is a checkpoint in it, {}; name a new folder, so that it is "
                          "neither replaced nor mixed up with those of a run",
                          folder.string(), found.string()));
}

Result<LatestCheckpoint> find_latest(const fs::path& save_dir, CheckDepth depth,
                                     const OnProgress& progress) {
  SORTIE_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> entries, list_candidates(save_dir));
  SORTIE_ASSIGN_OR_RETURN(const std::optional<RollbackFile> rollbacks, read_rollbacks(save_dir));
  LatestCheckpoint latest;
  std::vector<CheckpointEntry> suspects;
  for (CheckpointEntry& entry : entries) {
    if (!entry.manifest && entry.problem.empty()) check_entry(entry, CheckDepth::sizes);
    if (entry.manifest && is_abandoned(*entry.manifest, rollbacks)) {
      latest.skipped.push_back(
          fmt::format("{}: the run has gone back to before it", entry.folder.string()));
      continue;
    }
    if (entry.manifest && entry.manifest->suspect) {
      suspects.push_back(std::move(entry));
      continue;
    }
    if (entry.manifest && depth != CheckDepth::sizes) check_entry(entry, depth, progress);
    if (entry.manifest) {
      for (const CheckpointEntry& suspect : suspects)
        latest.skipped.push_back(fmt::format(
            "{}: it is suspect, saved soon after a spike of the loss", suspect.folder.string()));
      latest.entry = std::move(entry);
      return latest;
    }
    latest.skipped.push_back(std::move(entry.problem));
  }
  for (CheckpointEntry& entry : suspects) {
    if (depth != CheckDepth::sizes) check_entry(entry, depth, progress);
    if (entry.manifest) {
      latest.entry = std::move(entry);
      return latest;
    }
    latest.skipped.push_back(std::move(entry.problem));
  }
  return latest;
}

}  // namespace sortie::trainer
