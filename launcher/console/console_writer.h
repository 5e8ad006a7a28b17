// ConsoleWriter: the thread between the console and a terminal that may take nothing for hours
// (Ctrl-S, a pipe that nobody reads). Bounded memory; its end never waits for the terminal.
#pragma once

#include <memory>
#include <string>
#include <thread>

namespace sortie::launcher {

class ConsoleWriter {
 public:
  enum class To { out, err };

  /// `out` and `err` are duplicated. `status_line`: err is a terminal, keep a line at its bottom.
  /// `queue_bytes`: what may wait to be written.
  ConsoleWriter(int out, int err, bool status_line, std::size_t queue_bytes = 4u << 20);
  /// Flushes, for at most two seconds; a write that is stuck then is left behind with state of its
  /// own, and takes no further part.
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  /// Queues `text`; false when the queue is full and it was dropped. What is `important` may use
  /// room that is kept for it.
  bool write(To to, std::string_view text, bool important);
  /// The line at the bottom; cut to the terminal's width, "" for none.
  void status(std::string text);

  /// Bytes that are not written yet.
  std::size_t backlog() const;
  /// Why `out` takes no more: EPIPE when nobody reads it any longer, ENOSPC ...; 0 while it does.
  int out_error() const;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
  std::thread thread_;
};

}  // namespace sortie::launcher
