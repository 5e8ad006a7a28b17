// Checks model.document_end_token against the token that ends documents in the token files.
#pragma once

#include <string>
#include <vector>

#include "trainer/samples/tokenizer_agreement.h"

namespace sortie::trainer {

/// ErrorCode::config if the documents of a token file end with another token, according to its
/// manifest. Returns a warning for each file whose documents were built without an end token: the
/// key then has no effect, except where the text itself contains the token. Does not check files
/// without a manifest.
Result<std::vector<std::string>> check_document_ends(const config::JobConfig& job,
                                                     const RunTokenizer& run);

}  // namespace sortie::trainer
