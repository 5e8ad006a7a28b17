// load_model() as the verbs do it: with progress on stderr.
#pragma once

#include "trainer/state/model_loader.h"

namespace sortie::trainer {

/// The model of the checkpoint `place` (a checkpoint, or a folder of them: the newest) on `threads`
/// threads. `verb` begins the lines of progress; `precision` as in [model].
Result<std::unique_ptr<LoadedModel>> load_checkpoint(std::string_view verb,
                                                     const std::filesystem::path& place,
                                                     int threads, const std::string& precision);

}  // namespace sortie::trainer
