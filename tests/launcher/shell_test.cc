// `sortie shell` and `sortie ssh` without hosts: parsing of lines, marks in output, history,
// escapes.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <optional>

#include "common/asio/spawn.h"
#include "common/base/shell_text.h"
#include "launcher/shell/marks.h"
#include "launcher/shell/prompt.h"
#include "launcher/shell/shell_history.h"
#include "launcher/shell/shell_input.h"
#include "launcher/shell/terminal_errors.h"
#include "launcher/terminal/escape.h"
#include "tests/launcher/command_line.h"
#include "tests/support/run_within.h"
#include "tests/support/scoped_variable.h"

namespace sortie::launcher {
namespace {

using boost::asio::awaitable;
using Piece = MarkReader::Piece;
using Word = ShellInput::Kind;

TEST_CASE("a line at the prompt is for hosts, for this machine, or for the prompt") {
  struct Row {
    const char* line;
    Word kind;
    const char* text;
    const char* hosts;
  };
  for (const Row& row : {Row{"", Word::nothing, "", ""},
                         Row{"  # note", Word::nothing, "", ""},
                         Row{" uptime -p ", Word::remote, " uptime -p ", ""},
                         Row{"! ls -l", Word::local, "ls -l", ""},
                         Row{"!", Word::nothing, "", ""},
                         Row{"@gpu uptime -p", Word::remote, "uptime -p", "gpu"},
                         Row{"@h[01-02],h4\tid", Word::remote, "id", "h[01-02],h4"},
                         Row{"@gpu", Word::select, "", "gpu"},
                         Row{"@", Word::select, "", ""},
                         Row{"@ id", Word::nothing, "id", ""},
                         Row{"?", Word::list, "", ""},
                         Row{" = ", Word::folding, "", ""},
                         Row{"= 1", Word::remote, "= 1", ""},
                         Row{"+h[05-06]", Word::add, "", "h[05-06]"},
                         Row{" -gpu ", Word::remove, "", "gpu"},
                         Row{"+", Word::nothing, "", ""},
                         Row{"-h1 id", Word::nothing, "", "h1 id"},
                         Row{"exit", Word::leave, "", ""},
                         Row{" quit 3 ", Word::leave, "", ""},
                         Row{"exit now", Word::remote, "exit now", ""},
                         Row{"exits", Word::remote, "exits", ""}}) {
    CAPTURE(row.line);
    const ShellInput input = parse_shell_input(row.line);
    CHECK(input.kind == row.kind);
    CHECK(input.text == row.text);
    CHECK(input.hosts == row.hosts);
  }
  CHECK_FALSE(parse_shell_input("exit").status);
  CHECK(parse_shell_input("quit 3").status == 3);
  CHECK_FALSE(parse_shell_input("!").error.empty());
  CHECK_FALSE(parse_shell_input("@ id").error.empty());
  CHECK_FALSE(parse_shell_input("+").error.empty());
  CHECK_FALSE(parse_shell_input("-h1 id").error.empty());
  CHECK(line_goes_on("a \\"));
  CHECK(line_goes_on("\\"));
  CHECK_FALSE(line_goes_on("a \\\\"));
  CHECK_FALSE(line_goes_on(""));
}

TEST_CASE("what is typed into a session goes there but for ~ at the begin of a line") {
  using Action = EscapeFilter::Action;
  using Parts = std::vector<EscapeFilter::Part>;
  const auto whole = [](std::string_view typed) { return EscapeFilter().feed(typed); };
  CHECK(whole("ls ~\r") == Parts{{"ls ~\r", Action::none}});
  CHECK(whole("~.rest") == Parts{{"", Action::disconnect}});
  CHECK(whole("ls\r~.") == Parts{{"ls\r", Action::disconnect}});
  CHECK(whole("~~.\r") == Parts{{"~.\r", Action::none}});
  CHECK(whole("~x~.") == Parts{{"~x~.", Action::none}});
  CHECK(whole("~?~\x1a~.") ==
        Parts{{"", Action::help}, {"", Action::suspend}, {"", Action::disconnect}});
  EscapeFilter bit_by_bit;
  CHECK(bit_by_bit.feed("~") == Parts{{"", Action::none}});
  CHECK(bit_by_bit.feed("/\r") == Parts{{"~/\r", Action::none}});
  CHECK(bit_by_bit.feed("~") == Parts{{"", Action::none}});
  CHECK(bit_by_bit.feed(".") == Parts{{"", Action::disconnect}});
}

/// Pieces that the reader returns for `bytes`, fed in parts of `step` bytes.
std::string read_marks(MarkReader& reader, std::string_view bytes, std::size_t step) {
  std::string out;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(step, bytes.size())))
    reader.feed(bytes.substr(0, step), [&](const Piece& piece) {
      if (piece.kind == Piece::Kind::begun) out += "<";
      if (piece.kind == Piece::Kind::text) out += piece.bytes;
      if (piece.kind == Piece::Kind::stray) out += "(" + std::string(piece.bytes) + ")";
      if (piece.kind == Piece::Kind::ended) out += ">" + std::to_string(piece.status);
    });
  return out;
}

TEST_CASE("marks cut an output wherever it is cut itself") {
  const LineMark mark{"aaaa", "bbbb"};
  const std::string text = mark.text();
  for (std::size_t step = 1; step < 40; ++step) {
    CAPTURE(step);
    MarkReader reader;
    reader.expect(mark);
    std::string got = read_marks(reader, text + "<one\x1e" + "aaaa\n" + text + ">7\n", step);
    CHECK(got ==
          "<one\x1e"
          "aaaa\n>7");
    got = read_marks(reader, "x", step);  // nothing is expected
    CHECK(got == "(x)");
  }
  MarkReader reader;
  reader.expect(mark);
  CHECK(read_marks(reader, text + "<" + text + ">nonsense without end", 100) ==
        "<>0(nonsense without end)");
  const LineMark a = LineMark::make(), b = LineMark::make();
  CHECK(a.text() != b.text());
  CHECK(a.text().size() == 33);
}

/// Both outputs of a shell in `dir`, cut at these marks. Returns "<out>status" of each line, and
/// all of stderr in `errors`. `lines_end`: how many lines end, unless one
/// ends the shell.
std::string read_outputs(const test::ScopedTempDir& dir, const std::vector<LineMark>& marks,
                         std::string& errors, std::size_t lines_end) {
  std::string out;
  for (std::size_t which = 0; which < 2; ++which) {
    const std::string said = test::read_text(dir / (which == 0 ? "out" : "err"));
    MarkReader reader;
    std::size_t next = 0;
    reader.expect(marks[next]);
    const MarkReader::Take take = [&](const Piece& piece) {
      if (piece.kind == Piece::Kind::text) (which == 0 ? out : errors) += piece.bytes;
      if (piece.kind == Piece::Kind::stray && which == 0)
        out += "stray " + std::string(piece.bytes);
      if (piece.kind != Piece::Kind::ended) return;
      if (which == 0) out += ">" + std::to_string(piece.status) + " ";
    };
    // Fed byte by byte, so that the next mark is set before its begin arrives.
    for (const char c : said) {
      bool ended = false;
      reader.feed(std::string_view(&c, 1), [&](const Piece& piece) {
        take(piece);
        ended = ended || piece.kind == Piece::Kind::ended;
      });
      if (ended && ++next < marks.size()) reader.expect(marks[next]);
    }
    CHECK(next == lines_end);
    reader.finish(take);
  }
  return out;
}

/// Makes a folder with the programs that the lines need, with or without bash. The shell finds no
/// others.
void make_path(const std::filesystem::path& bin, bool with_bash) {
  std::filesystem::create_directories(bin);
  for (const std::string name : {"sh", "sleep", "cat", "bash"})
    if (with_bash || name != "bash") std::filesystem::create_symlink("/bin/" + name, bin / name);
}

/// Runs the lines in a real shell. `ended`: number of lines that end; default: all.
std::string through_shell(const std::vector<std::string>& lines, bool with_bash,
                          std::string& errors, std::optional<std::size_t> ended = {}) {
  const test::ScopedTempDir dir;
  std::vector<LineMark> marks;
  std::string orders = opening_order();
  for (const std::string& line : lines) {
    marks.push_back(LineMark::make());
    orders += line_order(marks.back(), line, 0);
  }
  test::write_text(dir / "orders", orders + closing_order());
  test::write_text(dir / "program", shell_argv()[2]);
  make_path(dir / "bin", with_bash);
  const testing::Finished done = test::shell(
      "cd '" + dir.path().string() +
      "' && PATH=\"$PWD/bin\" exec /usr/bin/setsid /bin/sh program < orders > out 2> err");
  CHECK_MESSAGE(done.code >= 0, done.output);
  CHECK_FALSE(test::read_text(dir / "err").ends_with("exit\n"));  // of bash, at the end of input
  return read_outputs(dir, marks, errors, ended.value_or(marks.size()));
}

/// Runs two lines and interrupts the first. `with_bash`: whether the shell finds bash.
std::string through_interrupted_shell(bool with_bash) {
  const test::ScopedTempDir dir;
  const std::vector<LineMark> marks = {LineMark::make(), LineMark::make()};
  test::write_text(dir / "program", shell_argv()[2]);
  test::write_text(dir / "one", opening_order() + line_order(marks[0], "echo a; nap; echo b", 0));
  test::write_text(dir / "two", line_order(marks[1], "echo $?c", 130));
  // A separate program, because bash may lose an interrupt that arrives before exec.
  test::write_text(dir / "bin/nap", "#!/bin/sh\n: > napping\nexec sleep 1000\n");
  make_path(dir / "bin", with_bash);
  test::write_text(
      dir / "play",
      "until_() { i=0; until eval \"$1\"; do i=$((i+1))\n"
      "  [ $i -lt 600 ] || { echo \"not within 30 s: $1\"; kill -KILL -$shell; exit 9; }\n"
      "  sleep 0.05; done; }\n"
      "chmod 700 bin/nap && mkfifo orders || exit 8\n"
      "PATH=\"$PWD/bin\" /usr/bin/env --default-signal=INT /usr/bin/setsid /bin/sh program \\\n"
      "  < orders > out 2> err & shell=$!\n"
      "exec 5> orders; cat one >&5; until_ '[ -e napping ]'\n"
      "echo I >&5; until_ 'grep -q \">\" out'\n"
      "cat two >&5; until_ 'grep -q 130c out'\n"
      "exec 5>&-; wait $shell\n");
  const testing::Finished done = test::shell("cd '" + dir.path().string() + "' && exec sh play");
  CHECK_MESSAGE(done.code == 0, done.output);
  std::string errors;
  return read_outputs(dir, marks, errors, marks.size());
}

TEST_CASE("a shell lives from line to line, whatever the lines are, with bash and without") {
  for (const bool with_bash : {true, false}) {
    CAPTURE(with_bash);
    std::string errors;
    const std::string out = through_shell(
        {"cd /usr; export A='b c'", "pwd; echo \"$A\"", "false", "echo $?", "cat; echo it\\'s",
         "if", "echo ${nope?why}; echo no", "echo still", "printf 'no end'",
         "for i in 1 2\ndo echo $i\n\ndone", "break; echo out", "return 4",
         "set -x; echo traced; set +x", "exec 3< /etc/passwd; read -r x <&3; echo ${x%%:*}",
         "exec > /dev/null; echo x", "echo gone; exit 3 | cat; (exit 5)"},
        with_bash, errors);
    const std::string unset = with_bash ? "1" : "2";
    const std::string left = with_bash ? "out\n>0 >2 " : ">0 >4 ";  // of break and return
    CHECK(out == ">0 /usr\nb c\n>0 >1 0\n>0 it's\n>0 >2 >" + unset +
                     " still\n>0 no end>0 1\n2\n>0 " + left + "traced\n>0 root\n>0 >0 >5 ");
    CHECK(test::contains(errors, "why"));
    CHECK(test::contains(errors, "echo traced"));
    if (with_bash) CHECK_FALSE(errors.contains("printf"));  // set -x does not show our own commands
  }
}

TEST_CASE("a shell neither reads nor changes the user's history, with bash and without") {
  const test::ScopedTempDir home;
  std::string history;
  for (int i = 0; i < 2000; ++i) history += "cmd " + std::to_string(i) + "\n";
  const test::ScopedVariable variable("HOME", home.path().string());
  for (const bool with_bash : {true, false})
    for (const std::string line : {"echo a", "exec cat", "history"}) {
      CAPTURE(with_bash);
      CAPTURE(line);
      for (const char* name : {".bash_history", ".ash_history", ".sh_history"})
        test::write_text(home / name, history);
      std::string errors;
      const std::string out = through_shell({line}, with_bash, errors, line == "exec cat" ? 0 : 1);
      CHECK_FALSE(out.contains("cmd 7"));
      for (const char* name : {".bash_history", ".ash_history", ".sh_history"})
        CHECK(test::read_text(home / name) == history);
    }
}

TEST_CASE("the end of a shell prints nothing about the relay in front of it") {
  for (const bool with_bash : {true, false}) {
    CAPTURE(with_bash);
    std::string errors;
    CHECK(through_shell({"exec cat"}, with_bash, errors, 0) == "");
    CHECK_FALSE(errors.contains("Hangup"));
  }
}

TEST_CASE("bash's message about a terminal that it lacks is dropped wherever the output is cut") {
  const std::string message = "bash: [27413: 1 (255)] tcsetattr: Inappropriate ioctl for device\n";
  struct Row {
    std::string said, shown;
  };
  for (const Row& row : {Row{message, ""}, Row{"a\n" + message + message + "b\n", "a\nb\n"},
                         Row{"no end" + message + "c", "no endc"},
                         Row{"bash: [x] tcsetattr: y\n", "bash: [x] tcsetattr: y\n"},
                         Row{"bash: [1: 2 (3)] tcgetattr: y\n", "bash: [1: 2 (3)] tcgetattr: y\n"},
                         Row{"bash: line 1: [: x\n", "bash: line 1: [: x\n"},
                         Row{"bash: [1: ", "bash: [1: "}, Row{"bash: [bash: [1", "bash: [bash: [1"},
                         Row{"bash: [1: 2 (3)] tcsetattr: " + std::string(1000, 'x'),
                             "bash: [1: 2 (3)] tcsetattr: " + std::string(1000, 'x')}})
    for (std::size_t step = 1; step < 80; ++step) {
      CAPTURE(row.said);
      CAPTURE(step);
      TerminalErrors errors;
      std::string shown;
      for (std::string_view rest = row.said; !rest.empty();
           rest.remove_prefix(std::min(step, rest.size())))
        shown += errors.feed(rest.substr(0, step));
      CHECK(shown + errors.finish() == row.shown);
    }
}

TEST_CASE("a line without the end of a quote fails, and the shell goes on, with bash and without") {
  for (const bool with_bash : {true, false}) {
    CAPTURE(with_bash);
    for (const std::string line :
         {"echo it's", "echo \"x", "echo `ls", "echo ${x", "echo $(ls", "foo() {"}) {
      CAPTURE(line);
      std::string errors;
      const std::string out = through_shell({"false", line, "echo c"}, with_bash, errors);
      CAPTURE(out);
      CAPTURE(errors);
      CHECK((out == ">1 >2 c\n>0 " || out == ">1 >1 c\n>0 "));
      CHECK_FALSE(errors.empty());
    }
  }
}

TEST_CASE("an interrupt ends a line, and the shell goes on, with bash and without") {
  for (const bool with_bash : {true, false}) {
    CAPTURE(with_bash);
    CHECK(through_interrupted_shell(with_bash) == "a\n>130 130c\n>0 ");
  }
}

TEST_CASE("a command of this machine that is stopped goes on, and the end of the prompt ends it") {
  // The SIGCONT to the process group must not reach other tests.
  const pid_t group = ::getpgrp();
  if (group != ::getpid()) REQUIRE(::setpgid(0, 0) == 0);
  boost::asio::io_context io{1};
  Prompt prompt(io.get_executor(), Prompt::Options());
  struct Lines {
    static awaitable<void> run(Prompt& prompt, std::vector<int>& codes) {
      const std::string all_stop =  // as at Ctrl-Z
          "sh -c 'kill -STOP $$; exit 3' & until grep -q '^State:.T' /proc/$!/status; do sleep "
          "0.02; done; kill -STOP $$; wait $!";
      codes.push_back(co_await prompt.run_here(all_stop));
      const std::string stays = "kill -TTIN $$; exec sleep 60";
      codes.push_back(co_await prompt.run_here(stays));
    }
    static awaitable<void> end(boost::asio::io_context& io, Prompt& prompt,
                               const std::vector<int>& codes) {
      boost::asio::steady_timer pause(io);
      while (codes.size() < 2) {
        pause.expires_after(std::chrono::milliseconds(50));
        co_await pause.async_wait(boost::asio::use_awaitable);
        if (codes.size() == 1) prompt.end();
      }
    }
  };
  std::vector<int> codes;
  spawn(io, Lines::run(prompt, codes));
  spawn(io, Lines::end(io, prompt, codes));
  test::run_within(io, std::chrono::seconds(20));
  if (group != ::getpid()) (void)::setpgid(0, group);
  CHECK(codes == std::vector<int>{3, 143});
}

TEST_CASE("the history is the user's alone, and is cut") {
  const test::ScopedTempDir dir;
  const std::filesystem::path file = dir / "shell_history";
  const auto none = load_history(file);
  REQUIRE(none);
  CHECK(none->empty());
  for (int i = 0; i < 2002; ++i) REQUIRE(append_history(file, "line " + std::to_string(i)));
  struct stat info {};
  REQUIRE(::stat(file.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0600);
  const auto lines = load_history(file);
  REQUIRE(lines);
  CHECK(lines->size() == kHistoryLines);
  CHECK(lines->back() == "line 2001");
  CHECK(test::count_of(test::read_text(file), "\n") == kHistoryLines);
  ::chmod(file.c_str(), 0644);
  REQUIRE(load_history(file));
  REQUIRE(::stat(file.c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0600);
  std::filesystem::remove(file);
  std::filesystem::create_symlink(dir / "elsewhere", file);
  CHECK_FALSE(append_history(file, "x"));
  CHECK_FALSE(std::filesystem::exists(dir / "elsewhere"));
}

}  // namespace
}  // namespace sortie::launcher
