// FileReceiver and the stage cache: its lock, room on the disk, and the complete tree.
#include <random>
#include <utility>

#include "runner/files/file_receiver.h"

namespace sortie::runner {
namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kCachePoll{100};
/// A longer wait for another process is reported to the launcher.
constexpr milliseconds kSilentWait{3000};

}  // namespace

asio::awaitable<Result<>> FileReceiver::lock_cache() {
  asio::steady_timer pause(io_);
  const auto begun = std::chrono::steady_clock::now();
  for (bool told = false, made_room = false;;) {
    const Result<bool> locked = cache_->try_lock();
    if (!locked && !std::exchange(made_room, true)) {  // the disk may be full
      const std::vector<wire::FileEntry> only_lock;
      co_await make_room(only_lock);
      continue;
    }
    if (!locked) co_return std::unexpected(locked.error());
    if (*locked) co_return Result<>();
    say_progress();
    if (!told && std::chrono::steady_clock::now() - begun >= kSilentWait) {
      told = true;
      link_.send(wire::FilesProgress{0, cache_->holder_hint()});
    }
    // Hosts that share a cache must not all hold its lock at the same moments.
    pause.expires_after(kCachePoll + milliseconds(std::random_device{}() % 400));
    co_await pause.async_wait(kToken);
    if (link_.broken()) co_return fail(ErrorCode::lost, "the launcher is gone");
  }
}

/// Locks the cache. Returns true if the staged tree already exists.
asio::awaitable<Result<bool>> FileReceiver::prepare_cache() {
  const Result<> locked = co_await lock_cache();
  if (!locked) co_return std::unexpected(locked.error());
  std::optional<bool> there;
  while (!(there = cache_->ready(manifest_.entries()))) co_await let_heartbeats_run();
  if (!*there) co_await make_room(manifest_.entries());
  co_return *there;
}

asio::awaitable<void> FileReceiver::make_room(const std::vector<wire::FileEntry>& entries) {
  StagePruner pruner = cache_->room_pruner(entries);
  while (!pruner.step()) co_await let_heartbeats_run();
}

asio::awaitable<Result<>> FileReceiver::install() {
  if (!cache_) co_return Result<>();
  while (tree_) {
    const Result<bool> installed = cache_->install(tree_->entries());
    if (!installed) co_return std::unexpected(installed.error());
    if (*installed) break;
    co_await let_heartbeats_run();
  }
  if (Result<> used = cache_->use(); !used) co_return used;
  StagePruner pruner = cache_->pruner(order_.cache_bytes);
  while (!pruner.step()) co_await let_heartbeats_run();
  co_return Result<>();
}

}  // namespace sortie::runner
