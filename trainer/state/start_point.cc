#include "trainer/state/start_point.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/command_name.h"
#include "common/base/log.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/lineage.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

/// Returns the checkpoint that `place` itself is, otherwise the newest good one in it; nullopt if
/// there is none.
Result<std::optional<CheckpointEntry>> checkpoint_in(const fs::path& place, CheckDepth depth) {
  std::error_code ignored;
  if (fs::exists(place / kCommitFile, ignored)) {
    SORTIE_ASSIGN_OR_RETURN(Manifest manifest, check_checkpoint(place, depth));
    CheckpointEntry entry{.folder = place, .step = manifest.step};
    entry.manifest = std::move(manifest);
    return entry;
  }
  SORTIE_ASSIGN_OR_RETURN(LatestCheckpoint latest, find_latest(place, depth));
  for (const std::string& text : latest.skipped) log::warning("checkpoint skipped: {}", text);
  return std::move(latest.entry);
}

/// The place that load_dir or load_weights_from names.
struct Source {
  std::string_view key;
  fs::path place;
  bool one_checkpoint = false;  // otherwise a folder of them, which may have grown
};

std::optional<Source> source_of(const config::TrainerConfig& config) {
  Source source;
  if (!config.load_dir.empty())
    source = {"trainer.load_dir", config.load_dir};
  else if (!config.load_weights_from.empty())
    source = {"trainer.load_weights_from", config.load_weights_from};
  else
    return std::nullopt;
  std::error_code ignored;
  source.one_checkpoint = fs::exists(source.place / kCommitFile, ignored);
  return source;
}

Manifest::Origin origin_of(const CheckpointEntry& entry) {
  return {lineage_of(*entry.manifest), entry.step, entry.folder.string()};
}

std::int64_t named_step_of(const Manifest& manifest) {
  const auto found = manifest.counters.find(kNamedStep);
  return found == manifest.counters.end() ? 0 : found->second;
}

StartPoint resume_from(CheckpointEntry entry, std::string reason) {
  StartPoint start;
  start.kind = StartPoint::Kind::resume;
  start.save_dir = entry.folder.parent_path();
  if (entry.best) start.save_dir = start.save_dir.parent_path();
  start.folder = std::move(entry.folder);
  start.reason = std::move(reason);
  const Manifest& manifest = *entry.manifest;
  // Checkpoints of older versions have no lineage: their run gets one now.
  start.lineage = manifest.lineage.empty() ? new_lineage() : manifest.lineage;
  start.origin = manifest.origin;
  start.named_step = named_step_of(manifest);
  start.first_run_id = manifest.first_run_id.empty() ? manifest.run_id : manifest.first_run_id;
  start.manifest = std::move(entry.manifest);
  return start;
}

/// Checks that all checkpoints of the folder belong to the newest one's run, if they record one.
Result<> check_one_lineage(const fs::path& save_dir, const CheckpointEntry& newest) {
  SORTIE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                          list_checkpoints(save_dir, CheckDepth::sizes));
  const std::string& lineage = newest.manifest->lineage;
  for (const CheckpointEntry& entry : entries)
    if (entry.manifest && !entry.manifest->lineage.empty() && !lineage.empty() &&
        entry.manifest->lineage != lineage)
      return fail(ErrorCode::config,
                  fmt::format("trainer.save_dir {}: it has checkpoints of several runs ({} is of "
                              "run {}, {} of run {}); move those of one of them to another folder",
                              save_dir.string(), newest.folder.filename().string(), lineage,
                              entry.folder.filename().string(), entry.manifest->lineage));
  return {};
}

/// Whether the run of `own`, in save_dir, is the one that a command with this source has started.
bool goes_on_from(const CheckpointEntry& own, const CheckpointEntry& other, const Source& source) {
  std::error_code ignored;
  if (fs::equivalent(own.folder, other.folder, ignored)) return true;
  if (const auto& origin = own.manifest->origin;
      origin && origin->lineage == lineage_of(*other.manifest))
    return !source.one_checkpoint || origin->step == other.step;
  if (same_run(*own.manifest, *other.manifest))
    return source.one_checkpoint
               ? other.step == own.step || other.step == named_step_of(*own.manifest)
               : other.step <= own.step;
  return may_have_started_from(*own.manifest, *other.manifest);
}

/// Chooses the start if save_dir has a checkpoint and another place to start from is named.
Result<StartPoint> choose_between(const config::TrainerConfig& config, CheckpointEntry own,
                                  const Source& source) {
  const std::string newest = "the newest in trainer.save_dir";
  const auto named = checkpoint_in(source.place, CheckDepth::sizes);
  if (!named || !*named) {
    log::warning("{} {}: no committed checkpoint in it; the run resumes from {}", source.key,
                 source.place.string(), own.folder.string());
    return resume_from(std::move(own), newest);
  }
  const CheckpointEntry& other = **named;
  const bool same = same_run(*own.manifest, *other.manifest);
  if (same && other.step > own.step && source.key == "trainer.load_dir") {
    // A copy of this run's checkpoints that went further than those in save_dir.
    SORTIE_ASSIGN_OR_RETURN(auto newer, checkpoint_in(source.place, CheckDepth::hashes));
    if (newer && newer->step > own.step)
      return resume_from(std::move(*newer),
                         "in trainer.load_dir, newer than those of this run in trainer.save_dir");
  }
  if (goes_on_from(own, other, source)) {
    StartPoint start = resume_from(
        std::move(own),
        fmt::format("{}; {} {}, and is not read", newest, source.key,
                    same ? "names this run's own checkpoints" : "is where this run started"));
    // Records the place that this command names, so that the same command still works after a
    // crash.
    if (same && source.one_checkpoint) start.named_step = other.step;
    if (!same && (!start.origin || source.one_checkpoint)) start.origin = origin_of(other);
    return start;
  }
  if (same)
    return fail(
        ErrorCode::config,
        fmt::format("{} {}: it is of step {}, but trainer.save_dir {} has step {} of the "
                    "same run; remove {} to resume from step {}, or set trainer.save_dir to "
                    "a new folder to start a fork from step {}",
                    source.key, source.place.string(), other.step, config.save_dir, own.step,
                    source.key, own.step, other.step));
  return fail(
      ErrorCode::config,
      fmt::format("{} {}: trainer.save_dir {} has checkpoints up to step {} of a run that did not "
                  "start from this one of step {}; remove {} to continue that run, or set "
                  "trainer.save_dir to a new folder to start another run",
                  source.key, source.place.string(), config.save_dir, own.step, other.step,
                  source.key));
}

Result<StartPoint> start_from(const Source& source) {
  SORTIE_ASSIGN_OR_RETURN(std::optional<CheckpointEntry> entry,
                          checkpoint_in(source.place, CheckDepth::hashes));
  std::error_code ignored;
  if (!entry && !fs::exists(source.place, ignored))
    return fail(ErrorCode::checkpoint,
                fmt::format("{} {}: no such folder on this host; name a checkpoint, or the "
                            "trainer.save_dir of a run",
                            source.key, source.place.string()));
  if (!entry) {
    const std::string place = source.place.string(), hint = site_folders_hint(source.place);
    return fail(ErrorCode::checkpoint,
                fmt::format("{} {}: no committed checkpoint in it{}", source.key, place,
                            hint.empty() ? fmt::format("; `{}` shows what is there",
                                                       command_line({"checkpoint", "ls", place}))
                                         : hint));
  }
  StartPoint start;
  start.kind =
      source.key == "trainer.load_dir" ? StartPoint::Kind::fork : StartPoint::Kind::weights;
  start.reason = source.key;
  start.lineage = new_lineage();
  start.origin = origin_of(*entry);
  start.folder = std::move(entry->folder);
  start.manifest = std::move(entry->manifest);
  return start;
}

/// Returns the newest step in the folder, of good checkpoints and of damaged ones; nullopt if it
/// has none.
std::optional<std::int64_t> newest_step_in(const fs::path& folder) {
  const auto entries = list_checkpoints(folder, CheckDepth::sizes);
  if (!entries || entries->empty()) return std::nullopt;
  return entries->front().step;
}

/// A run whose hosts got `site=NAME`, or lost it, saves in another folder below the same save_dir.
/// Without its checkpoints it would begin at step 0.
Result<> check_no_other_sites(const fs::path& save_dir) {
  const auto refuse = [&](const fs::path& other, std::int64_t step, const char* change) {
    return fail(
        ErrorCode::config,
        fmt::format("trainer.save_dir {}: no checkpoint in it, but {} has one of step {}, of "
                    "a run {}; start it as before, or set trainer.save_dir to a new folder, "
                    "with trainer.load_weights_from = \"{}\" to train from its weights",
                    save_dir.string(), other.string(), step, change, other.string()));
  };
  if (const auto folders = site_folders(save_dir); !folders.empty())
    return refuse(folders.front(), newest_step_in(folders.front()).value_or(0),
                  "whose hosts had site=NAME");
  if (save_dir.filename().string().starts_with(kSiteFolderPrefix))
    if (const auto step = newest_step_in(save_dir.parent_path()))
      return refuse(save_dir.parent_path(), *step, "whose hosts had no site=NAME");
  return {};
}

}  // namespace

Result<StartPoint> choose_start(const config::TrainerConfig& config) {
  const std::optional<Source> source = source_of(config);
  if (!config.save_dir.empty()) {
    auto own = find_latest(config.save_dir, CheckDepth::hashes);
    if (!own) return std::unexpected(with_context(std::move(own).error(), "trainer.save_dir"));
    if (!own->entry && !own->skipped.empty())
      return fail(ErrorCode::checkpoint,
                  fmt::format("trainer.save_dir {}: none of its checkpoints can be used: {}; "
                              "move them away to start anew",
                              config.save_dir, fmt::join(own->skipped, "; ")));
    for (const std::string& text : own->skipped) log::warning("checkpoint skipped: {}", text);
    if (own->entry) {
      SORTIE_TRY(check_one_lineage(config.save_dir, *own->entry));
      if (source) return choose_between(config, std::move(*own->entry), *source);
      return resume_from(std::move(*own->entry), "the newest in trainer.save_dir");
    }
  }
  if (source) return start_from(*source);
  if (!config.save_dir.empty()) SORTIE_TRY(check_no_other_sites(config.save_dir));
  StartPoint start;
  start.lineage = new_lineage();
  return start;
}

}  // namespace sortie::trainer
