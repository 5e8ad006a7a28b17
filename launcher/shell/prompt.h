// Prompt: reads lines from stdin on request. Runs on a separate thread, so that heartbeats continue
// however long the user thinks. Lines from a terminal have editing and history, other input is read
// as it is. Local commands, which use the terminal, run on the same thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "launcher/shell/line_editor.h"

namespace sortie::launcher {

class Prompt {
 public:
  struct Options {
    bool terminal = false;
    std::filesystem::path history;    // file to which new lines are added; empty = none
    std::vector<std::string> before;  // earlier lines of the history
    std::vector<std::string> words;   // completions, "@gpu"
  };
  using Answer = LineEditor::Read;

  Prompt(boost::asio::any_io_executor executor, Options options);
  /// Ends a running ask(). Sends SIGTERM to a running local command and blocks until it exits.
  ~Prompt();
  Prompt(const Prompt&) = delete;
  Prompt& operator=(const Prompt&) = delete;

  /// Reads a line. At most one call of ask() or run_here() may be active.
  boost::asio::awaitable<Answer> ask(std::string text);
  /// Runs a local command through /bin/sh with the terminal of this process. Returns its exit code,
  /// or 128 + signal. Ctrl-Z does not suspend it.
  boost::asio::awaitable<int> run_here(std::string command);

  bool asking() const { return asking_; }
  /// Handles Ctrl-C: ask() returns Kind::interrupted. No-op if ask() is not active.
  void interrupt() { wake(LineEditor::kInterrupt); }
  /// ask() returns Kind::end; a local command receives SIGTERM.
  void end();
  void resized() { wake(LineEditor::kResize); }
  /// Prints `text` above the prompt while ask() waits. No-op otherwise, or without a terminal.
  void show(const std::string& text);

 private:
  struct Shared;
  static void work(const std::shared_ptr<Shared>& shared, const Options& options);
  void wake(char what);

  std::shared_ptr<Shared> shared_;
  bool asking_ = false;
  const bool terminal_;
  std::thread thread_;
};

}  // namespace sortie::launcher
