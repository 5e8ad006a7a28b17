#include "runner/files/file_sender.h"

#include <fmt/core.h>

#include <boost/asio/post.hpp>

#include "common/asio/spawn.h"
#include "common/base/heap.h"
#include "common/files/entry_path.h"
#include "common/files/piece.h"

namespace sortie::runner {
namespace {

constexpr std::size_t kMaxPaths = 1000;
constexpr std::uint64_t kMessageBytes = 256u << 10;
/// Limit of manifest bytes that are queued for the launcher.
constexpr std::size_t kMaxQueued = 4u << 20;
constexpr std::chrono::milliseconds kQueuePause{5};
/// Number of files that can not be sent that are reported by name.
constexpr std::size_t kMostNamed = 100;
/// Hashing a tree before it is listed may take long; progress is reported at this interval.
constexpr std::chrono::seconds kSayEvery{2};

wire::RunnerError missing_path(const Error& error) {
  return {fmt::format("{}{}", files::kMissingPath, error_code_name(error.code)), error.message, -1};
}

}  // namespace

FileSender::FileSender(boost::asio::io_context& io, Link& link, FailureHandler on_failure)
    : io_(io), link_(link), on_failure_(std::move(on_failure)), credit_(io) {
  keep_freed_memory();
}

Result<> FileSender::open(const wire::FilesOpen& order) {
  if (order.paths.empty() || order.paths.size() > kMaxPaths)
    return fail(ErrorCode::protocol, "no path to send, or too many");
  matches_ = std::make_unique<PathMatches>(order.paths);
  spawn(io_, find());
  return {};
}

boost::asio::awaitable<void> FileSender::find() {
  for (;;) {
    const auto complete = matches_->step();
    if (!complete) {
      on_failure_(complete.error());
      co_return;
    }
    if (*complete) break;
    co_await boost::asio::post(io_, boost::asio::use_awaitable);  // let heartbeats run
  }
  for (const Error& error : matches_->missing()) link_.send(missing_path(error));
  scan_ = std::make_unique<files::TreeScan>(matches_->take_roots());
  scan_->leave_out_failures([this](const Error& why) { report_left_out(why); });
  co_await list();
}

/// Reports a file that can not be sent, which others do not wait for: of many only some by name.
void FileSender::report_left_out(const Error& why) {
  if (++left_out_ <= kMostNamed) link_.send(missing_path(why));
}

boost::asio::awaitable<void> FileSender::list() {
  wire::FilesManifest message;
  std::uint64_t bytes = 0, all_bytes = 0;
  boost::asio::steady_timer pause(io_);
  auto said = std::chrono::steady_clock::now();
  for (;;) {
    auto step = scan_->step();
    if (!step) {
      on_failure_(std::move(step).error());
      co_return;
    }
    if (step->entry) {
      bytes += files::entry_bytes(*step->entry);
      all_bytes += files::entry_bytes(*step->entry);
      message.entries.push_back(*step->entry);
      entries_.push_back(std::move(*step->entry));
    }
    if (all_bytes > files::ManifestReader::kMaxBytes) {
      on_failure_(Error{ErrorCode::unsupported, "too many files at once; pull parts of the tree"});
      co_return;
    }
    if (step->done && left_out_ > kMostNamed)
      link_.send(
          missing_path({ErrorCode::io, fmt::format("{} more files and folders can not be sent",
                                                   left_out_ - kMostNamed)}));
    if (step->done || bytes > kMessageBytes) {
      message.last = step->done ? 1 : 0;
      if (step->done) listed_ = true;
      link_.send(message);
      message = {};
      bytes = 0;
    }
    if (step->done) co_return;
    if (const auto now = std::chrono::steady_clock::now(); now - said >= kSayEvery) {
      said = now;
      link_.send(wire::FilesProgress{all_bytes, ""});
    }
    while (link_.queued_bytes() > kMaxQueued && !link_.broken()) {
      pause.expires_after(kQueuePause);
      co_await pause.async_wait(kToken);
    }
    if (link_.broken()) co_return;
    co_await boost::asio::post(io_, boost::asio::use_awaitable);  // let heartbeats run
  }
}

Result<> FileSender::take(const wire::Message& message) {
  if (const auto* credit = std::get_if<wire::FilesCredit>(&message)) {
    if (credit->bytes > unacknowledged_)
      return fail(ErrorCode::protocol, "credit for pieces that were not sent");
    unacknowledged_ -= credit->bytes;
    credit_.notify();
    return {};
  }
  const auto* wanted = std::get_if<wire::FilesWanted>(&message);
  if (!wanted || !listed_ || sending_)
    return fail(ErrorCode::protocol, "unexpected message in a transfer");
  SORTIE_TRY(wanted_.add(*wanted, entries_));
  if (!wanted_.complete()) return {};
  sending_ = true;
  spawn(io_, send_pieces());
  return {};
}

boost::asio::awaitable<void> FileSender::send_pieces() {
  files::PieceReader reader;
  std::optional<std::uint32_t> lost;  // the last file that could not be read; ranges are in order
  for (const wire::PieceRange& range : wanted_.take())
    for (std::uint32_t piece = range.first; piece < range.first + range.count; ++piece) {
      while (unacknowledged_ >= wire::kFileWindow) co_await credit_.wait();
      if (lost == range.entry) break;
      auto bytes = reader.read(scan_->path_of(range.entry), entries_[range.entry].size, piece);
      wire::FilePiece next;
      next.entry = range.entry;
      next.piece = piece;
      if (bytes) {
        unacknowledged_ += bytes->size();
        next.bytes = std::move(*bytes);
      } else {
        // Folders of running programs change: a checkpoint is renamed when it is complete.
        next.lost = bytes.error().message;
        lost = range.entry;
      }
      link_.send(next);
      if (link_.broken()) co_return;
    }
}

}  // namespace sortie::runner
