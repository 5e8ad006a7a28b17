// Staging: copies the files of runner.stage to the cache of each host before any rank starts, for
// use as `{stage}` in arguments. common/config/stage.h has the syntax.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "launcher/copy/tree_upload.h"
#include "launcher/host/host_session.h"

namespace sortie::launcher {

class Stager {
 public:
  /// `runner` must outlive the stager.
  Stager(boost::asio::any_io_executor executor, const config::RunnerConfig& runner,
         std::size_t hosts, std::function<void(std::string)> on_note);

  /// Reads and hashes the files. Call before contacting hosts.
  boost::asio::awaitable<Result<>> read();
  /// Updates one connected host; returns the folder of the staged files there.
  boost::asio::awaitable<Result<std::string>> stage(std::size_t index,
                                                    std::shared_ptr<HostSession> session,
                                                    std::string build);
  /// How far read() is, or after it the hosts, for the user.
  Progress progress() const;
  /// Returns "3 files, 12.0 MiB, staged on 4 hosts: ..."; "on 1 of 4 hosts" if staging is
  /// incomplete.
  std::string summary() const;
  const std::string& hash() const { return hash_; }

 private:
  boost::asio::any_io_executor executor_;
  const config::RunnerConfig& runner_;
  const std::size_t hosts_;
  std::function<void(std::string)> on_note_;
  ReadProgress reading_;
  LocalTree tree_;
  std::string hash_;
  std::shared_ptr<TreeUpload> upload_;
  std::size_t staged_ = 0;
  std::uint64_t from_launcher_ = 0, from_hosts_ = 0;
};

}  // namespace sortie::launcher
