// Checks the token ids of token files against model.vocab_size.
#pragma once

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::trainer {

/// ErrorCode::config if a token file has an id that the model does not have, according to its
/// manifest. Files whose manifest records no largest id, or without a manifest, are not checked
/// here: training ends when it reads such an id.
Result<> check_token_ids(const config::JobConfig& job);

}  // namespace sortie::trainer
