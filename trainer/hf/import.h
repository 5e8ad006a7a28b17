// Hugging Face folders (and files of llm.c) to checkpoints and back. A checkpoint keeps what such a
// folder has besides weights in its folder kHfNotes: config.json and assets as they were,
// tensors.json with the types of the weights and the form of their names.
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
/// Makes a checkpoint of step 0 in `out`, which training can start from
/// (trainer.load_weights_from). Weights keep their types in it; training has them as f32.
/// `source`: a folder, or a file of llm.c. ErrorCode::usage where `out` has a checkpoint already.
Result<ImportReport> import_hf(const std::filesystem::path& source,
                               const std::filesystem::path& out, const OnProgress& progress = {});

struct ExportOptions {
  std::optional<StorageType> type{};  // of all weights; none = as imported, else F32
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool with_mtp = false;  // layers of multi-token prediction, which transformers does not load
  OnProgress progress{};
};
/// Makes a folder that transformers loads, with the tokenizer of the run and what belongs to it.
/// Low-rank updates are merged into the weights.
/// `out` must not exist or be empty.
Result<ImportReport> export_hf(const std::filesystem::path& checkpoint,
                               const std::filesystem::path& out, const ExportOptions& options);

/// What an import had noted in the checkpoint: fills types, left_out_prefix, assets, config_json.
Result<> read_import_notes(OpenedModel& opened, const std::filesystem::path& checkpoint);

/// Copies the notes of one checkpoint, if there are any, into a new one that is being written.
Result<> carry_import_notes(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace sortie::trainer
