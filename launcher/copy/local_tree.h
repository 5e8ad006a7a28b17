// LocalTree: what is to be sent, read and hashed once.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/files/tree_scan.h"

namespace sortie::launcher {

struct LocalTree {
  std::vector<wire::FileEntry> entries;
  std::vector<std::string> paths;  // of each entry, on this machine
  std::uint64_t bytes = 0;
  std::size_t files = 0;  // that are no folders
};

/// `on_bytes` is told how much has been hashed so far. Other coroutines get their turn meanwhile.
boost::asio::awaitable<Result<LocalTree>> read_local_tree(
    std::vector<files::ScanRoot> roots, std::function<void(std::uint64_t)> on_bytes);

/// As `sortie push LOCAL... REMOTE` names them: where on the hosts, and what under which name.
struct PushNames {
  std::string folder;  // on the hosts
  std::vector<files::ScanRoot> roots;
};
/// REMOTE is a folder where it ends with '/' (or is "~", "." or ".."), or where there are several
/// LOCALs; else it is the new name of the one LOCAL.
Result<PushNames> push_names(const std::vector<std::string>& locals, const std::string& remote);

}  // namespace sortie::launcher
