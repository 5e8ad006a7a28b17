// download_tree: files of one host into a folder of this machine. A host is not believed: every
// name is checked before it is used, nothing is written outside the folder, and what its list may
// take of memory is bounded.
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
  std::vector<std::string> links_left_out;  // "path -> target": they lead out of the folder
  std::vector<std::string> missing;  // paths that nothing comes of, each with the reason; printable
};

/// Modes are those of the host less the umask; a symlink that leads out of `folder` is left out.
/// The session must have been greeted. `folder` is made where there is something to put into it.
/// FilesDone as a runner would say it. All references must outlive the call.
boost::asio::awaitable<Result<wire::FilesDone>> download_tree(std::shared_ptr<HostSession> session,
                                                              wire::FilesOpen order,
                                                              std::string folder,
                                                              std::uint64_t max_list_bytes,
                                                              DownloadProgress& progress);

/// What a runner says went wrong with files, with the code that it gives.
Error file_error(const wire::RunnerError& error);

}  // namespace sortie::launcher
