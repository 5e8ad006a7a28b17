// FileReceiver: receives a tree from the launcher, or from the host that the launcher names, into a
// folder (`sortie push`) or into the stage cache.
#pragma once

#include <sys/types.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <optional>

#include "common/files/manifest.h"
#include "common/files/tree_write.h"
#include "runner/files/file_role.h"
#include "runner/files/relay_server.h"
#include "runner/files/sealed_stream.h"
#include "runner/files/stage_cache.h"
#include "runner/streams/link.h"

namespace sortie::runner {

class FileReceiver : public FileRole {
 public:
  /// `umask` applies to the folders that a push creates above its target.
  FileReceiver(boost::asio::io_context& io, Link& link, mode_t umask, FailureHandler on_failure);

  Result<> open(const wire::FilesOpen& order) override;
  Result<> take(const wire::Message& message) override;
  std::string staged_folder() const override;

 private:
  Result<> take_manifest(const wire::FilesManifest& message);
  Result<> take_piece(const wire::FilePiece& piece);
  boost::asio::awaitable<void> receive();
  boost::asio::awaitable<Result<bool>> prepare_cache();
  boost::asio::awaitable<Result<>> lock_cache();
  boost::asio::awaitable<void> make_room(const std::vector<wire::FileEntry>& entries);
  Result<files::Folder> target_folder();
  boost::asio::awaitable<void> fetch(wire::FilesFetch order);
  boost::asio::awaitable<Result<>> fetch_from(const wire::FilesFetch& order);
  Result<> take_from_host(const wire::Message& message);
  boost::asio::awaitable<void> finish();
  boost::asio::awaitable<Result<>> install();
  boost::asio::awaitable<void> let_heartbeats_run();
  void say_wanted(std::string reason);
  void say_done();
  void took();
  void say_progress();

  boost::asio::io_context& io_;
  Link& link_;
  const mode_t umask_;
  FailureHandler on_failure_;
  wire::FilesOpen order_;
  files::ManifestReader manifest_;
  std::optional<StageCache> cache_;
  std::optional<files::TreeWriter> tree_;
  std::optional<RelayServer> server_;
  std::uint16_t relay_port_ = 0;
  std::uint64_t from_launcher_ = 0, from_hosts_ = 0;
  std::chrono::steady_clock::time_point last_progress_{};
  bool compared_ = false, fetching_ = false, finishing_ = false, done_ = false;
};

}  // namespace sortie::runner
