// What ranks tell each other about a save, as text for Communicator::all_gather.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

/// Values and errors, one after another. What was packed is unpacked by the same program: text of
/// another form is a bug.
std::string pack(const std::vector<Result<std::string>>& results);
std::vector<Result<std::string>> unpack(std::string_view text);

}  // namespace sortie::trainer
