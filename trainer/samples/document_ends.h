// model.document_end_token against what ends the documents of the token files.
#pragma once

#include <string>
#include <vector>

#include "trainer/samples/tokenizer_agreement.h"

namespace sortie::trainer {

/// ErrorCode::config where the documents of a token file end with another token, as its manifest
/// says. A text for each file whose documents were built without a token at their end: the key then
/// has no effect but where the text has that token. Files without a manifest are not checked.
Result<std::vector<std::string>> check_document_ends(const config::JobConfig& job,
                                                     const RunTokenizer& run);

}  // namespace sortie::trainer
