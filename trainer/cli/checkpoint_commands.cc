#include "trainer/cli/checkpoint_commands.h"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/exit_code.h"
#include "common/base/json_text.h"
#include "common/config/describe.h"
#include "common/config/saved.h"
#include "trainer/checkpoint/find.h"
#include "trainer/cli/progress.h"
#include "trainer/cli/report.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;

struct CheckpointArguments {
  std::string folder;
  bool json = false;
};

/// Returns a number that the trainer recorded; nullopt in checkpoints that were imported or are
/// older.
std::optional<double> recorded(const Manifest& manifest, const char* name) {
  const auto found = manifest.scalars.find(name);
  return found == manifest.scalars.end() ? std::nullopt : std::optional(found->second);
}

/// Returns the validation loss of this step; nullopt if only an earlier step was validated.
std::optional<double> validation_loss(const Manifest& manifest) {
  const auto step = manifest.counters.find("validation_step");
  if (step == manifest.counters.end() || step->second != manifest.step) return std::nullopt;
  return recorded(manifest, "validation_loss");
}

/// Identifies what the validation loss was measured on (validation_measure(), loop/validation.h). 0
/// if it was not recorded, which matches any.
std::int64_t measure_of(const Manifest& manifest) {
  const auto found = manifest.counters.find("validation_measure");
  return found == manifest.counters.end() ? 0 : found->second;
}

struct Best {
  /// The lowest validation loss among those with the measure of the newest one; the end if none was
  /// validated.
  std::vector<CheckpointEntry>::const_iterator entry;
  std::int64_t others = 0;  // checkpoints with losses of another measure
};

Best best_of(const std::vector<CheckpointEntry>& entries) {
  const auto validated = [](const CheckpointEntry& entry) {
    return entry.manifest && validation_loss(*entry.manifest);
  };
  std::pair<std::int64_t, std::int64_t> newest{};
  std::int64_t measure = 0;
  for (const CheckpointEntry& entry : entries) {
    if (!validated(entry) || measure_of(*entry.manifest) == 0) continue;
    const std::pair<std::int64_t, std::int64_t> made{entry.manifest->created, entry.step};
    if (made < newest) continue;
    newest = made;
    measure = measure_of(*entry.manifest);
  }
  Best best{.entry = entries.end()};
  for (auto it = entries.begin(); it != entries.end(); ++it) {
    if (!validated(*it)) continue;
    if (const std::int64_t its = measure_of(*it->manifest); its != 0 && its != measure)
      ++best.others;
    else if (best.entry == entries.end() ||
             *validation_loss(*it->manifest) < *validation_loss(*best.entry->manifest))
      best.entry = it;
  }
  return best;
}

/// "step-00001200", or "best/step-00001200".
std::string place_of(const CheckpointEntry& entry) {
  std::string name = entry.folder.filename().string();
  for (const char* place : {kBestFolder, kQuarantineFolder})
    if (entry.folder.parent_path().filename() == place) return fmt::format("{}/{}", place, name);
  return name;
}

bool is_in_quarantine(const CheckpointEntry& entry) {
  return entry.folder.parent_path().filename() == kQuarantineFolder;
}

/// Returns the content of the quarantine of a save folder, whatever the names. None of it counts.
std::vector<CheckpointEntry> quarantined(const fs::path& folder) {
  std::vector<CheckpointEntry> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder / kQuarantineFolder, error), end; !error && at != end;
       at.increment(error)) {
    CheckpointEntry entry{.folder = at->path()};
    auto manifest = check_checkpoint(entry.folder, CheckDepth::sizes);
    entry.step = manifest ? manifest->step : 0;
    entry.problem = manifest ? entry.folder.string() : std::move(manifest).error().message;
    entries.push_back(std::move(entry));
  }
  std::ranges::sort(entries, {}, &CheckpointEntry::folder);
  return entries;
}

nlohmann::ordered_json to_json(const CheckpointEntry& entry, bool best) {
  nlohmann::ordered_json root = {{"folder", entry.folder.string()},
                                 {"step", entry.step},
                                 {"good", entry.manifest.has_value()}};
  if (!entry.manifest) {
    root["problem"] = entry.problem;
    root["quarantined"] = is_in_quarantine(entry);
    return root;
  }
  const Manifest& manifest = *entry.manifest;
  root["run_id"] = manifest.run_id;
  root["lineage"] = manifest.lineage;
  root["suspect"] = manifest.suspect;
  root["rollbacks"] = manifest.rollbacks.size();
  const auto maybe = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  root["loss"] = maybe(recorded(manifest, "loss"));
  root["validation_loss"] = maybe(validation_loss(manifest));
  const std::int64_t measure = measure_of(manifest);
  // As text, because not every reader of JSON supports numbers with so many digits.
  if (measure != 0) root["validation_measure"] = fmt::format("{:015x}", measure);
  root["best"] = best;
  root["consumed_samples"] = manifest.consumed_samples;
  root["tokens"] = manifest.tokens;
  root["created"] = manifest.created;
  root["world_size"] = manifest.world_size;
  root["shards"] = manifest.shards.size();
  root["tensors"] = manifest.tensors.size();
  root["bytes"] = manifest.shard_bytes();
  root["depends_on"] = manifest.depends_on;
  return root;
}

void print_table(const std::vector<CheckpointEntry>& entries, std::string_view good_word) {
  const Best best = best_of(entries);
  const auto loss = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.4f}", *value) : "-";
  };
  fmt::print("{:>10}  {:<9} {:>9} {:>10} {:<4} {:>10} {:>6} {:>14}  {:<19}  {:<24}  {}\n", "step",
             "state", "loss", "validation", "", "bytes", "ranks", "tokens", "created (UTC)", "run",
             "folder");
  for (auto it = entries.begin(); it != entries.end(); ++it) {
    if (!it->manifest) {
      fmt::print("{:>10}  {:<9} {}\n", it->step, is_in_quarantine(*it) ? "damaged" : "BROKEN",
                 it->problem);
      continue;
    }
    const Manifest& manifest = *it->manifest;
    fmt::print(
        "{:>10}  {:<9} {:>9} {:>10} {:<4} {:>10} {:>6} {:>14}  {:%Y-%m-%d %H:%M:%S}  {:<24}  {}\n",
        it->step, manifest.suspect ? "suspect" : good_word, loss(recorded(manifest, "loss")),
        loss(validation_loss(manifest)), it == best.entry ? "best" : "",
        human_bytes(manifest.shard_bytes()), manifest.world_size, manifest.tokens,
        fmt::gmtime(static_cast<std::time_t>(manifest.created)), manifest.run_id, place_of(*it));
  }
  if (best.others > 0)
    fmt::print(
        "{} of {} checkpoints have losses of other validation data than the newest one has, which "
        "are not compared with its own\n",
        best.others, entries.size());
}

/// Returns the checkpoints of a save folder, or the one checkpoint if `folder` is itself one.
Result<std::vector<CheckpointEntry>> look_at(const fs::path& folder, CheckDepth depth,
                                             const OnProgress& progress = {}) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return fail(ErrorCode::not_found, fmt::format("{}: no such folder", folder.string()));
  if (!fs::exists(folder / kManifestFile, error) && !fs::exists(folder / kCommitFile, error)) {
    SORTIE_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> entries,
                            list_checkpoints(folder, depth, progress));
    if (fs::is_directory(folder / kBestFolder, error)) {
      SORTIE_ASSIGN_OR_RETURN(std::vector<CheckpointEntry> best,
                              list_checkpoints(folder / kBestFolder, depth, progress));
      std::ranges::move(best, std::back_inserter(entries));
    }
    for (CheckpointEntry& entry : quarantined(folder)) entries.push_back(std::move(entry));
    if (!entries.empty()) return entries;
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: neither a checkpoint nor a folder of step-N checkpoints{}",
                            folder.string(), site_folders_hint(folder)));
  }
  CheckpointEntry entry{.folder = folder};
  auto manifest = check_checkpoint(folder, depth, /*stop=*/{}, progress);
  if (manifest) {
    entry.step = manifest->step;
    entry.manifest = std::move(*manifest);
  } else {
    entry.problem = std::move(manifest).error().message;
  }
  return std::vector{std::move(entry)};
}

Result<> run_command(const CheckpointArguments& arguments, CheckDepth depth) {
  ProgressLine line("checkpoint verify");
  auto looked = look_at(arguments.folder, depth, line.callback());
  line.finish();
  SORTIE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, std::move(looked));
  if (arguments.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    const auto best = best_of(entries).entry;
    for (auto it = entries.begin(); it != entries.end(); ++it)
      list.push_back(to_json(*it, it == best));
    fmt::print("{}\n", json_text(list, 2));
  } else {
    print_table(entries, depth == CheckDepth::files ? "verified" : "committed");
  }
  // `ls` only lists. `verify` fails if a checkpoint is broken.
  const auto broken = std::count_if(entries.begin(), entries.end(), [](const CheckpointEntry& e) {
    return !e.manifest && !is_in_quarantine(e);
  });
  if (depth == CheckDepth::files && broken > 0)
    return fail(ErrorCode::checkpoint,
                fmt::format("{} of {} checkpoints are broken", broken, entries.size()));
  return {};
}

void add_command(CLI::App& parent, int& exit_code, const std::string& name,
                 const std::string& description, CheckDepth depth) {
  auto arguments = std::make_shared<CheckpointArguments>();
  CLI::App* command = parent.add_subcommand(name, description);
  command->add_option("dir", arguments->folder, "A trainer.save_dir, or one step-N folder in it")
      ->required();
  command->add_flag("--json", arguments->json, "A JSON list instead of a table");
  command->callback([arguments, depth, name, &exit_code] {
    exit_code = report_error("checkpoint " + name, run_command(*arguments, depth));
  });
}

Result<> print_model(const fs::path& folder) {
  SORTIE_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                          look_at(folder, CheckDepth::sizes));
  const auto good = std::ranges::find_if(
      entries, [](const CheckpointEntry& entry) { return entry.manifest.has_value(); });
  if (good == entries.end()) return fail(ErrorCode::checkpoint, entries.front().problem);
  auto saved =
      config::parse_saved_model(good->manifest->config, (good->folder / kManifestFile).string());
  if (!saved) return std::unexpected(std::move(saved).error());
  fmt::print("{}", config::section_toml(*saved, "model"));
  return {};
}

void add_model(CLI::App& parent, int& exit_code) {
  auto folder = std::make_shared<std::string>();
  CLI::App* command = parent.add_subcommand(
      "model", "Print the [model] of a checkpoint, for the config of a run that starts from it");
  command->add_option("dir", *folder, "A checkpoint, or a folder of them: the newest")->required();
  command->callback(
      [folder, &exit_code] { exit_code = report_error("checkpoint model", print_model(*folder)); });
}

}  // namespace

void add_checkpoint_commands(CLI::App& app, int& exit_code) {
  CLI::App* checkpoint =
      app.add_subcommand("checkpoint", "Checkpoints: list, verify, show the model");
  checkpoint->require_subcommand(1);
  add_command(*checkpoint, exit_code, "ls",
              "List checkpoints with their losses, newest first, then the best", CheckDepth::sizes);
  add_command(*checkpoint, exit_code, "verify", "Read every byte and compare all hashes",
              CheckDepth::files);
  add_model(*checkpoint, exit_code);
}

}  // namespace sortie::trainer
