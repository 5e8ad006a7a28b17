// TreeUpload: sends one tree to many hosts. Sends each host the list, receives what it lacks, and
// feeds it or (relay) makes it fetch from another host. A host that can no longer fetch is fed from
// here. Memory: one copy of the list, and at most 64 pieces over all hosts. Used on the I/O thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/files/manifest.h"
#include "launcher/copy/local_tree.h"
#include "launcher/copy/relay_chains.h"
#include "launcher/copy/semaphore.h"
#include "launcher/host/host_session.h"

namespace sortie::launcher {

enum class RelayMode { automatic, on, off };
/// Minimum hosts and bytes with which RelayMode::automatic makes hosts forward pieces. From
/// tests/bench/push_relay_pays (docs/benchmarks.md): from there on relaying is faster; with only a
/// few pieces there is no difference.
inline constexpr std::size_t kRelayHosts = 2;
inline constexpr std::uint64_t kRelayBytes = 4u << 20;
bool relay_pays(RelayMode mode, std::size_t hosts, std::uint64_t bytes);

class TreeUpload : public std::enable_shared_from_this<TreeUpload> {
 public:
  /// `tree` must outlive the upload. `on_note` receives messages for the user.
  TreeUpload(boost::asio::any_io_executor executor, const LocalTree& tree, std::size_t hosts,
             bool relay, std::function<void(std::string)> on_note);

  /// Serves one host, from FilesOpen to FilesDone. The session must have been greeted, and must
  /// stay open until all hosts are done, because others may fetch from this host.
  boost::asio::awaitable<Result<wire::FilesDone>> send_to(std::size_t index,
                                                          std::shared_ptr<HostSession> session,
                                                          wire::FilesOpen order);

  /// Sums over all hosts of the missing bytes, and of those transferred.
  std::uint64_t bytes_wanted() const;
  std::uint64_t bytes_done() const;

 private:
  struct Host {
    std::shared_ptr<HostSession> session;
    files::WantedReader wanted;
    bool local = false, asked = false, fed = false, ended = false, waits = false;
    std::optional<Error> trouble;  // error on this side
    std::uint16_t relay_port = 0;
    std::uint64_t lacks = 0, done = 0, unacknowledged = 0;
    std::unique_ptr<boost::asio::steady_timer> credit;
  };
  boost::asio::awaitable<Result<wire::FilesDone>> converse(std::size_t index,
                                                           wire::FilesOpen order);
  bool send_list_part(HostSession& session, std::size_t& at) const;
  Result<> take(std::size_t index, const wire::Message& message);
  void on_wanted(std::size_t index, const std::string& reason);
  void link(std::size_t upstream, std::size_t index);
  void feed(std::size_t index, std::vector<wire::PieceRange> ranges);
  boost::asio::awaitable<void> feed_loop(std::shared_ptr<TreeUpload> self, std::size_t index,
                                         std::vector<wire::PieceRange> ranges);
  boost::asio::awaitable<bool> send_piece(Host& host, std::uint32_t entry, std::uint32_t piece);

  boost::asio::any_io_executor executor_;
  const LocalTree& tree_;
  const bool relay_;
  std::function<void(std::string)> on_note_;
  std::vector<Host> hosts_;
  RelayChains chains_;
  std::uint32_t links_ = 0;
  Semaphore budget_;  // pieces read and not yet written to a connection
  files::PieceReader reader_;
};

}  // namespace sortie::launcher
