// Conversations in ChatML against the tokenizer, and the chat template that a model came with.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/samples/tokenizer_agreement.h"

namespace sortie::trainer {

/// What people should know before a run trains on conversations in ChatML, or validates on them;
/// nothing where `run` has none. `start`: the checkpoint that it starts from, empty = the seed.
/// ErrorCode::data where an imported model would be trained on marks that its tokenizer splits.
Result<std::vector<std::string>> check_chatml(const RunTokenizer& run,
                                              const std::filesystem::path& start);

}  // namespace sortie::trainer
