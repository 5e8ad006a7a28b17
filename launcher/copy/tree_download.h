// download_tree: copies files of one host into a folder of this machine. The host is not trusted:
// every name is validated before use, nothing is written outside the folder, and the memory for its
// list is bounded.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/host/host_session.h"

namespace sortie::launcher {

struct DownloadProgress {
  std::uint64_t wanted = 0, done = 0;
  std::vector<std::string> links_left_out;  // "path -> target": they point out of the folder
  std::vector<Error> missing;               // paths that the host lacks or can not read; printable
};

/// Copies the files that `order` requests into `folder`, which is created if there is anything to
/// write. Modes are those of the host without the umask. Skips symlinks that point out of `folder`.
/// The session must have been greeted. All references must outlive the call. Returns FilesDone like
/// that of a runner.
boost::asio::awaitable<Result<wire::FilesDone>> download_tree(std::shared_ptr<HostSession> session,
                                                              wire::FilesOpen order,
                                                              std::string folder,
                                                              std::uint64_t max_list_bytes,
                                                              DownloadProgress& progress);

/// Converts a RunnerError about files to an error with the matching code.
Error file_error(const wire::RunnerError& error);

}  // namespace sortie::launcher
