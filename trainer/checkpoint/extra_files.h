// The files of a checkpoint besides its shards: the tokenizer, and what an import keeps of the
// model's folder.
#pragma once

#include <filesystem>
#include <functional>

#include "common/base/result.h"
#include "trainer/checkpoint/manifest.h"

namespace sortie::trainer {

/// Sets `manifest.files`: all regular files in the folder and below it, with their hashes, except
/// the shards of the manifest. Symlinks are neither followed nor listed.
Result<> add_extra_files(Manifest& manifest, const std::filesystem::path& folder);

/// Compares them with the manifest. ErrorCode::checkpoint: one has gone or was changed.
Result<> check_extra_files(const Manifest& manifest, const std::filesystem::path& folder,
                           const std::function<void(std::uint64_t bytes)>& on_bytes);

}  // namespace sortie::trainer
