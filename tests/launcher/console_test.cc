// Console output: prefixes, partial lines, the status line. A terminal that reads nothing costs
// bounded memory and never prevents Sortie from exiting.
#include "launcher/console/console.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <malloc.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/fd.h"
#include "launcher/run/run_folder.h"
#include "launcher/view/training_text.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::json;
using wire::Stream;
using Clock = std::chrono::steady_clock;

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  /// Reads until all writers have closed the pipe.
  std::string rest() {
    write.reset();
    std::string out;
    char buffer[1 << 16];
    for (ssize_t count = 0; (count = ::read(read.get(), buffer, sizeof buffer)) > 0;)
      out.append(buffer, static_cast<std::size_t>(count));
    return out;
  }
  Fd read, write;
};

/// What a console writes to both streams while `act` uses it.
struct Shown {
  std::string out, err;
};
template <class Act>
Shown shown(Act act, Console::Style style = {}) {
  Pipe out, err;
  for (const Pipe* pipe : {&out, &err})  // room for all of it, as it is read afterwards
    REQUIRE(::fcntl(pipe->write.get(), F_SETPIPE_SZ, 1 << 20) >= 1 << 20);
  style.out = out.write.get();
  style.err = err.write.get();
  {
    Console console(style);
    act(console);
    CHECK(console.dropped_lines() == 0);
  }
  return {out.rest(), err.rest()};
}

TEST_CASE("each line has its rank and host in front and goes to the stream it came from") {
  const Shown both = shown([](Console& console) {
    console.output(0, "h1", Stream::out, "one\ntwo\n");
    console.output(12, "gpu-07", Stream::err, "oh\n");
    console.output(0, "h1", Stream::out, "\n");
  });
  CHECK(both.out == "[0 h1] one\n[0 h1] two\n[0 h1] \n");
  CHECK(both.err == "[12 gpu-07] oh\n");
}

TEST_CASE("colour goes only to the stream that shows it") {
  Console::Style style;
  style.color_err = true;
  const Shown both = shown(
      [](Console& console) {
        console.output(0, "h", Stream::out, "a\n");
        console.output(0, "h", Stream::err, "b\n");
        console.error("c");
      },
      style);
  CHECK(both.out == "[0 h] a\n");
  CHECK(both.err == "\x1b[2m[0 h]\x1b[0m b\n\x1b[31mc\x1b[0m\n");
}

TEST_CASE("lines of ranks and streams do not mix, whatever the pieces they come in") {
  const Shown both = shown([](Console& console) {
    console.output(0, "h", Stream::out, "he");
    console.output(1, "h", Stream::out, "wor");
    console.output(0, "h", Stream::err, "err");
    console.output(0, "h", Stream::out, "llo\nnext");
    console.output(1, "h", Stream::out, "ld\n");
    console.end_of_rank(0);
    console.end_of_rank(0);  // a second call shows nothing
    console.end_of_rank(7);  // had no output
  });
  CHECK(both.out == "[0 h] hello\n[1 h] world\n[0 h] next\n");
  CHECK(both.err == "[0 h] err\n");
}

TEST_CASE("of a line that was rewritten with carriage returns the last state is shown") {
  const Shown both = shown([](Console& console) {
    console.output(0, "h", Stream::out, "10%\r20%\r");
    console.output(0, "h", Stream::out, "done\r\nplain\r\n");
  });
  CHECK(both.out == "[0 h] done\n[0 h] plain\n");
}

TEST_CASE("a line without end is shown in pieces") {
  const Shown both = shown([](Console& console) {
    for (int i = 0; i < 200; ++i) console.output(0, "h", Stream::out, std::string(1000, 'x'));
    console.end_of_rank(0);
  });
  CHECK(std::ranges::count(both.out, 'x') == 200000);
  const auto lines = std::ranges::count(both.out, '\n');
  CHECK(lines == 4);  // of 66,000 bytes: a line is shown once it exceeds 64 KiB
}

TEST_CASE("control bytes are shown, in lines of ranks, in messages and in errors") {
  const Shown both = shown([](Console& console) {
    console.output(0, "h", Stream::out, "\x1b]0;title\x07\n");
    console.message("a\x1b[31mb\nsecond");
    console.error("host said \x1b[2J");
  });
  CHECK(both.out == "[0 h] ^[]0;title^G\n");
  CHECK(both.err == "a^[[31mb\nsecond\nhost said ^[[2J\n");
}

Json step(int number, double loss = 1) {
  return {{"type", "step"}, {"step", number}, {"steps", 3}, {"loss", loss}};
}

TEST_CASE("where no line can be rewritten, events show nothing: ranks write their own log") {
  const Shown both = shown([](Console& console) {
    console.event(step(1));
    console.event(step(3));
    console.event({{"type", "note"}, {"text", "words"}});
    CHECK(console.training().step == 3);
    CHECK(console.training().steps == 3);
  });
  CHECK(both.out.empty());
  CHECK(both.err.empty());
}

TEST_CASE("events of any shape are taken or passed over, never fatal") {
  const Shown both = shown([](Console& console) {
    console.event({{"type", "eval"}, {"step", 5}, {"loss", 1.5}});
    console.event({{"type", "checkpoint"},
                   {"step", 5},
                   {"path", "/c/5\x1b"},
                   {"bytes", 2e6},
                   {"seconds", 1}});
    console.event({{"type", "start"}});
    console.event({{"type", "step"}, {"skipped", 3}, {"loss", "NaN"}});
    console.event({{"type", "unknown"}});
    console.event({{"type", 3}});
    console.event(Json::object());
    console.event({{"type", "done"}, {"step", "x"}, {"planned_memory", 3}});
    CHECK(console.training().best->loss == 1.5);
    CHECK(console.training().checkpoint->path == "/c/5^[");
    CHECK(console.training().done);
  });
  CHECK(both.err.empty());
}

/// A terminal with 60 columns.
struct Terminal {
  Terminal() {
    int master_fd = -1, slave_fd = -1;
    winsize size{24, 60, 0, 0};
    termios raw{};
    REQUIRE(::openpty(&master_fd, &slave_fd, nullptr, nullptr, &size) == 0);
    ::tcgetattr(slave_fd, &raw);
    ::cfmakeraw(&raw);
    ::tcsetattr(slave_fd, TCSANOW, &raw);
    master.reset(master_fd);
    slave.reset(slave_fd);
    ::fcntl(master_fd, F_SETFL, O_NONBLOCK);
  }
  std::string read_until(std::string_view end) {
    std::string out;
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    while (!out.ends_with(end) && Clock::now() < deadline) {
      char buffer[4096];
      const ssize_t count = ::read(master.get(), buffer, sizeof buffer);
      if (count > 0)
        out.append(buffer, static_cast<std::size_t>(count));
      else
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return out;
  }
  Fd master, slave;
};

TEST_CASE("on a terminal the step line is rewritten in place, below the lines of ranks") {
  Terminal terminal;
  {
    Console::Style style;
    style.terminal = true;
    style.out = style.err = terminal.slave.get();
    Console console(style);
    Json later = step(2);
    later.update({{"tokens_per_s", 12300}, {"eta_s", 1e6}});
    console.event(later);
    console.event({{"type", "eval"}, {"step", 1}, {"loss", 2.5}});
    console.event({{"type", "checkpoint"}, {"step", 1}, {"path", "/c"}});
    const std::string first =
        "step 2/3  loss 1.0000  12.3k tokens/s  ETA 11d13h  checkpoint 1  best";
    const std::string whole = live_line(console.training(), unix_time());
    REQUIRE(whole.size() > 60);
    CHECK(whole.starts_with(first));
    // Cut to the width of the terminal: a line that wraps could not be erased.
    CHECK(terminal.read_until(whole.substr(0, 59)).ends_with(whole.substr(0, 59)));
    console.output(0, "h", Stream::out, "hello\n");
    CHECK(terminal.read_until(whole.substr(0, 59)) ==
          "\r\x1b[K[0 h] hello\n" + whole.substr(0, 59));
  }
  CHECK(terminal.read_until("\x1b[K") == "\r\x1b[K");  // the status line is erased at the end
}

TEST_CASE("a pipe that nobody drains costs bounded memory, and the end waits two seconds at most") {
  Pipe out, err;
  Console::Style style;
  style.out = out.write.get();
  style.err = err.write.get();
  const std::size_t before = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
  std::size_t dropped = 0, used = 0;
  auto begun = Clock::now();
  {
    Console console(style);
    const std::string line = std::string(99, 'x') + "\n";
    for (int i = 0; i < 400000; ++i) console.output(0, "h", Stream::out, line);  // 40 MB
    for (int i = 0; i < 100000; ++i) console.message(std::string_view(line).substr(0, 99));
    for (int i = 0; i < 1000; ++i) console.event(step(i));
    dropped = console.dropped_lines();
    used = ::mallinfo2().uordblks + ::mallinfo2().hblkhd - before;
    begun = Clock::now();
  }
  const auto ended = Clock::now() - begun;
  CHECK(dropped > 300000);
  CHECK(used < 24u << 20);
  CHECK(ended < std::chrono::seconds(10));
  // The writer thread is still blocked in write(). When the pipe drains, it must not touch
  // destroyed objects, and must write no more than that piece.
  const auto stop = Clock::now() + std::chrono::seconds(30);
  std::size_t drained = 0;
  ::fcntl(out.read.get(), F_SETFL, O_NONBLOCK);
  out.write.reset();
  for (char buffer[1 << 16]; Clock::now() < stop;) {
    const ssize_t count = ::read(out.read.get(), buffer, sizeof buffer);
    if (count == 0) break;  // the thread has closed its copy of the pipe and exited
    if (count > 0) drained += static_cast<std::size_t>(count);
    if (count < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(Clock::now() < stop);
  CHECK(drained < 1u << 20);
}

TEST_CASE("a process whose terminal is stuck still ends, with its exit code") {
  Pipe out;
  std::cout.flush();  // otherwise the child would write the buffer again at its exit
  const pid_t child = ::fork();
  if (child == 0) {
    Console::Style style;
    style.out = style.err = out.write.get();
    {
      Console console(style);
      for (int i = 0; i < 100000; ++i) console.output(0, "h", Stream::out, "no one reads this\n");
    }
    std::exit(7);
  }
  const auto stop = Clock::now() + std::chrono::seconds(30);
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(child, &status, WNOHANG)) == 0 && Clock::now() < stop)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (ended == 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  CHECK(ended == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("what waits for a terminal at the end is written though the machine stood still then") {
  constexpr int kLines = 6000;  // more than fits in a pipe
  Pipe out, ready;
  std::cout.flush();
  const pid_t child = ::fork();
  if (child == 0) {
    Console::Style style;
    style.out = style.err = out.write.get();
    {
      Console console(style);
      for (int i = 0; i < kLines; ++i) console.output(0, "h", Stream::out, "some line\n");
      (void)!::write(ready.write.get(), "r", 1);
    }
    ::_exit(0);
  }
  char word = 0;
  REQUIRE(::read(ready.read.get(), &word, 1) == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it is blocked on the pipe
  REQUIRE(::kill(child, SIGSTOP) == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  ::kill(child, SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::string shown = out.rest();
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(std::ranges::count(shown, '\n') == kLines);
}

TEST_CASE("a reader that goes away is no reason to die") {
  Pipe out, err;
  Console::Style style;
  style.out = out.write.get();
  style.err = err.write.get();
  {
    Console console(style);
    out.read.reset();
    for (int i = 0; i < 1000; ++i) console.output(0, "h", Stream::out, "gone\n");
    console.message("still here");
  }
  CHECK(err.rest() == "still here\n");
}

}  // namespace
}  // namespace sortie::launcher
