// Opens the checkpoint that a verb names.
#pragma once

#include <filesystem>
#include <string_view>

#include "common/base/result.h"
#include "trainer/checkpoint/reader.h"

namespace sortie::trainer {

/// Opens the checkpoint that `place` is, otherwise the newest one in it that passes the check, with
/// a warning about each that is passed over. ErrorCode::checkpoint if there is none, ErrorCode::io
/// if the place can not be looked at; `nor` says what else the place is not, as ", and no
/// config.json".
Result<CheckpointReader> open_checkpoint(const std::filesystem::path& place, CheckDepth depth,
                                         std::string_view nor = {},
                                         const OnProgress& progress = {});

}  // namespace sortie::trainer
