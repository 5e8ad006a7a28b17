#include "launcher/copy/tree_upload.h"

#include <fmt/core.h>
#include <openssl/rand.h>

#include <boost/asio/use_awaitable.hpp>

#include "common/asio/token.h"

#include "common/asio/spawn.h"
#include "common/base/check.h"
#include "common/files/entry_path.h"
#include "common/files/piece.h"
#include "launcher/console/console.h"
#include "launcher/copy/tree_download.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kPiecesInMemory = 64;
constexpr std::size_t kLinkKeyBytes = 32;
/// Limit of data queued for one host and not yet written to its connection.
constexpr std::size_t kQueuedBytes = 1u << 20;

std::string random_key() {
  std::string key(kLinkKeyBytes, '\0');
  SORTIE_CHECK(
      RAND_bytes(reinterpret_cast<unsigned char*>(key.data()), static_cast<int>(key.size())) == 1);
  return key;
}

}  // namespace

bool relay_pays(RelayMode mode, std::size_t hosts, std::uint64_t bytes) {
  if (mode != RelayMode::automatic) return mode == RelayMode::on;
  return hosts >= kRelayHosts && bytes >= kRelayBytes;
}

TreeUpload::TreeUpload(asio::any_io_executor executor, const LocalTree& tree, std::size_t hosts,
                       bool relay, std::function<void(std::string)> on_note)
    : executor_(executor),
      tree_(tree),
      relay_(relay),
      on_note_(std::move(on_note)),
      hosts_(hosts),
      budget_(executor, kPiecesInMemory) {
  for (Host& host : hosts_)
    host.credit = std::make_unique<asio::steady_timer>(executor, Clock::time_point::max());
}

std::uint64_t TreeUpload::bytes_wanted() const {
  std::uint64_t bytes = 0;
  for (const Host& host : hosts_) bytes += host.lacks;
  return bytes;
}

std::uint64_t TreeUpload::bytes_done() const {
  std::uint64_t bytes = 0;
  for (const Host& host : hosts_) bytes += host.done;
  return bytes;
}

asio::awaitable<Result<wire::FilesDone>> TreeUpload::send_to(std::size_t index,
                                                             std::shared_ptr<HostSession> session,
                                                             wire::FilesOpen order) {
  const auto self = shared_from_this();
  Host& host = hosts_[index];
  host.session = session;
  host.local = session->host() == "localhost";
  if (relay_ && !host.local) order.relay_address = session->address();
  auto done = co_await converse(index, std::move(order));
  host.ended = true;
  host.credit->cancel();
  if (done) host.done = host.lacks;
  if (!done) chains_.remove(index);
  if (!done && host.trouble) done = std::unexpected(*host.trouble);
  co_return done;
}

asio::awaitable<Result<wire::FilesDone>> TreeUpload::converse(std::size_t index,
                                                              wire::FilesOpen order) {
  const auto session = hosts_[index].session;
  session->send(order);
  std::size_t at = 0;
  for (bool more = true; more;) {
    co_await budget_.acquire();
    more = send_list_part(*session, at);
    co_await session->drained(kQueuedBytes);
    budget_.release();
  }
  for (;;) {
    auto message = co_await session->next();
    if (!message) co_return std::unexpected(std::move(message).error());
    if (const auto* done = std::get_if<wire::FilesDone>(&*message)) co_return *done;
    auto taken = take(index, *message);
    if (!taken) co_return std::unexpected(std::move(taken).error());
  }
}

/// Sends the next part of the list; returns false after the last one.
bool TreeUpload::send_list_part(HostSession& session, std::size_t& at) const {
  wire::FilesManifest part = files::manifest_part(tree_.entries, at);
  const bool more = part.last == 0;
  session.send(std::move(part));
  return more;
}

Result<> TreeUpload::take(std::size_t index, const wire::Message& message) {
  Host& host = hosts_[index];
  if (const auto* credit = std::get_if<wire::FilesCredit>(&message)) {
    if (credit->bytes > host.unacknowledged)
      return fail(ErrorCode::protocol, "runner: credit for pieces that were not sent");
    host.unacknowledged -= credit->bytes;
    host.credit->cancel();
    return {};
  }
  if (const auto* progress = std::get_if<wire::FilesProgress>(&message)) {
    host.done = std::min(progress->bytes, host.lacks);
    if (!progress->waits_for.empty() && !std::exchange(host.waits, true))
      on_note_(fmt::format("{}: {}", host.session->host(), progress->waits_for));
    return {};
  }
  if (const auto* wanted = std::get_if<wire::FilesWanted>(&message)) {
    if (host.fed) return fail(ErrorCode::protocol, "runner: requested a piece twice");
    if (auto added = host.wanted.add(*wanted, tree_.entries); !added)
      return std::unexpected(with_context(std::move(added).error(), "runner"));
    host.relay_port = wanted->relay_port;
    if (host.wanted.complete()) on_wanted(index, wanted->reason);
    return {};
  }
  if (const auto* error = std::get_if<wire::RunnerError>(&message))
    return std::unexpected(file_error(*error));
  return fail(ErrorCode::protocol,
              fmt::format("runner sent {} in a transfer", wire::message_name(message)));
}

void TreeUpload::on_wanted(std::size_t index, const std::string& reason) {
  Host& host = hosts_[index];
  std::vector<wire::PieceRange> ranges = host.wanted.take();
  const bool first = !std::exchange(host.asked, true);
  if (!first) {
    on_note_(fmt::format("{}: no more pieces from another host ({}); sent from here instead",
                         host.session->host(), reason));
    feed(index, std::move(ranges));
    return;
  }
  for (const wire::PieceRange& range : ranges)
    for (std::uint32_t piece = range.first; piece < range.first + range.count; ++piece)
      host.lacks += files::piece_length(tree_.entries[range.entry].size, piece);
  std::optional<std::size_t> upstream;
  const bool serves = host.relay_port != 0 && !host.session->address().empty();
  if (relay_ && !host.local) upstream = chains_.attach(index, host.lacks > 0, serves);
  if (upstream)
    link(*upstream, index);
  else
    feed(index, std::move(ranges));
}

/// Makes `index` fetch from `upstream`. Each link has a separate key, which only its two hosts
/// know.
void TreeUpload::link(std::size_t upstream, std::size_t index) {
  const std::string key = random_key();
  const Host& from = hosts_[upstream];
  from.session->send(wire::FilesServe{++links_, key});
  wire::FilesFetch fetch;
  fetch.link = links_;
  fetch.key = key;
  fetch.address = from.session->address();
  fetch.port = from.relay_port;
  hosts_[index].session->send(fetch);
}

void TreeUpload::feed(std::size_t index, std::vector<wire::PieceRange> ranges) {
  if (ranges.empty()) return;
  hosts_[index].fed = true;
  spawn(executor_, feed_loop(shared_from_this(), index, std::move(ranges)));
}

asio::awaitable<void> TreeUpload::feed_loop([[maybe_unused]] std::shared_ptr<TreeUpload> self,
                                            std::size_t index,
                                            std::vector<wire::PieceRange> ranges) {
  Host& host = hosts_[index];
  for (const wire::PieceRange& range : ranges)
    for (std::uint32_t piece = range.first; piece < range.first + range.count; ++piece) {
      while (host.unacknowledged >= wire::kFileWindow && !host.ended) {
        host.credit->expires_at(Clock::time_point::max());
        co_await host.credit->async_wait(kToken);
      }
      co_await budget_.acquire();
      bool more = !host.ended;
      if (more) more = co_await send_piece(host, range.entry, piece);
      budget_.release();
      if (!more) co_return;
    }
}

asio::awaitable<bool> TreeUpload::send_piece(Host& host, std::uint32_t entry, std::uint32_t piece) {
  auto bytes = reader_.read(tree_.paths[entry], tree_.entries[entry].size, piece);
  if (!bytes) {
    // The file was removed or truncated: the announced content is no longer available.
    host.trouble = std::move(bytes).error();
    host.session->close();
    co_return false;
  }
  wire::FilePiece message;
  message.entry = entry;
  message.piece = piece;
  message.bytes = std::move(*bytes);
  host.unacknowledged += message.bytes.size();
  host.session->send(std::move(message));
  co_await host.session->drained(kQueuedBytes);
  co_return !host.session->closed();
}

}  // namespace sortie::launcher
