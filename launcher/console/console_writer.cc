#include "launcher/console/console_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <utility>

#include "common/base/fd.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kImportantBytes = 1u << 20;  // additional space for Sortie's own messages
constexpr std::size_t kPieceBytes = 64u << 10;     // lines that are written together
constexpr std::chrono::milliseconds kFlushTime{2000}, kFlushSlice{50};
constexpr const char* kClearLine = "\r\x1b[K";

/// Truncates `text` to the terminal's columns minus one: some terminals wrap in the last column.
std::string fitted(const std::string& text, int terminal) {
  winsize size{};
  if (::ioctl(terminal, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return text;
  std::size_t columns = 0, end = 0;
  for (; end < text.size(); ++end) {
    const bool starts = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
    if (starts && ++columns == size.ws_col) break;
  }
  return text.substr(0, end);
}

}  // namespace

struct ConsoleWriter::State {
  struct Piece {
    To to;
    std::string text;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Piece> queue;
  std::size_t queued_bytes = 0, writing_bytes = 0, max_queued_bytes = 0;
  std::string status;
  bool status_changed = false, stop = false, idle = true;
  std::atomic<bool> abandoned = false;
  std::atomic<int> out_error = 0;

  // Used only by the thread.
  Fd out, err;
  bool status_line = false;

  bool flushed() const { return queue.empty() && !status_changed && idle; }

  /// Writes `text`. A file that fails (its reader is gone) is closed and skipped from then on.
  void put(To to, std::string_view text) {
    Fd& file = to == To::out ? out : err;
    while (!text.empty() && file && !abandoned) {
      const ssize_t count = ::write(file.get(), text.data(), text.size());
      if (count >= 0) {
        text.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno == EAGAIN) {  // another process has made the shared terminal non-blocking
        pollfd ready{file.get(), POLLOUT, 0};
        ::poll(&ready, 1, 100);
      } else if (errno != EINTR) {
        if (to == To::out) out_error = errno;
        file.reset();
      }
    }
  }
};

ConsoleWriter::ConsoleWriter(int out, int err, bool status_line, std::size_t queue_bytes)
    : state_(std::make_shared<State>()) {
  state_->max_queued_bytes = queue_bytes;
  state_->out.reset(::fcntl(out, F_DUPFD_CLOEXEC, 3));
  state_->err.reset(::fcntl(err, F_DUPFD_CLOEXEC, 3));
  state_->status_line = status_line;
  thread_ = std::thread([state = state_] { run(state); });
}

bool ConsoleWriter::flush(std::chrono::milliseconds limit) {
  std::unique_lock lock(state_->mutex);
  // In slices: time during which the machine was suspended counts as one slice.
  for (auto left = limit; left.count() > 0 && !state_->flushed(); left -= kFlushSlice)
    state_->changed.wait_for(lock, kFlushSlice, [this] { return state_->flushed(); });
  return state_->flushed();
}

ConsoleWriter::~ConsoleWriter() {
  status("");
  (void)flush(kFlushTime);
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
    state_->abandoned = !state_->flushed();
  }
  state_->changed.notify_all();
  if (state_->abandoned)
    thread_.detach();
  else
    thread_.join();
}

bool ConsoleWriter::write(To to, std::string_view text, bool important) {
  bool was_empty = false;  // the thread looks at the queue before it sleeps
  {
    const std::lock_guard lock(state_->mutex);
    const std::size_t limit = state_->max_queued_bytes + (important ? kImportantBytes : 0);
    if (state_->queued_bytes + text.size() > limit) return false;
    state_->queued_bytes += text.size();
    auto& queue = state_->queue;
    was_empty = queue.empty();
    if (queue.empty() || queue.back().to != to || queue.back().text.size() >= kPieceBytes)
      queue.push_back({to, std::string(text)});
    else
      queue.back().text += text;
  }
  if (was_empty) state_->changed.notify_all();
  return true;
}

void ConsoleWriter::status(std::string text) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->status = std::move(text);
    state_->status_changed = true;
  }
  state_->changed.notify_all();
}

void ConsoleWriter::run(const std::shared_ptr<State>& state) {
  sigset_t all;  // the I/O thread handles signals; a closed pipe is an error of write()
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  bool status_visible = false;
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(
        lock, [&] { return state->stop || !state->queue.empty() || state->status_changed; });
    if (state->stop) break;  // flushed or abandoned
    std::deque<State::Piece> batch;
    batch.swap(state->queue);
    state->writing_bytes = std::exchange(state->queued_bytes, 0);
    const std::string status = state->status;
    state->status_changed = false;
    state->idle = false;
    lock.unlock();
    if (status_visible) state->put(To::err, kClearLine);
    for (const State::Piece& piece : batch) state->put(piece.to, piece.text);
    status_visible = state->status_line && !status.empty();
    if (status_visible) state->put(To::err, fitted(status, state->err.get()));
    lock.lock();
    state->idle = true;
    state->writing_bytes = 0;
    state->changed.notify_all();
  }
}

std::size_t ConsoleWriter::backlog() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queued_bytes + state_->writing_bytes;
}

int ConsoleWriter::out_error() const {
  return state_->out_error;
}

}  // namespace sortie::launcher
