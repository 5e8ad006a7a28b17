// Prompt: lines from stdin, one when asked for, on a thread of its own: a person may think for
// hours while heartbeats go on. From a terminal with editing and history, else as they are. What
// belongs to the terminal runs there, too: commands of this machine.
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
    std::filesystem::path history;    // new lines are added to it; empty = nowhere
    std::vector<std::string> before;  // lines of it
    std::vector<std::string> words;   // for completion, "@gpu"
  };
  using Answer = LineEditor::Read;

  Prompt(boost::asio::any_io_executor executor, Options options);
  /// Ends what waits; waits for a command of this machine that runs.
  ~Prompt();
  Prompt(const Prompt&) = delete;
  Prompt& operator=(const Prompt&) = delete;

  /// One at a time; of this and run_here().
  boost::asio::awaitable<Answer> ask(std::string text);
  /// Through /bin/sh, with this process's terminal. Its exit code, 128 + signal.
  boost::asio::awaitable<int> run_here(std::string command);

  bool asking() const { return asking_; }
  /// Ctrl-C: ask() gives Kind::interrupted. Nothing when nobody is asked.
  void interrupt() { wake(LineEditor::kInterrupt); }
  /// ask() gives Kind::end; a command of this machine is told to end.
  void end();
  void resized() { wake(LineEditor::kResize); }
  /// Shown above the prompt while ask() waits; at a terminal.
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
