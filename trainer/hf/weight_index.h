// model.safetensors.index.json: which file of a folder has which tensor.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::trainer {

/// The files that the index names, each once; every one is a name of a file beside the index, no
/// path. Which tensor is where, the files say themselves. `where` opens the message.
Result<std::set<std::string>> parse_weight_index(std::string_view text, std::string_view where);

}  // namespace sortie::trainer
