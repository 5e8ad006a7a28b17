// What ranks tell each other about a save, as text for Communicator::all_gather.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "trainer/parallel/communicator.h"

namespace sortie::trainer {

/// Values and errors, one after another. What was packed is unpacked by the same program: text of
/// another form is a bug.
std::string pack(const std::vector<Result<std::string>>& results);
std::vector<Result<std::string>> unpack(std::string_view text);

/// Rank 0's outcome, on every rank. Collective.
Result<> share_outcome(Communicator& communicator, const Result<>& outcome);
/// The first error of any rank, on every rank. Collective.
Result<> share_failure_of_any(Communicator& communicator, const Result<>& outcome);

}  // namespace sortie::trainer
