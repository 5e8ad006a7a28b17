// `sortie shell` and `sortie ssh` without hosts: parsing of lines, marks in output, history,
// escapes. And lines over fake hosts in memory.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>

#include "common/asio/spawn.h"
#include "common/base/shell_text.h"
#include "launcher/exec/fold_sink.h"
#include "launcher/shell/prompt.h"
#include "launcher/shell/shell_history.h"
#include "launcher/shell/shell_hosts.h"
#include "launcher/shell/shell_input.h"
#include "launcher/terminal/escape.h"
#include "tests/launcher/command_line.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/run_within.h"

namespace sortie::launcher {
namespace {

using boost::asio::awaitable;
using Piece = MarkReader::Piece;
using Word = ShellInput::Kind;
using test::FakeRunner;

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
/// all of stderr in `errors`.
std::string read_outputs(const test::ScopedTempDir& dir, const std::vector<LineMark>& marks,
                         std::string& errors) {
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
    CHECK(next == marks.size());
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

/// Runs the lines in a real shell.
std::string through_shell(const std::vector<std::string>& lines, bool with_bash,
                          std::string& errors) {
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
  return read_outputs(dir, marks, errors);
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
  return read_outputs(dir, marks, errors);
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

/// Fake hosts in memory whose shells answer each line with `answer`.
struct Prompted {
  explicit Prompted(std::vector<std::string> names) : hosts_named(std::move(names)) {
    runner.startup_timeout = std::chrono::seconds(30);
    runner.heartbeat_interval = std::chrono::milliseconds(20);
    runner.heartbeat_timeout = std::chrono::milliseconds(400);
    test::write_text(dir / "runner", "#!/bin/sh\n");
  }

  /// Runs the lines one after another.
  void run(std::vector<std::string> lines) {
    auto binary = RunnerBinary::open(dir / "runner");
    REQUIRE(binary);
    ShellHosts hosts({io.get_executor(), transport, *binary,
                      [this](const std::string& host, const Outcome& outcome, bool in_line) {
                        gone += host + (in_line ? " in line: " : ": ") + outcome.reason + "\n";
                      },
                      [](std::size_t, const std::string&, std::string_view) {}},
                     hosts_named, runner, "shell-test");
    bool ended = false;
    boost::asio::co_spawn(io, play(hosts, std::move(lines)), [&](std::exception_ptr error) {
      ended = !error;
      io.stop();
    });
    test::run_within(io, std::chrono::seconds(10));
    REQUIRE(ended);
  }

  awaitable<void> play(ShellHosts& hosts, std::vector<std::string> lines) {
    co_await hosts.connect();
    for (const std::string& line : lines) {
      FoldSink fold(true);
      std::vector<std::size_t> all;
      for (std::size_t index = 0; index < hosts.size(); ++index) all.push_back(index);
      const auto outcomes = co_await hosts.run(line, all, fold);
      codes.push_back(exec_exit_code(outcomes, std::nullopt));
      while (const auto piece = fold.next_piece()) shown += *piece;
    }
    co_await hosts.leave();
  }

  test::ScopedTempDir dir;
  boost::asio::io_context io{1};
  test::FakeTransport transport{io.get_executor()};
  config::RunnerConfig runner;
  std::vector<std::string> hosts_named;
  std::vector<int> codes;
  std::string shown, gone;
};

/// Parts of an order: the text between the quotes of `eval '...'`, and the mark.
struct Order {
  std::string mark, line;
};
std::optional<Order> take_order(std::string& heard) {
  const std::size_t eval = heard.find("eval '");
  const std::size_t end = heard.find("%d\\n' ", eval);
  if (eval == heard.npos || end == heard.npos || heard.find('\n', end) == heard.npos) return {};
  const std::size_t line = eval + 6;
  std::istringstream words(heard.substr(end + 6));
  std::string first, second;
  words >> first >> second;
  Order order{"\x1e" + first + second, heard.substr(line, heard.find("'; }", line) - line)};
  heard.clear();
  return order;
}

/// A shell: `status N` ends with status N, `cut HOST` breaks the connection of HOST, `end` ends the
/// shell, any other line is printed.
awaitable<void> a_shell(FakeRunner& runner) {
  const bool started = co_await runner.autostart();
  if (!started) co_return;
  std::string heard;
  for (;;) {
    const std::optional<wire::Message> message = co_await runner.next();
    if (!message) co_return;
    const auto* input = std::get_if<wire::Input>(&*message);
    if (input == nullptr) continue;
    if (input->eof != 0) break;
    runner.send(wire::InputCredit{input->bytes.size(), 0});
    heard += input->bytes;
    const std::optional<Order> order = take_order(heard);
    if (!order) continue;
    int status = 0;
    std::string said = order->line == ":" ? "" : order->line + "\n";
    if (order->line.starts_with("status ")) status = std::stoi(order->line.substr(7));
    runner.send(wire::Output{0, wire::Stream::err, "noise" + order->mark + "<"});
    runner.send(wire::Output{0, wire::Stream::out, "noise" + order->mark + "<" + said});
    if (order->line == "cut " + runner.host()) {
      runner.cut("broken");
      co_return;
    }
    if (order->line == "end") {
      runner.exit_rank(0, 3);
      break;
    }
    runner.send(wire::Output{0, wire::Stream::err, order->mark + ">\n"});
    runner.send(
        wire::Output{0, wire::Stream::out, order->mark + ">" + std::to_string(status) + "\n"});
  }
  co_await runner.finish(false);
}

TEST_CASE("lines run on all hosts, folded; one that goes is named and the others go on") {
  Prompted prompt({"a", "b", "c"});
  for (const char* name : {"a", "b", "c"}) prompt.transport.host(name).script = a_shell;
  prompt.run({"hello", "status 7", "cut b", "again"});
  CHECK(prompt.codes == std::vector<int>{0, 7, 5, 0});
  CHECK(test::contains(prompt.shown, "==> a,b,c (3)\nhello\n"));
  CHECK(test::contains(prompt.shown, "==> a,b,c (3): exit code 7\nstatus 7\n"));
  CHECK(test::contains(prompt.shown, "==> a,c (2)\ncut b\n"));
  CHECK(test::contains(prompt.shown, "==> a,c (2)\nagain\n"));
  CHECK(test::contains(prompt.gone, "b in line: broken"));
  CHECK(test::count_of(prompt.gone, "\n") == 1);
}

TEST_CASE("a shell that ends takes its host out of the prompt") {
  Prompted prompt({"a", "b"});
  for (const char* name : {"a", "b"}) prompt.transport.host(name).script = a_shell;
  prompt.run({"end", "nobody"});
  CHECK(prompt.codes == std::vector<int>{3, 0});
  CHECK(test::contains(prompt.gone, "a in line: its shell has ended: exit code 3\n"));
  CHECK(test::contains(prompt.gone, "b in line: its shell has ended: exit code 3\n"));
  CHECK_FALSE(prompt.shown.contains("nobody"));
}

TEST_CASE("ssh and shell say what they can not do") {
  struct Row {
    std::vector<std::string> arguments;
    const char* said;
  };
  for (const Row& row :
       {Row{{"ssh", "localhost"}, "is this machine"}, Row{{"ssh", "h[1-2]"}, "is 2 hosts"},
        Row{{"ssh", "h[1-2]", "uptime", "-p"}, "is 2 hosts"}, Row{{"ssh"}, "host"},
        Row{{"ssh", "--terminal", "--set", "runner.transport=[\"x\",\"{host}\"]", "h"},
            "runner.transport: x gives a command no terminal"},
        Row{{"shell"}, "no hosts: give --hosts or --config"}}) {
    const testing::Finished done = test::sortie(row.arguments);
    CHECK(done.code == 2);
    CHECK_MESSAGE(test::has(done.output, row.said), done.output);
  }
}

TEST_CASE(
    "a prompt that is told to end while its output waits for a reader asks for no more lines") {
  const test::ScopedTempDir dir;
  const auto done = test::shell("cd " + dir.str("") +
                                R"( && mkfifo in out || exit 1
timeout --foreground -s KILL 60 )" SORTIE_BINARY
                                R"( shell --hosts localhost < in > out 2> err &
exec 3> in 4< out
echo 'yes 0123456789 | head -n 30000' >&3
head -c 1 <&4 > first  # from here on it writes, and soon it waits
sleep 2
kill -TERM $!
cat <&4 > all
wait $!
echo "code $?")");
  CHECK_MESSAGE(test::has(done.output, "code 143"), done.output);
}

TEST_CASE("ssh hands a host's program the words that it needs") {
  const auto ssh = [](const std::string& options, const std::string& rest) {
    return test::shell(std::string(SORTIE_BINARY) + " ssh " + options + " " + rest).output;
  };
  CHECK(ssh("--set 'runner.transport=[\"echo\",\"to\",\"{host}\"]'", "h7 ls -l '$x'") ==
        "to h7 /bin/sh -c ls -l $x\n");
  const std::string own = ssh("--set 'runner.ssh.command=[\"echo\"]' -t", "h7 -- top -d 1");
  CHECK_MESSAGE(own.contains(" -t "), own);
  CHECK_MESSAGE(own.ends_with("-- h7 top -d 1\n"), own);
  CHECK(ssh("--set 'runner.ssh.command=[\"echo\"]'", "h7 run it").ends_with("-- h7 run it\n"));
}

TEST_CASE("every verb reads the user's defaults, which `config show` names") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "mine.toml", "[runner.ssh]\nuser = \"ann\"\n[runner]\ngrace = \"3s\"\n");
  ::chmod(dir.str("mine.toml").c_str(), 0600);
  const std::string with = "SORTIE_USER_CONFIG=" + dir.str("mine.toml") + " " + SORTIE_BINARY + " ";
  const std::string shown =
      test::shell(with + "config show --hosts a --set runner.grace=4s --origin").output;
  CHECK_MESSAGE(shown.contains("# user's " + dir.str("mine.toml") + ":2:8\n"), shown);
  CHECK_MESSAGE(shown.contains("# --set\n"), shown);
  CHECK(test::shell(with + "ssh --set 'runner.ssh.command=[\"echo\"]' h7 x")
            .output.contains("-l ann"));
  // The saved config of a run does not need the user's file.
  const std::string state = dir.str("state");
  CHECK(test::shell(with + "run --set runner.mpi=off --set logger.log_dir=" + state + " -- true")
            .code == 0);
  CHECK(test::shell("grep -h 'user = \"ann\"' " + state + "/runs/*/config.toml").code == 0);
  test::write_text(dir / "mine.toml", "[trainer]\nseed = 3\n");
  const auto refused = test::shell(with + "exec --hosts a -- true");
  CHECK(refused.code == 2);
  CHECK_MESSAGE(refused.output.contains("mine.toml:2:1: trainer.seed: is about one job"),
                refused.output);
}

}  // namespace
}  // namespace sortie::launcher
