#include "trainer/checkpoint/open_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/command_name.h"
#include "common/base/log.h"
#include "trainer/checkpoint/find.h"

namespace sortie::trainer {

Result<CheckpointReader> open_checkpoint(const std::filesystem::path& place, CheckDepth depth,
                                         std::string_view nor, const OnProgress& progress) {
  std::error_code ignored;
  if (std::filesystem::exists(place / kCommitFile, ignored))
    return CheckpointReader::open(place, depth, progress);
  std::error_code error;
  const bool there = std::filesystem::exists(place, error);
  if (error) return std::unexpected(os_error(error.value(), place.string()));
  if (!there)
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: no such folder; name a checkpoint, or the trainer.save_dir of a "
                            "training",
                            place.string()));
  SORTIE_ASSIGN_OR_RETURN(const LatestCheckpoint latest, find_latest(place, depth, progress));
  if (!latest.entry && !latest.skipped.empty())
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: none of its checkpoints can be used: {}", place.string(),
                            fmt::join(latest.skipped, "; ")));
  if (!latest.entry) {
    const std::string hint = site_folders_hint(place);
    return fail(
        ErrorCode::checkpoint,
        fmt::format("{}: no committed checkpoint in it{}{}", place.string(), nor,
                    hint.empty() ? fmt::format("; `{}` shows what it has",
                                               command_line({"checkpoint", "ls", place.string()}))
                                 : hint));
  }
  for (const std::string& text : latest.skipped) log::warning("checkpoint skipped: {}", text);
  return CheckpointReader::open(latest.entry->folder, CheckDepth::sizes);
}

}  // namespace sortie::trainer
