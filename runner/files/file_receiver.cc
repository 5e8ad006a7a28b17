#include "runner/files/file_receiver.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>

#include "common/asio/spawn.h"
#include "common/base/heap.h"
#include "common/files/entry_path.h"
#include "common/files/piece.h"
#include "runner/files/user_path.h"

namespace sortie::runner {
namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kConnectLimit{3000};
/// Timeout for the other host, which sends something every second.
constexpr milliseconds kSilenceLimit{5000};
constexpr milliseconds kProgressInterval{250};

}  // namespace

FileReceiver::FileReceiver(asio::io_context& io, Link& link, mode_t umask,
                           FailureHandler on_failure)
    : io_(io),
      link_(link),
      umask_(umask),
      on_failure_([this, report = std::move(on_failure)](Error error) {
        report(cache_ ? cache_->with_advice(std::move(error)) : std::move(error));
      }) {
  keep_freed_memory();
}

Result<> FileReceiver::open(const wire::FilesOpen& order) {
  order_ = order;
  if (order.purpose == wire::FilesPurpose::stage) {
    SORTIE_ASSIGN_OR_RETURN(cache_, StageCache::open(order.key));
    return {};
  }
  if (order.folder.empty()) return fail(ErrorCode::protocol, "no folder to put files into");
  return {};
}

std::string FileReceiver::staged_folder() const {
  return cache_ && done_ ? cache_->folder() : "";
}

Result<> FileReceiver::take(const wire::Message& message) {
  if (const auto* manifest = std::get_if<wire::FilesManifest>(&message))
    return take_manifest(*manifest);
  if (!compared_) return fail(ErrorCode::protocol, "unexpected message in a transfer");
  if (const auto* piece = std::get_if<wire::FilePiece>(&message)) return take_piece(*piece);
  if (const auto* serve = std::get_if<wire::FilesServe>(&message)) {
    if (serve->key.size() != SealedStream::kKeyBytes)
      return fail(ErrorCode::protocol, "a link key of a wrong size");
    if (server_) server_->allow(serve->link, serve->key);
    return {};
  }
  if (const auto* order = std::get_if<wire::FilesFetch>(&message)) {
    if (order->key.size() != SealedStream::kKeyBytes || fetching_ || !tree_)
      return fail(ErrorCode::protocol, "an order to fetch that can not be carried out");
    fetching_ = true;
    spawn(io_, fetch(*order));
    return {};
  }
  return fail(ErrorCode::protocol, "a receiver of files does not accept messages of this type");
}

Result<> FileReceiver::take_manifest(const wire::FilesManifest& message) {
  SORTIE_TRY(manifest_.add(message));
  if (manifest_.complete()) spawn(io_, receive());
  return {};
}

Result<files::Folder> FileReceiver::target_folder() {
  if (cache_) return cache_->part(files::total_bytes(manifest_.entries()));
  SORTIE_ASSIGN_OR_RETURN(const std::string path, user_path(order_.folder));
  // The target belongs to the user, so it gets the modes that the user's own commands would give
  // it.
  const mode_t own = ::umask(order_.private_folder ? 077 : umask_);
  auto folder = files::Folder::open(path);
  ::umask(own);
  return folder;
}

asio::awaitable<void> FileReceiver::receive() {
  if (cache_) {
    const Result<bool> there = co_await prepare_cache();
    if (!there) {
      on_failure_(there.error());
      co_return;
    }
    if (*there) {
      compared_ = true;
      co_await finish();
      co_return;
    }
  }
  auto folder = target_folder();
  if (!folder) {
    on_failure_(std::move(folder).error());
    co_return;
  }
  tree_.emplace(std::move(*folder), manifest_.take());
  for (;;) {
    const Result<bool> compared = tree_->inspect();
    if (!compared) {
      on_failure_(compared.error());
      co_return;
    }
    if (*compared) break;
    co_await let_heartbeats_run();
  }
  if (!order_.relay_address.empty()) {
    server_.emplace(io_, *tree_);
    relay_port_ = server_->listen(order_.relay_address);
  }
  compared_ = true;
  say_wanted("");
  if (tree_->missing_bytes() == 0) co_await finish();
}

void FileReceiver::say_wanted(std::string reason) {
  wire::FilesWanted frame;
  frame.relay_port = relay_port_;
  frame.reason = std::move(reason);
  files::send_wanted(tree_->missing(), frame, [&](wire::FilesWanted part) { link_.send(part); });
}

Result<> FileReceiver::take_piece(const wire::FilePiece& piece) {
  if (!tree_) return fail(ErrorCode::protocol, "a piece for a tree that is complete");
  link_.send(wire::FilesCredit{piece.bytes.size()});
  const auto taken = tree_->put(piece.entry, piece.piece, piece.bytes);
  if (!taken && cache_) return std::unexpected(cache_->with_advice(taken.error()));
  if (!taken) return std::unexpected(taken.error());
  if (*taken == files::TreeWriter::Taken::wrong)
    return fail(
        ErrorCode::data,
        fmt::format(
            "{}: received data does not match the announced hash; was the file changed while"
            " it was sent?",
            files::shown_path(tree_->entries()[piece.entry].path)));
  if (*taken == files::TreeWriter::Taken::wrote) {
    from_launcher_ += piece.bytes.size();
    took();
  }
  return {};
}

/// Sent even if no bytes arrive but work is done: a launcher gives up on a silent host.
void FileReceiver::say_progress() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_progress_ < kProgressInterval) return;
  last_progress_ = now;
  link_.send(wire::FilesProgress{from_launcher_ + from_hosts_, ""});
}

void FileReceiver::took() {
  if (server_) server_->notify();
  say_progress();
  if (tree_->missing_bytes() == 0 && !finishing_) spawn(io_, finish());
}

asio::awaitable<void> FileReceiver::fetch(wire::FilesFetch order) {
  const Result<> fetched = co_await fetch_from(order);
  if (tree_->missing_bytes() == 0) co_return;
  say_wanted(fetched ? "the other host has no more pieces" : fetched.error().message);
}

asio::awaitable<Result<>> FileReceiver::fetch_from(const wire::FilesFetch& order) {
  boost::system::error_code error;
  const asio::ip::address address = asio::ip::make_address(order.address, error);
  if (error) co_return fail(ErrorCode::protocol, "an address that is none");
  const asio::ip::tcp::endpoint endpoint(address, order.port);
  SealedStream stream{asio::ip::tcp::socket(io_)};
  stream.set_deadline(kConnectLimit);
  auto done = co_await stream.connect(endpoint);
  if (done) done = co_await stream.write_link(order.link);
  if (done) done = co_await stream.open(order.key, SealedStream::Side::fetches);
  if (!done) co_return done;
  std::vector<wire::FilesWanted> lists;
  files::send_wanted(tree_->missing(), wire::FilesWanted(),
                     [&](wire::FilesWanted part) { lists.push_back(std::move(part)); });
  for (wire::FilesWanted& list : lists) {
    const wire::Message message(std::move(list));
    done = co_await stream.write(message);
    if (!done) co_return done;
  }
  while (tree_->missing_bytes() > 0) {
    stream.set_deadline(kSilenceLimit);
    const auto message = co_await stream.read();
    if (!message) co_return std::unexpected(message.error());
    done = take_from_host(*message);
    if (!done) co_return done;
  }
  co_return Result<>();
}

Result<> FileReceiver::take_from_host(const wire::Message& message) {
  if (std::holds_alternative<wire::Heartbeat>(message)) return {};
  const auto* piece = std::get_if<wire::FilePiece>(&message);
  if (!piece) return fail(ErrorCode::protocol, "the other host sent an invalid piece");
  const auto taken = tree_->put(piece->entry, piece->piece, piece->bytes);
  if (!taken) {
    // An error of our disk is not the other host's fault.
    if (taken.error().code != ErrorCode::protocol) on_failure_(taken.error());
    return std::unexpected(taken.error());
  }
  if (*taken == files::TreeWriter::Taken::wrong)
    return fail(ErrorCode::data, "a piece from the other host has a wrong hash");
  if (*taken == files::TreeWriter::Taken::wrote) {
    from_hosts_ += piece->bytes.size();
    took();
  }
  return {};
}

asio::awaitable<void> FileReceiver::finish() {
  finishing_ = true;
  while (tree_) {
    const Result<bool> settled = tree_->settle();
    if (!settled) {
      on_failure_(settled.error());
      co_return;
    }
    if (*settled) break;
    co_await let_heartbeats_run();
  }
  if (auto installed = co_await install(); !installed) {
    on_failure_(installed.error());
    co_return;
  }
  say_done();
}

/// Between the parts of a work that may take long.
asio::awaitable<void> FileReceiver::let_heartbeats_run() {
  say_progress();
  co_await asio::post(io_, asio::use_awaitable);
}

void FileReceiver::say_done() {
  done_ = true;
  wire::FilesDone done;
  done.folder = cache_ ? cache_->folder() : tree_->folder().path();
  done.files_changed = tree_ ? tree_->files_changed() : 0;
  done.bytes_from_launcher = from_launcher_;
  done.bytes_from_hosts = from_hosts_;
  link_.send(done);
}

}  // namespace sortie::runner
