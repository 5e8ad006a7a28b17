// Converts Hugging Face folders (and files of llm.c) to checkpoints and back. A checkpoint keeps
// what such a folder has besides weights in its folder kHfNotes: config.json, the assets, and
// tensors.json with the types of the weights and the prefix that their names omit.
#pragma once

#include <filesystem>
#include <optional>

#include "trainer/hf/open_model.h"
#include "trainer/storage/work_progress.h"
#include "trainer/tokenizer/stored_tokenizer.h"

namespace sortie::trainer {

struct ImportReport {
  std::filesystem::path checkpoint;
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;
};
/// Creates a checkpoint of step 0 in `out`, from which training can start
/// (trainer.load_weights_from). Weights keep their types in it; training holds them in f32.
/// `source` is a folder or a file of llm.c. ErrorCode::usage if `out` already has a checkpoint;
/// ErrorCode::data if the folder's tokenizer is damaged. Warns of a tokenizer of a kind that is not
/// supported, or with more ids than the model.
Result<ImportReport> import_hf(const std::filesystem::path& source,
                               const std::filesystem::path& out, const OnProgress& progress = {});

struct ExportOptions {
  std::optional<StorageType> type{};  // of all weights; nullopt = as imported, otherwise F32
  std::uint64_t max_shard_bytes = 5'000'000'000;
  /// Include layers of multi-token prediction, which transformers does not load.
  bool with_mtp = false;
  OnProgress progress{};
};
/// Creates a folder that transformers loads, with the tokenizer of the run and its companion files.
/// Merges low-rank updates into the weights. ErrorCode::usage unless `folder` is absent or empty.
Result<ImportReport> export_hf(const std::filesystem::path& checkpoint,
                               const std::filesystem::path& folder, const ExportOptions& options);

/// Reads the notes that an import left in the checkpoint into types, left_out_prefix, assets and
/// config_json. Without notes, sets all types to f32.
Result<> read_import_notes(OpenedModel& opened, const std::filesystem::path& checkpoint);

/// Copies the import notes of one checkpoint, if any, to a new one that is being written.
Result<> carry_import_notes(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace sortie::trainer
