// Checks conversations in ChatML against the tokenizer and against the chat template of the model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/samples/tokenizer_agreement.h"

namespace sortie::trainer {

/// Returns warnings for a run that trains or validates on conversations in ChatML; none if `run`
/// has no such conversations. `start` is the checkpoint that the run starts from; empty = weights
/// from the seed. ErrorCode::data if an imported model would be trained on marks that its tokenizer
/// splits into several tokens.
Result<std::vector<std::string>> check_chatml(const RunTokenizer& run,
                                              const std::filesystem::path& start);

}  // namespace sortie::trainer
