// Results about a save that ranks exchange, as text for Communicator::all_gather.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Serializes values and errors, in order. The same program unpacks what it has packed: malformed
/// text is a bug.
std::string pack(const std::vector<Result<std::string>>& results);
std::vector<Result<std::string>> unpack(std::string_view text);

/// Returns rank 0's outcome on every rank. Collective.
Result<> share_outcome(Communicator& communicator, const Result<>& outcome);
/// Returns the error of the lowest rank that has one, on every rank. Collective.
Result<> share_failure_of_any(Communicator& communicator, const Result<>& outcome);

}  // namespace sortie::trainer
