// The hosts of a job and their numbers of ranks, in a form short enough to be sent to every host:
// hosts with consecutive names ("gpu0001", "gpu0002", ...) and equally many ranks are one entry.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::wire {

/// {name, number of ranks} of each host, in the order of node ranks. Global ranks count through the
/// list.
using NodeList = std::vector<std::pair<std::string, std::uint32_t>>;

std::vector<NodeRun> fold_nodes(const NodeList& nodes);

/// The inverse of fold_nodes(). Fails with ErrorCode::protocol for more than 65,536 hosts or
/// 1,048,576 ranks, a name of over 255 bytes, or a count of zero.
Result<NodeList> expand_nodes(const std::vector<NodeRun>& runs);

}  // namespace sortie::wire
