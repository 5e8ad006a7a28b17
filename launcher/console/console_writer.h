// ConsoleWriter: a thread that writes to a terminal or pipe that may block for hours (Ctrl-S, a
// reader that does not read). Its memory is bounded; its destructor does not wait for the terminal.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

namespace sortie::launcher {

class ConsoleWriter {
 public:
  enum class To { out, err };

  /// Duplicates `out` and `err`. `status_line`: err is a terminal; keep a status line at its
  /// bottom. `queue_bytes`: size of the queue.
  ConsoleWriter(int out, int err, bool status_line, std::size_t queue_bytes = 4u << 20);
  /// Flushes for at most two seconds. If a write still blocks then, detaches the thread, which owns
  /// its state and writes nothing more.
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  /// Queues `text`. Returns false if the queue is full and the text was dropped. `important` text
  /// may use additional space that is reserved for it.
  bool write(To to, std::string_view text, bool important);
  /// Sets the status line, truncated to the terminal's width; "" removes it.
  void status(std::string text);

  /// Waits until everything is written, for at most `limit`. Returns false if it is not.
  bool flush(std::chrono::milliseconds limit);
  /// Bytes not yet written.
  std::size_t backlog() const;
  /// errno of a failed write to `out`: EPIPE if its reader is gone, ENOSPC ...; 0 while it works.
  int out_error() const;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
  std::thread thread_;
};

}  // namespace sortie::launcher
