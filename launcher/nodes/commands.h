// Implements `sortie nodes`: texts, JSON and changes of the store.
#pragma once

#include <string>
#include <vector>

#include "launcher/nodes/node_store.h"

namespace sortie::launcher {

/// Cordoned hosts, the breaker, and blamed hosts, as a table or as JSON (schema sortie/nodes/1).
std::string nodes_text(const NodeState& state, double now);
std::string nodes_json(const NodeState& state, const NodeStore& store, double now);

/// Each function returns its output for the user.
Result<std::string> list_nodes(bool json);
/// ErrorCode::usage if `reason` is empty, too long or not printable.
Result<std::string> cordon_nodes(const std::vector<std::string>& hosts, const std::string& reason);
/// Reports hosts that were not cordoned; they are no error.
Result<std::string> uncordon_nodes(const std::vector<std::string>& hosts);
Result<std::string> show_breaker();
Result<std::string> reset_breaker();

}  // namespace sortie::launcher
