// Parses model.safetensors.index.json, which names the file of each tensor in a folder.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::trainer {

/// Returns the set of files that the index names. Each is the name of a file in the folder of the
/// index, not a path. Which tensor is in which file is read from the files themselves. `where`
/// begins the message.
Result<std::set<std::string>> parse_weight_index(std::string_view text, std::string_view where);

}  // namespace sortie::trainer
