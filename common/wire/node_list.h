// The hosts of a job and how many ranks each has, short enough to be sent to every host: names that
// count up ("gpu0001", "gpu0002", ...) and have equally many ranks are one entry.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::wire {

/// {name, number of ranks} of each host in the order of node ranks. Global ranks are the running
/// count over it.
using NodeList = std::vector<std::pair<std::string, std::uint32_t>>;

std::vector<NodeRun> fold_nodes(const NodeList& nodes);

/// The inverse. ErrorCode::protocol: more than 65,536 hosts or 1,048,576 ranks, a name over 255
/// bytes, a count of zero.
Result<NodeList> expand_nodes(const std::vector<NodeRun>& runs);

}  // namespace sortie::wire
