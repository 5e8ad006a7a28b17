// LineEditor: reads lines from a user at a terminal, with editing, history and completion. The only
// user of libedit. Blocks; other threads wake it through a pipe.
#pragma once

#include <functional>
#include <string>
#include <vector>

struct editline;
struct history;

namespace sortie::launcher {

class LineEditor {
 public:
  /// Bytes that other threads write to the pipe.
  static constexpr char kInterrupt = 'C', kEnd = 'E', kShow = 'S', kResize = 'R';

  struct Read {
    enum class Kind { line, end, interrupted } kind = Kind::end;
    std::string text;
  };

  /// `wake`: read end of the pipe. `words` returns the completions of a word that begins with '@'.
  /// `to_show` returns the text to print for kShow. Both are called on the thread of read().
  LineEditor(int wake, std::function<std::vector<std::string>()> words,
             std::function<std::string()> to_show);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// Reads a line. Blocks until the line is complete, or kInterrupt or kEnd is received. Restores
  /// the terminal modes on return.
  Read read(const std::string& prompt);
  /// Adds `line` to the history in memory.
  void remember(const std::string& line);

 private:
  friend struct LineEditorCalls;

  const int wake_;
  const std::function<std::vector<std::string>()> words_;
  const std::function<std::string()> to_show_;
  std::string prompt_;
  Read::Kind why_ = Read::Kind::end;
  struct editline* editor_ = nullptr;
  struct history* history_ = nullptr;
};

}  // namespace sortie::launcher
