// Sends lines to a persistent shell on a host, and separates the output of each line from that of
// the next. Pure, except for random numbers.
//
// The shell reads its program from a pipe. Lines arrive on the rank's stdin and pass through a loop
// that also receives orders, because a shell that waits for a command does not read. Before and
// after each line the shell prints marks on stdout and stderr. No command can print a mark by
// chance: marks are random, new for each line, and stand in the shell's program in two parts, so
// that `set -x` and `history` do not print them either.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::launcher {

struct LineMark {
  std::string first, second;
  static LineMark make();
  /// The mark as it appears in the output.
  std::string text() const { return '\x1e' + first + second; }
};

/// Command line of a rank that is such a shell: bash if the host has it, else /bin/sh.
std::vector<std::string> shell_argv();

/// Text for the shell's stdin: opening_order() once, then any number of line_order(), and
/// closing_order() before the end of input.
std::string opening_order();
std::string closing_order();
/// `last_status` is the value of $? at the start of the line.
std::string line_order(const LineMark& mark, std::string_view line, int last_status);
/// Orders that send SIGINT or SIGTERM to the processes of the running line.
inline constexpr std::string_view kInterruptOrder = "I\n", kTerminateOrder = "T\n";

/// Splits one output stream of a shell at the marks.
class MarkReader {
 public:
  struct Piece {
    enum class Kind {
      stray,  // between two lines: output of a background job
      begun,
      text,   // output of the line
      ended,  // on stdout with the exit status
    };
    Kind kind;
    std::string_view bytes = {};
    int status = 0;
  };
  using Take = std::function<void(const Piece&)>;

  /// Sets the mark of the next line.
  void expect(const LineMark& mark);
  void feed(std::string_view bytes, const Take& take);
  /// Passes on the bytes held back as a possible mark. Called if no mark will follow.
  void finish(const Take& take);

 private:
  bool step(const Take& take);
  void give(std::size_t size, const Take& take);

  std::optional<std::string> mark_;
  bool inside_ = false;
  std::string held_;
};

}  // namespace sortie::launcher
