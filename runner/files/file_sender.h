// FileSender: sends files of this host to the launcher (`sortie pull`). It finds and lists them,
// then sends the pieces that the launcher lacks, within its credit. A path without a match, and a
// file or folder that can not be read, are reported before the end of the list as a RunnerError
// with the code kMissingPath; the transfer continues without them, and without files that can not
// be read any more when they are sent.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <vector>

#include "common/files/manifest.h"
#include "common/files/tree_scan.h"
#include "runner/files/file_role.h"
#include "runner/files/path_matches.h"
#include "runner/streams/link.h"

namespace sortie::runner {

class FileSender : public FileRole {
 public:
  FileSender(boost::asio::io_context& io, Link& link, FailureHandler on_failure);

  Result<> open(const wire::FilesOpen& order) override;
  Result<> take(const wire::Message& message) override;

 private:
  boost::asio::awaitable<void> find();
  void report_left_out(const Error& why);
  boost::asio::awaitable<void> list();
  boost::asio::awaitable<void> send_pieces();

  boost::asio::io_context& io_;
  Link& link_;
  FailureHandler on_failure_;
  std::unique_ptr<PathMatches> matches_;
  std::unique_ptr<files::TreeScan> scan_;
  std::vector<wire::FileEntry> entries_;
  files::WantedReader wanted_;
  std::uint64_t unacknowledged_ = 0;
  Wakeup credit_;
  std::size_t left_out_ = 0;  // files and folders that can not be sent
  bool listed_ = false, sending_ = false;
};

}  // namespace sortie::runner
