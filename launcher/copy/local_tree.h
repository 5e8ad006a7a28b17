// LocalTree: the files to send, read and hashed once.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/files/tree_scan.h"
#include "launcher/copy/progress.h"

namespace sortie::launcher {

struct LocalTree {
  std::vector<wire::FileEntry> entries;
  std::vector<std::string> paths;  // path of each entry on this machine
  std::uint64_t bytes = 0;
  std::size_t files = 0;  // entries that are not folders
};

/// How far the reading of a tree is: first its files are listed, then those of the list are read.
struct ReadProgress {
  std::size_t listed = 0;     // entries found so far
  std::uint64_t hashed = 0;   // bytes
  std::uint64_t to_read = 0;  // bytes of all files; 0 until all are listed
};

/// For the user: "listing files", then "reading files" with the total.
Progress shown_progress(const ReadProgress& reading);

/// Reads and hashes `roots`: the files that are there when it begins, with the content that they
/// have when they are read. `on_progress` may be empty. Yields to other coroutines meanwhile. With
/// `on_left_out`, what can not be read is left out instead of an error; it is called with the
/// reason.
boost::asio::awaitable<Result<LocalTree>> read_local_tree(
    std::vector<files::ScanRoot> roots,
    std::function<void(const ReadProgress&)> on_progress = nullptr,
    std::function<void(const Error&)> on_left_out = nullptr);

/// Meaning of the arguments of `sortie push LOCAL... REMOTE`: the folder on the hosts, and the name
/// of each LOCAL in it.
struct PushNames {
  std::string folder;  // folder on the hosts
  std::vector<files::ScanRoot> roots;
};
/// REMOTE is a folder if it ends with '/', if it is "~", "." or "..", or if there are several
/// LOCALs. Otherwise it is the new name of the single LOCAL.
Result<PushNames> push_names(const std::vector<std::string>& locals, const std::string& remote);

}  // namespace sortie::launcher
