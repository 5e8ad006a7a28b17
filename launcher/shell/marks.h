// How a shell on a host, which lives from line to line, is told a line, and how its output is told
// from that of the next. Pure, but for random numbers.
//
// The shell reads its program from a pipe; lines of it come over stdin of the rank through a loop
// that also takes orders, because a shell that waits for a command reads nothing. A line is
// followed on stdout and stderr by marks that no command can know before: they are random, new for
// each line, and stand in two parts in the shell's program, so that `set -x` and `history` do not
// print one either.
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
  /// As it stands in the output.
  std::string text() const { return '\x1e' + first + second; }
};

/// What a rank runs that is such a shell: bash where the host has it, else /bin/sh.
std::vector<std::string> shell_argv();

/// For its stdin. Order: once at first, then any number of lines.
std::string opening_order();
/// `last_status` is what $? is in the line.
std::string line_order(const LineMark& mark, std::string_view line, int last_status);
/// To what the line runs: SIGINT, SIGTERM.
inline constexpr std::string_view kInterruptOrder = "I\n", kTerminateOrder = "T\n";

/// One output of a shell, cut at the marks.
class MarkReader {
 public:
  struct Piece {
    enum class Kind {
      stray,  // between two lines: of a job in the background
      begun,
      text,   // of the line
      ended,  // with a status, on stdout
    };
    Kind kind;
    std::string_view bytes = {};
    int status = 0;
  };
  using Take = std::function<void(const Piece&)>;

  /// The marks of the next line.
  void expect(const LineMark& mark);
  void feed(std::string_view bytes, const Take& take);
  /// No mark is to come.
  void finish(const Take& take);

 private:
  bool step(const Take& take);
  void give(std::size_t size, const Take& take);

  std::optional<std::string> mark_;
  bool inside_ = false;
  std::string held_;
};

}  // namespace sortie::launcher
